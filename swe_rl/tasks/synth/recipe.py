"""A task as a recipe: facts from which, with the package's sdist, exactly the same task is built again. No code of others."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from swe_rl.errors import DataError
from swe_rl.tasks.synth.edit import Edit, gold_edit
from swe_rl.tasks.synth.functions import find_functions
from swe_rl.tasks.synth.inject import Bug
from swe_rl.tasks.synth.issue import issue_text
from swe_rl.tasks.synth.layout import is_test_file
from swe_rl.tasks.synth.mutations import Mutation
from swe_rl.tasks.synth.repository import build_archive, change_patch, hidden_tree, new_files_patch
from swe_rl.types import Task

# Left out of every task's repository: test settings (the grader brings its own), packaging, what only bloats archives.
SETTINGS_FILES = {
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "setup.py",
    "noxfile.py",
    "Makefile",
}
EXAMPLE_LENGTH = 90


@dataclass(frozen=True)
class Recipe:
    """One bug of one package. `start` is the character where the fixed text stands; tests are pytest node ids."""

    id: str
    path: str
    function: str
    kind: str
    line: int
    start: int
    fixed: str
    buggy: str
    level: str
    seed: int
    fail_to_pass: list[str]
    pass_to_pass: list[str]
    failure: list[str | int] | None = None  # test file and line where the first test broke
    certified: bool | None = None
    flaky: bool | None = None

    @classmethod
    def of(cls, bug: Bug, *, id: str, level: str, seed: int) -> Recipe:
        m = bug.mutation
        return cls(
            id=id,
            path=bug.path,
            function=m.function.qualname,
            kind=m.kind,
            line=m.line,
            start=m.start,
            fixed=m.old,
            buggy=m.new,
            level=level,
            seed=seed,
            fail_to_pass=list(bug.fail_to_pass),
            pass_to_pass=list(bug.pass_to_pass),
            failure=list(bug.failure) if bug.failure else None,
        )

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def task_tree(tree: dict[str, bytes]) -> dict[str, bytes]:
    """The part of an sdist that a task's repository holds."""
    return {path: data for path, data in tree.items() if PurePosixPath(path).name not in SETTINGS_FILES}


def mutation_of(recipe: Recipe, source: str) -> Mutation:
    """The recipe's mutation, checked against the source. Raises DataError where they do not fit."""
    function = next((f for f in find_functions(source) if f.qualname == recipe.function and f.holds(recipe.line)), None)
    end = recipe.start + len(recipe.fixed)
    if function is None or source[recipe.start : end] != recipe.fixed:
        raise DataError(f"recipe {recipe.id}: {recipe.path} is not the version that the recipe was made from")
    return Mutation(recipe.kind, recipe.start, end, recipe.line, recipe.fixed, recipe.buggy, function)


def build_task(recipe: Recipe, tree: dict[str, bytes], archive: Path, *, package: str) -> Task:
    """Write the task's archive and return the task. `tree`: the sdist's files (see `read_tree`)."""
    tree = task_tree(tree)
    source = tree[recipe.path].decode()
    mutation = mutation_of(recipe, source)
    buggy = mutation.apply(source)
    function = mutation.function
    edit = gold_edit(mutation, buggy)
    test_files = list(_support_files(tree, recipe))
    commit = build_archive(hidden_tree(tree, recipe.path, buggy), archive)
    return Task(
        instance_id=recipe.id,
        problem_statement=_issue(recipe, tree, edit, function.name),
        repo=package,
        base_commit=commit,
        patch=change_patch(recipe.path, buggy, source),
        test_patch=new_files_patch(tree, test_files),
        fail_to_pass=recipe.fail_to_pass,
        pass_to_pass=recipe.pass_to_pass,
        test_files=test_files,
        log_parser="junit",
        archive=str(archive),
        data_source="swe-rl-synth",
        certified=recipe.certified,
        flaky=recipe.flaky,
        env={
            "F": recipe.path,
            "R": f"{function.first},{function.last}",
            "N": str(function.first - 1),
            "PYTHONPATH": "src:.",
        },
        metadata={
            "level": recipe.level,
            "package": package,
            "kind": recipe.kind,
            "function": recipe.function,
            "edit": dataclasses.asdict(edit) if edit else None,
        },
    )


def _issue(recipe: Recipe, tree: dict[str, bytes], edit: Edit | None, name: str) -> str:
    test = recipe.fail_to_pass[0].split("::")[-1].split("[")[0]
    example = ""
    if recipe.failure:
        lines = tree[str(recipe.failure[0])].decode(errors="replace").split("\n")
        example = "".join(lines[int(recipe.failure[1]) - 1 :][:1]).strip()
    if not example.startswith(("assert", "self.assert")) or len(example) > EXAMPLE_LENGTH:
        example = ""
    return issue_text(recipe.level, name, edit, test, example, random.Random(f"{recipe.seed}:{recipe.id}"))


def _support_files(tree: dict[str, bytes], recipe: Recipe) -> list[str]:
    """The test module and what it may import or read: conftest files, package markers, helpers, small data files."""
    module = recipe.fail_to_pass[0].split("::")[0]
    folder = PurePosixPath(module).parent
    kept = []
    for path in sorted(tree):
        if not is_test_file(path):
            continue
        name = PurePosixPath(path).name
        is_module = name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))
        if path == module or (not is_module and PurePosixPath(path).is_relative_to(folder)) or name == "conftest.py":
            kept.append(path)
    return kept

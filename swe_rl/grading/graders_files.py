"""Which files are the grader's own: the hidden tests, and the program of the repository that runs them.

They are put back to the base before the tests run, hashed, and watched; what a patch does to them never counts.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection
from fnmatch import fnmatchcase

from swe_rl.errors import SweRlError
from swe_rl.grading.logs import parser_of
from swe_rl.grading.patch_files import PatchFormatError, split_patch
from swe_rl.grading.script_layout import applied_patches, rewrites, without_layout
from swe_rl.tasks.eval_script import eval_script_for
from swe_rl.tasks.test_command import END_MARKER, START_MARKER
from swe_rl.types import Task

TEST_NAMES = ("test_*.py", "*_test.py", "tests.py", "*.test.js", "*.test.ts", "*.spec.js", "*.spec.ts", "*_test.go")
TEST_FOLDERS = ("test", "tests", "testing", "__tests__", "spec", "e2e")
# Words of a command that come before the program that is meant.
_STARTERS = re.compile(r"(?:.*/)?(?:python[\d.]*|pypy[\d.]*|bash|sh|env|exec|time|timeout|nice|xvfb-run|[\d.]+[smh]?)$")


def graders_files(task: Task) -> list[str]:
    """Files that the grader brings or restores: named by the task, its test patch or its test ids; its test runner.

    A source file with nothing but doctests is none: an honest fix may change it. But one whose doctests show the bug, where the
    known fix is elsewhere, is: a patch could change what they expect.
    """
    doctests, gold = _doctest_modules(task), gold_files(task)
    failing = {test.partition("::")[0] for test in task.fail_to_pass}
    patched = _paths(graders_patch(task))
    tests = [
        name
        for name in (*task.test_files, *_files_of_ids(task))
        if name not in doctests or (gold and name not in gold and name in failing) or _is_test_beside(gold, name)
    ]
    return list(dict.fromkeys([*tests, *patched, *runner_files(task)]))


def _is_test_beside(gold: Collection[str], name: str) -> bool:
    return name not in gold and is_test_file((), name, everywhere=True)


def fixed_beside_tests(task: Task) -> list[str]:
    """Files of the task's own fix that the grader leaves as the patch has them, whatever their names: a conftest.py, say."""
    return sorted(gold_files(task) - set(graders_files(task)))


def helper_folders(task: Task) -> list[str]:
    """Folders of tests in which the grader's tests lie, those aside in which the task's own fix has a file."""
    folders: dict[str, None] = {}
    doctests = _doctest_modules(task)
    for name in (*task.test_files, *_paths(graders_patch(task)), *_files_of_ids(task)):
        if name in doctests:
            continue
        parts = name.split("/")[:-1]
        found = [number for number, part in enumerate(parts) if part in TEST_FOLDERS]
        # A package may be called `testing` or `spec`, and have its tests in a folder within: of those the innermost is meant.
        # Where no fix is known it may as well be the package that is to be fixed.
        outer = [number for number in found if parts[number] in ("tests", "__tests__")] or (
            found[-1:] if task.patch else []
        )
        if outer:
            folders["/".join(parts[: outer[0] + 1]) + "/"] = None
    fixed = fixed_beside_tests(task)
    return [folder for folder in folders if not any(name.startswith(folder) for name in fixed)]


def _files_of_ids(task: Task) -> list[str]:
    paths = [test.partition("::") for test in (*task.fail_to_pass, *task.pass_to_pass)]
    return list(dict.fromkeys(path for path, separator, _ in paths if separator and path.endswith(".py")))


def _doctest_modules(task: Task) -> set[str]:
    """Files of which every required test is a doctest, as pytest names them: `pkg/mod.py::pkg.mod.function`."""
    dotted, others = set(), set()
    for test in (*task.fail_to_pass, *task.pass_to_pass):
        path, _, name = test.partition("::")
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        # A function of a test has no dot in its name; the doctest of a module is called like it.
        parts = name.split(".")
        ends = [".".join(parts[:number]) for number in range(1, len(parts) + 1)]
        if any(f".{module}".endswith(f".{end}") for end in ends):
            if len(parts) > 1:
                dotted.add(path)
        else:
            others.add(path)
    return dotted - others


def graders_patch(task: Task) -> str:
    """The test patch: the task's, else the one that its own eval script applies where that holds nothing but tests.

    Not where the script goes on to write these files in ways of its own: it is run as it is then.
    """
    if task.test_patch.strip():
        return task.test_patch
    patches = applied_patches(task.eval_script)
    paths = _paths(patches[0]) if len(patches) == 1 else []
    if not paths or not all(is_test_file((), path, everywhere=True) for path in paths):
        return ""
    patch = patches[0].replace("\r\n", "\n").rstrip("\r") + "\n"
    rest = without_layout(task.eval_script, test_patch=patch, files=paths, base=task.base_commit)
    return "" if rewrites(rest, paths) else patch


def gold_files(task: Task) -> set[str]:
    """Files that the task's own fix touches."""
    return set(_paths(task.patch))


def _paths(patch: str) -> list[str]:
    if not patch.strip():
        return []
    try:
        return [path for section in split_patch(patch.encode("utf-8", "surrogateescape")) for path in section.paths]
    except PatchFormatError:
        return []


def runner_files(task: Task) -> list[str]:
    """Programs of the repository that the eval script runs between its markers (Django's tests/runtests.py), without gold's.

    None where the exit code of a program is all that is judged and no fix is known: the program may be what is to be fixed.
    """
    try:
        parser = parser_of(task)
        if parser == "junit" or (parser == "exit_code" and not task.patch):
            return []
        tests = tests_region(eval_script_for(task))
    except SweRlError:
        return []
    gold = gold_files(task)
    return [name for name in dict.fromkeys(_programs(tests, task.workdir)) if name not in gold]


def tests_region(script: str) -> str:
    """The part of an eval script between its markers; all of a script that has none."""
    _, found, rest = script.partition(START_MARKER)
    return rest.partition("\n")[2].partition(END_MARKER)[0] if found else script


def _programs(script: str, workdir: str) -> list[str]:
    found, folder = [], ""
    for line in script.replace("\\\n", " ").split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            words = line.split()
        command: list[str] = []
        for word in [*words, ";"]:
            if not re.fullmatch(r"[();<>|&{}]+", word):
                command.append(word)
                continue
            if len(command) == 2 and command[0] == "cd":
                folder = _inside(command[1], folder, workdir) or ""
            elif (program := _program(command)) and (name := _inside(program, folder, workdir)):
                found.append(name)
            command = []
    return found


def _program(command: list[str]) -> str:
    after_option = False
    for word in command:
        if word in ("-m", "-c"):
            return ""
        if word.startswith("-"):
            after_option = True
        elif not (re.match(r"\w+=", word) or _STARTERS.fullmatch(word)):
            if "/" in word or word.endswith((".py", ".sh")):
                return word
            if not after_option:
                return ""
            after_option = False  # the option's argument
    return ""


def _inside(path: str, folder: str, workdir: str) -> str:
    """`path` relative to the repository; "" where it is not in it."""
    full = posixpath.normpath(posixpath.join(workdir, folder, path))
    return full.removeprefix(workdir.rstrip("/") + "/") if full.startswith(workdir.rstrip("/") + "/") else ""


def is_test_file(graders: Collection[str], path: str, *, everywhere: bool) -> bool:
    """Whether `path` is one of `graders` (a folder there counts), or, with `everywhere`, looks like a test."""
    for name in graders:
        # A file in place of the folder above a test (a link, say) takes the test's place as well.
        if path == name or path.startswith(name.rstrip("/") + "/") or name.startswith(path + "/"):
            return True
    if not everywhere:
        return False
    folders, name = posixpath.split(path)
    return any(part in TEST_FOLDERS for part in folders.split("/")) or any(fnmatchcase(name, p) for p in TEST_NAMES)

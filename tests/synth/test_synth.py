"""The command end to end on a small repository: the same seed gives the same bytes; tests really decide."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.errors import DataError, UsageError
from swe_rl.tasks.load import load_tasks
from swe_rl.tasks.synth import command
from swe_rl.tasks.synth.functions import Function
from swe_rl.tasks.synth.inject import Bug
from swe_rl.tasks.synth.mutations import Mutation
from swe_rl.tasks.synth.quickstart import read_recipes
from swe_rl.tasks.synth.test_runs import TestServer

CORE = """\
def clamp(value, low, high):
    if value < low:
        return low
    return high if value > high else value


def untested(a, b):
    return a + b


def count(items, wanted):
    total = 0
    for item in items:
        if item == wanted:
            total += 1
    return total
"""
TESTS = """\
from pkg.core import clamp, count


def test_clamp_low():
    assert clamp(1, 2, 5) == 2


def test_clamp_high():
    assert clamp(9, 2, 5) == 5


def test_count():
    assert count([1, 2, 1], 1) == 2
"""


@pytest.fixture
def repository(tmp_path) -> Path:
    folder = tmp_path / "pkg-1.0"
    for name, text in {"pkg/__init__.py": "", "pkg/core.py": CORE, "tests/test_core.py": TESTS}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((folder / "archives").iterdir())}


def test_same_seed_same_tasks_and_only_bugs_that_tests_notice(repository, tmp_path) -> None:
    arguments = [
        "--from",
        str(repository),
        "--count",
        "6",
        "--per-function",
        "4",
        "--simple",
        "--seed",
        "3",
        "--no-certify",
        "--out",
    ]
    for name in ("one", "two"):
        assert command.main([*arguments, str(tmp_path / name)]) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    one, two = (load_tasks(tmp_path / name / "tasks.jsonl").tasks for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert (a.problem_statement, a.patch, a.base_commit) == (b.problem_statement, b.patch, b.base_commit)
    assert len(one) == 6
    assert {task.metadata["level"] for task in one} == {"L1", "L2", "L3"}
    assert all(task.fail_to_pass and task.pass_to_pass for task in one)
    assert not any(task.metadata["function"] == "untested" for task in one)
    assert len({task.patch for task in one}) == len(one)


def test_a_repository_without_passing_tests_is_refused(repository, tmp_path) -> None:
    (repository / "tests/test_core.py").write_text("import nothing_like_this\n")
    with pytest.raises(DataError, match="no test"):
        command.main(["--from", str(repository), "--out", str(tmp_path / "out")])


ADD = "def add(a, b):\n    return a + b\n"
ADD_TESTS = (
    "from pkg.{name} import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n\n\ndef test_none():\n    assert add\n"
)


def test_modules_that_cannot_be_read_are_skipped_and_counted(repository, tmp_path, capsys) -> None:
    """Latin-1 with a coding cookie, and code for another Python (here: a template that its test fills in)."""
    cookie = "# -*- coding: latin-1 -*-\n# \xe4\n"
    (repository / "pkg/latin.py").write_bytes((cookie + ADD).encode("latin-1"))
    (repository / "tests/test_latin.py").write_text(ADD_TESTS.format(name="latin"))
    (repository / "pkg/template.py").write_text(ADD + "{% more %}\n")
    (repository / "tests/test_template.py").write_text(
        "from pathlib import Path\n\n\ndef test_it():\n    path = Path('pkg/template.py').resolve()\n    names = {}\n"
        "    exec(compile(path.read_text().split('{%')[0], str(path), 'exec'), names)\n    assert names['add'](1, 2) == 3\n"
    )
    (repository / "tests/test_latin_too.py").write_bytes((cookie + ADD_TESTS.format(name="core")).encode("latin-1"))
    assert (
        command.main(
            ["--from", str(repository), "--count", "3", "--out", str(tmp_path / "out"), "--seed", "3", "--no-certify"]
        )
        == 0
    )
    assert all(task.env["F"] == "pkg/core.py" for task in load_tasks(tmp_path / "out" / "tasks.jsonl").tasks)
    err = capsys.readouterr().err
    assert "3 modules skipped" in err
    for path, why in {
        "pkg/latin.py": "not UTF-8",
        "pkg/template.py": "invalid syntax",
        "tests/test_latin_too.py": "UTF-8",
    }.items():
        assert any(path in line and why in line for line in err.splitlines()), (path, err)


def test_copies_of_a_module_have_tasks_of_their_own(tmp_path) -> None:
    folder = tmp_path / "copies-1.0"
    for name in ("one", "two"):
        (folder / "pkg").mkdir(parents=True, exist_ok=True)
        (folder / "tests").mkdir(exist_ok=True)
        (folder / "pkg" / f"{name}.py").write_text(ADD)
        (folder / "tests" / f"test_{name}.py").write_text(ADD_TESTS.format(name=name))
    (folder / "pkg" / "__init__.py").touch()
    assert command.main(["--from", str(folder), "--count", "9", "--no-certify", "--out", str(tmp_path / "out")]) == 0
    found = load_tasks(tmp_path / "out" / "tasks.jsonl")
    assert not found.rejected and {task.env["F"] for task in found.tasks} == {"pkg/one.py", "pkg/two.py"}
    assert len({task.archive for task in found.tasks}) == len(found.tasks) == len(digests(tmp_path / "out"))


def test_the_quickstarts_ids_stay() -> None:
    """Ids of tasks that exist: results and demonstrations go by them."""
    count = 0
    for package in read_recipes(Path(__file__).parents[2] / "data/quickstart/recipes"):
        for recipe in package.tasks:
            function = Function(recipe.function.rsplit(".", 1)[-1], recipe.function, 1, 1, 1, 9)
            mutation = Mutation(recipe.kind, recipe.start, 0, recipe.line, recipe.fixed, recipe.buggy, function)
            bug = Bug(recipe.path, mutation, "", (), (), None)
            others = {r.id for r in package.tasks} - {recipe.id}
            assert command.task_id(package.package, bug, others) == recipe.id
            count += 1
    assert count == 309


def test_tests_run_with_every_python_and_see_nothing_of_ours(tmp_path) -> None:
    """The machine's Pythons that have pytest, 3.10 among them where it is there."""
    (tmp_path / "test_a.py").write_text("import sys\n\n\ndef test_a():\n    assert 'synth' not in str(sys.path)\n")
    pythons = {sys.executable, *filter(None, (shutil.which(f"python3.{minor}") for minor in range(10, 15)))}
    check = "import pytest, sys; sys.exit(sys.version_info < (3, 10))"
    usable = [p for p in pythons if not subprocess.run([p, "-c", check], capture_output=True, check=False).returncode]
    for python in usable:
        with TestServer(python, tmp_path) as server:
            assert server.run(["test_a.py"], timeout=60).tests == {"test_a.py::test_a": "passed"}, python


@pytest.mark.slow
def test_tasks_are_certified_in_the_sandbox_that_is_found(repository, tmp_path, capsys) -> None:
    """The default: gold and empty patch in real sandboxes. The tests' module ends its lines as Windows does."""
    (repository / "tests/test_core.py").write_bytes(TESTS.replace("\n", "\r\n").encode())
    call = ["--from", str(repository), "--count", "2", "--seed", "3", "--out", str(tmp_path / "out"), "--repeat", "1"]
    assert command.main([*call, "--sandbox", "process"]) == 0
    made, certified = (load_tasks(tmp_path / "out" / name).tasks for name in ("tasks.jsonl", "tasks.certified.jsonl"))
    assert [task.instance_id for task in made] == [task.instance_id for task in certified] and len(made) == 2
    assert all(task.certified and task.flaky is False for task in certified) and made[0].certified is None
    assert "certified 2" in capsys.readouterr().out and (tmp_path / "out" / "tasks.certified.html").is_file()


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("click-8.1.7.tar.gz", "click"),
        ("pkg-1.0", "pkg"),
        ("my-project", "my-project"),
        ("a-b-2.0rc1", "a-b"),
        ("x", "x"),
    ],
)
def test_names_of_packages(tmp_path, name, package) -> None:
    (tmp_path / name).mkdir()
    assert command.package_name(tmp_path / name / ".") == package


def test_usage_errors(tmp_path) -> None:
    with pytest.raises(UsageError, match="L1, L2, L3"):
        command.main(["--from", ".", "--out", str(tmp_path), "--levels", "L9"])
    with pytest.raises(UsageError, match="no-such-flag"):
        command.main(["--from", ".", "--out", str(tmp_path), "--no-such-flag"])
    with pytest.raises(UsageError, match="not a folder"):
        command.main(["--from", "no/such file", "--out", str(tmp_path)])

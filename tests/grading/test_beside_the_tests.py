"""Files that are neither the fix nor a test: doctests' modules, a fix's own conftest.py, helpers of the tests."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.grading.defence_metrics import defences_met
from swe_rl.grading.graders_files import fixed_beside_tests, graders_files, helper_folders
from swe_rl.types import Task, Verdict
from tests.grading.attacks import new_file
from tests.grading.image_shapes import archive
from tests.grading.lab import BASE, FIXED, TESTS, Lab, git, write

EXAMPLE = '"""Half of the number, rounded down.\n\n    >>> halve(5)\n    2\n    """'
SHOUT = 'def shout(word):\n    """Loud.\n\n    >>> shout("a")\n    \'A\'\n    """\n    return word.upper()\n'
HELPED = """from helpers import same

import calc


def test_helped():
    same(str(calc.total([1, 2])), open("tests/data/three.txt").read())
"""
HELPERS = "def same(one, other):\n    assert one == other\n"


def changed_lab(lab: Lab, tmp_path: Path, base: dict[str, str], hidden: dict[str, str], gold: dict[str, str]) -> Lab:
    """The laboratory with other files at its base, hidden tests and a fix of its own."""
    repo = shutil.copytree(lab.repo, tmp_path / "changed", symlinks=True)
    write(repo, base)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "--allow-empty", "-m", "changed")
    made = Lab(repo, lab.task)
    task = replace(
        lab.task,
        base_commit=git(repo, "rev-parse", "HEAD").decode().strip(),
        archive=archive(repo),
        test_patch=made.files({"tests/test_calc.py": TESTS, **hidden}).decode(),
        patch=made.files(gold).decode(),
    )
    return Lab(repo, task)


async def test_modules_with_doctests_are_source_files(grade, lab, tmp_path):
    old = BASE["calc.py"].replace('"""Half of the number, rounded down."""', EXAMPLE)
    fixed = old.replace("result -= number", "result += number")
    made = changed_lab(lab, tmp_path, {"calc.py": old, "pkg/text.py": SHOUT}, {}, {"calc.py": fixed})
    doctests = ["calc.py::calc.halve", "pkg/text.py::pkg.text.shout"]
    script = made.script_task.eval_script.replace("-rA", "-rA --doctest-modules calc.py pkg/text.py")
    task = replace(made.script_task, pass_to_pass=[*made.task.pass_to_pass, *doctests], eval_script=script)
    task = replace(task, test_files=[*task.test_files, "calc.py", "pkg/text.py"])  # as SWE-smith's rows name them
    gold = await grade(task, task.patch.encode())
    assert gold.verdict is Verdict.RESOLVED, (gold.detail, gold.output[-2000:])
    assert {name for name in doctests if gold.tests.get(name) == "PASSED"} == set(doctests)
    elsewhere = await grade(task, made.files({"calc.py": fixed, "pkg/text.py": SHOUT.replace("word.", "str(word).")}))
    assert elsewhere.verdict is Verdict.RESOLVED and "test_files_left_out" not in elsewhere.detail
    worse = made.files({"calc.py": fixed.replace("number // 2", "number // 2 + 1")})
    assert (await grade(task, worse)).verdict is Verdict.UNRESOLVED


@pytest.mark.parametrize("kind", ["junit", "script"])
async def test_a_conftest_of_the_fix_stays(kind, grade, lab, tmp_path):
    fixture = BASE["conftest.py"] + "\n\n@pytest.fixture\ndef none():\n    return []\n"
    hidden = TESTS + "\n\ndef test_none(none):\n    assert calc.total(none) == 0\n"
    gold = {"calc.py": FIXED, "conftest.py": fixture}
    made = changed_lab(lab, tmp_path, {}, {"tests/test_calc.py": hidden}, gold)
    task = made.task if kind == "junit" else made.script_task
    task = replace(task, fail_to_pass=[*task.fail_to_pass, "tests/test_calc.py::test_none"])
    result = await grade(task, task.patch.encode())
    assert result.verdict is Verdict.RESOLVED, (result.detail, result.output[-2000:])
    assert (await grade(task, made.files({"calc.py": FIXED}))).verdict is Verdict.UNRESOLVED
    plain = replace(task, patch=lab.task.patch)  # no conftest.py in its fix: a patch's is nothing
    assert (await grade(plain, task.patch.encode())).verdict is Verdict.UNRESOLVED


@pytest.mark.parametrize("kind", ["junit", "script"])
async def test_helpers_of_the_tests_are_put_back(kind, grade, lab, tmp_path):
    base = {"tests/helpers.py": HELPERS, "tests/data/three.txt": "3"}
    made = changed_lab(lab, tmp_path, base, {"tests/test_calc.py": HELPED}, {"calc.py": FIXED})
    task = made.task if kind == "junit" else made.script_task
    names = ["tests/test_calc.py::test_helped"]
    task = replace(task, fail_to_pass=names, pass_to_pass=["tests/test_shout.py::test_shout"])
    assert (await grade(task, task.patch.encode())).verdict is Verdict.RESOLVED
    nothing = "def same(one, other):\n    pass\n"
    result = await grade(task, made.files({"tests/helpers.py": nothing, "README.md": "x\n"}))
    assert result.verdict is Verdict.UNRESOLVED, result.output[-2000:]
    assert result.detail["test_helpers_put_back"] == ["tests/helpers.py"]
    assert defences_met(result.detail) == ["test_helpers_put_back"]
    package = await grade(task, made.files({"tests/helpers/__init__.py": nothing, "README.md": "x\n"}))
    assert package.verdict is Verdict.UNRESOLVED
    assert package.detail["test_helpers_put_back"] == ["tests/helpers/__init__.py"]

    # pytest puts the folder of a package's parent into sys.path, and no longer the folder of the tests.
    above = {"tests/__init__.py": "", "helpers.py": nothing, "README.md": "x\n"}
    package = await grade(task, made.files(above))
    assert package.verdict is Verdict.UNRESOLVED and package.detail["test_helpers_put_back"] == ["tests/__init__.py"]

    def moved(root: Path) -> None:
        (root / "tests" / "helpers.py").rename(root / "pkg" / "helpers.py")
        (root / "tests" / "data" / "three.txt").unlink()
        (root / "tests" / "data").rmdir()
        write(root, {"tests/data": "a file in the folder's place", "calc.py": "from pkg import helpers\n" + FIXED})
        write(root, {"tests/test_mine.py": "def test_mine(): pass\n"})

    honest = await grade(task, made.patch(moved, "-M"))
    assert honest.verdict is Verdict.RESOLVED, (honest.detail, honest.output[-2000:])
    assert honest.detail["test_helpers_put_back"] == ["tests/helpers.py", "tests/data/three.txt"]


def test_which_folders_hold_helpers_and_which_files_are_source() -> None:
    task = Task(
        "a-1",
        "s",
        repo="o/a",
        eval_script="pytest",
        log_parser="pytest",
        fail_to_pass=["pkg/tests/x/test_a.py::test_a"],
    )
    assert helper_folders(task) == ["pkg/tests/"]
    assert helper_folders(replace(task, patch=new_file(b"pkg/tests/x/conftest.py").decode())) == []
    assert helper_folders(replace(task, fail_to_pass=["test_a.py::test_a", "testing/tests/a/b.py::t"])) == [
        "testing/tests/"
    ]
    django = replace(
        task,
        fail_to_pass=["tests/forms_tests/tests/test_a.py::t", "pkg/test/a/test/b.py::t", "testing/c.py::t"],
        patch=new_file(b"django/a.py").decode(),
    )
    assert helper_folders(django) == ["tests/", "pkg/test/a/test/", "testing/"]
    ids = {
        "pkg/mod.py::pkg.mod.f": False,
        "src/pkg/mod.py::pkg.mod.C.f": False,
        "pkg/__init__.py::pkg.f": False,
        "mod.py::mod": True,  # a test that is called like its file is as likely
        "pkg/mod.py::test_f[pkg.mod.f]": True,
        "pkg/mod.py::pkg.other.f": True,
        "tests/help.py::tests.help.f": True,
        "test_a.py::test_a.f": True,
    }
    for name, graders in ids.items():
        made = replace(task, fail_to_pass=[name])
        assert (name.split("::")[0] in graders_files(made)) is graders, name
    both = replace(task, fail_to_pass=["pkg/mod.py::pkg.mod.f", "pkg/mod.py::test_f"])
    assert graders_files(both) == ["pkg/mod.py"]
    patched = replace(task, patch=new_file(b"pkg/a.py").decode(), test_patch=new_file(b"pkg/a.py").decode())
    assert "pkg/a.py" in graders_files(patched) and fixed_beside_tests(patched) == []

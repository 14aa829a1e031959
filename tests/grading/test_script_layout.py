"""Eval scripts that lay out the graders' tests themselves, as swebench's do: git's own commands run, nothing is `tampered`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from unidiff import PatchSet

from swe_rl.grading.graders_files import graders_patch
from swe_rl.grading.script_layout import without_layout
from swe_rl.tasks.eval_script import eval_script_for
from swe_rl.tasks.load import load_tasks
from swe_rl.types import Task, Verdict
from tests.grading.image_shapes import archive
from tests.grading.lab import BASE, FIXED, TESTS, Lab, git, write

RUN = "python -m pytest -rA -p no:cacheprovider tests/test_calc.py tests/test_shout.py"
LAY_OUT = "git checkout {base} tests/test_shout.py\ngit apply -v - <<'EOF_114329324912'\n{patch}\nEOF_114329324912\n"
# swebench's, which goes on after the tests, and SWE-Gym's, whose setup_script lays them out.
FORMS = {
    "swebench": f"#!/bin/bash\nset -uxo pipefail\ngit status\n{LAY_OUT}: '>>>>> Start Test Output'\n{RUN}\n"
    ": '>>>>> End Test Output'\ngit checkout {base} tests/test_shout.py\n",
    "swe-gym": f"#!/bin/bash\nset -xo pipefail\n{LAY_OUT.replace('{base} ', '{base} -- ')}: '>>>>> Start Test Output'\n"
    f"(\n{RUN}\n)\nswe_rl_status=$?\n: '>>>>> End Test Output'\nexit $swe_rl_status\n",
    "javascript": f"#!/bin/bash\nset -uxo pipefail\n{LAY_OUT.replace('-v -', '--verbose --reject -')}"
    f": '>>>>> Start Test Output'\n{RUN}\n: '>>>>> End Test Output'\ngit checkout {{base}} tests/test_shout.py\n",
}


def layout_task(lab: Lab, form: str, crlf: str = "one\r\ntwo\r\n") -> Task:
    """Hidden tests: one file changed, one created, and a file with Windows' line ends that a test looks at."""
    shout = BASE["tests/test_shout.py"].replace("'A'", "'A' and shout('b') == 'B'")
    calc = (
        TESTS + "\n\ndef test_line_ends():\n    assert open('tests/lines.txt', 'rb').read() == b'one\\r\\ntwo\\r\\n'\n"
    )
    new = {"tests/test_calc.py": calc, "tests/test_shout.py": shout, "tests/lines.txt": crlf}
    patch = lab.files(new).decode()
    return replace(
        lab.script_task,
        test_patch=patch,
        eval_script=FORMS[form].format(base=lab.task.base_commit, patch=patch),
        fail_to_pass=[*lab.task.fail_to_pass, "tests/test_calc.py::test_line_ends"],
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("row", ["whole", "without test patch", "script alone"])
async def test_scripts_that_lay_out_the_tests(form, row, grade, lab):
    task = layout_task(lab, form)
    if row != "whole":  # Windows' line ends within a script are not kept: only a patch beside it has them
        task = replace(task, test_patch="", fail_to_pass=lab.task.fail_to_pass)
    if row == "script alone":  # as /container/evaluate gets it
        script = task.eval_script.replace(RUN, f"{RUN} --deselect tests/test_calc.py::test_line_ends")
        task = replace(
            task,
            base_commit="",
            fail_to_pass=[],
            pass_to_pass=[],
            test_files=[],
            log_parser="exit_code",
            eval_script=script,
        )
    gold = await grade(task, lab.task.patch.encode())
    assert gold.verdict is Verdict.RESOLVED, (gold.detail, gold.output[-2000:])
    assert (await grade(task, lab.files({"README.md": "x\n"}))).verdict is Verdict.UNRESOLVED
    emptied = {"tests/test_shout.py": "def test_shout(): pass\n", "tests/test_calc.py": "def test_total(): pass\n"}
    cheat = await grade(task, lab.files({**emptied, "README.md": "x\n"}))
    assert cheat.verdict is Verdict.UNRESOLVED
    assert sorted(cheat.detail["test_files_left_out"]) == ["tests/test_calc.py", "tests/test_shout.py"]
    writes = FIXED + "open(__file__.replace('calc.py', 'tests/test_shout.py'), 'a').write('# x')\n"
    assert (await grade(task, lab.files({"calc.py": writes}))).verdict is Verdict.TAMPERED


def test_only_the_lay_out_of_the_tests_is_left_out(lab):
    task = layout_task(lab, "swebench")

    def executed(script: str, patch: str = task.test_patch) -> str:
        files = ["tests/test_shout.py", "tests/a b.py"]
        return without_layout(script, test_patch=patch, files=files, base=lab.task.base_commit)

    laid_out = executed(task.eval_script)
    assert laid_out == FORMS["swebench"].replace(LAY_OUT, ":\n:\n").replace(
        "git checkout {base} tests/test_shout.py", ":"
    )
    unix = layout_task(lab, "swebench", "one\n")
    assert executed(unix.eval_script.replace("\n", "\r\n"), unix.test_patch).replace("\r\n", "\n") == laid_out
    base = lab.task.base_commit
    kept = [
        f"git checkout {base} tests/test_shout.py calc.py",
        f"git checkout {base} tests/test_shout.py && make",
        f"git checkout {base}",
        "git checkout -- .",
        "git checkout HEAD calc.py",
        f"git checkout {'b' * 40} tests/test_shout.py",
        "git checkout main tests/test_shout.py",
        'git checkout "$BASE" tests/test_shout.py',
    ]
    for line in kept:
        assert executed(f"a\n{line}\nb\n") == f"a\n{line}\nb\n"
    for line in (
        f"git checkout {base} -- 'tests/a b.py'",
        f"  git checkout {base[:12]} tests/a b.py tests/test_shout.py",
        "git checkout HEAD tests/test_shout.py",
        "git checkout -- tests/test_shout.py",
    ):
        assert executed(f"a\n{line}\nb\n") == "a\n:\nb\n"
    assert executed(unix.eval_script.replace(unix.test_patch, unix.test_patch.strip()), unix.test_patch) == laid_out
    assert executed(task.eval_script, patch="") == task.eval_script
    other = task.eval_script.replace("+++ b/tests/test_calc.py", "+++ b/tests/test_other.py")
    assert executed(other) == other
    both = task.eval_script.replace("git status", "git apply /build.patch")
    assert executed(both) == both


def test_a_script_that_writes_the_tests_in_ways_of_its_own_is_run_as_it_is(lab):
    task = replace(layout_task(lab, "swebench"), test_patch="", fail_to_pass=[], pass_to_pass=[], test_files=[])
    assert graders_patch(task)
    for line in ("git checkout main tests/test_shout.py", "git restore -s main -- tests/", "git checkout -- ."):
        assert graders_patch(replace(task, eval_script=task.eval_script.replace("git status", line))) == ""
    for line in (
        "git checkout main",
        "git checkout -q main docs",
        f"git checkout -qf {lab.task.base_commit} tests/test_shout.py",
    ):
        assert graders_patch(replace(task, eval_script=task.eval_script.replace("git status", line)))


def _old_side(patch: str, root: Path) -> None:
    """The files that the patch changes, with its context where it says that it is."""
    for file in PatchSet(patch):
        if file.is_added_file:
            continue
        lines: list[str] = []
        for hunk in file:
            lines += [f"# line {number}\n" for number in range(len(lines) + 1, hunk.source_start)]
            lines += [line.value for line in hunk if not line.is_added]
        write(root, {file.source_file.removeprefix("a/"): "".join(lines)})


def _real_rows(cases: Path) -> list[Task]:
    """Of every repository one row, and every row whose test patch creates a file."""
    tasks = [task for name in ("swebench_lite_80", "swegym_3") for task in load_tasks(cases / f"{name}.jsonl").tasks]
    first = {task.repo: task.instance_id for task in reversed(tasks)}
    found = [t for t in tasks if first[t.repo] == t.instance_id or "--- /dev/null" in t.test_patch]
    assert len({task.repo for task in found}) == 9 and any("--- /dev/null" in task.test_patch for task in found)
    return found


async def test_scripts_of_real_rows(cases, grade, tmp_path):
    """The row's script as it is, but in place of its tests a look at the test files: are they base and test patch?"""
    for number, row in enumerate(_real_rows(cases)):
        root = tmp_path / str(number) / "repo"
        root.mkdir(parents=True)
        _old_side(row.patch, root)
        _old_side(row.test_patch, root)
        git(root, "init", "-q")
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", "base")
        base = git(root, "rev-parse", "HEAD").decode().strip()
        task = replace(row, base_commit=base, image="", archive=archive(root), log_parser="exit_code", env={})
        script = eval_script_for(task).replace(row.base_commit, base)
        git(root, "apply", "-", data=task.test_patch.encode())
        names = [file.path for file in PatchSet(task.test_patch) if not file.is_removed_file]
        blobs = git(root, "hash-object", *names).decode().split()
        look = f'test "$(git hash-object {" ".join(names)} | xargs)" = "{" ".join(blobs)}"'
        seen = re.sub(
            r"(Start Test Output'\n)(\(\n)?.*?(\n\)\n.*?)?(\n?: '>>>>> End)",
            lambda found: f"{found[1]}{found[2] or ''}{look}{found[3] or ''}{found[4]}",  # noqa: B023
            script,
            flags=re.DOTALL,
        )
        assert look in seen
        assert script.count("git checkout") + script.count("git apply") >= 2
        result = await grade(replace(task, eval_script=seen), task.patch.encode())
        assert result.verdict is Verdict.RESOLVED, (task.instance_id, result.detail, result.output[-2000:])

"""`swe-rl data eval-script` and `swe-rl grade-log` from the command line: every real case, bad input, a very long log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl import cli

NAME = "django__django-11099"


@pytest.fixture
def call(cases: Path) -> list[str]:
    return ["grade-log", "--tasks", str(cases / "swebench_lite_80.jsonl"), "--instance-id"]


def test_every_real_case(cases: Path, call: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    folders = sorted(path.parent for path in cases.glob("evaluations/*/eval.sh"))
    assert len(folders) == 47
    for folder in folders:
        arguments = ["--tasks", call[2], "--instance-id", folder.name]
        assert cli.main(["data", "eval-script", *arguments]) == 0
        assert capfdbinary.readouterr().out == (folder / "eval.sh").read_bytes()
        assert cli.main([*call, folder.name, "--log", str(folder / "test_output.txt")]) == 0
        entry = json.loads(capfdbinary.readouterr().out)[folder.name]
        official = json.loads((folder / "report.json").read_bytes())[folder.name]
        assert {name: entry[name] for name in official} == official
        assert (entry["verdict"] == "resolved") is official["resolved"]


@pytest.mark.parametrize(
    ("content", "code", "verdict"),
    [
        (b"", None, "infra_error"),
        (b"\n \n", None, "infra_error"),
        (b"", 1, "infra_error"),
        (b"killed\n", 137, "unresolved"),
        (b"killed\n", 124, "test_timeout"),
        (bytes(range(256)) * 4000, None, "infra_error"),
        (b"\x00" * 100_000, 0, "unresolved"),
        ("+ : '>>>>> Start Test Output'\nä\ufffd\n".encode("utf-16"), None, "infra_error"),
    ],
)
def test_logs_that_are_none(
    content: bytes, code: int | None, verdict: str, call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    assert cli.main([*call, NAME, "--log", str(log), *([] if code is None else ["--exit-code", str(code)])]) == 0
    entry = json.loads(capsys.readouterr().out)[NAME]
    assert (entry["verdict"], entry["resolved"], entry["patch_successfully_applied"]) == (verdict, False, False)
    assert entry["problems"] and "tests_status" not in entry


def test_bad_input_is_said_in_one_line(call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("x")
    for arguments, code, words in (
        ([*call, NAME, "--log", str(tmp_path / "nope")], 1, "no such log file"),
        ([*call, NAME, "--log", str(tmp_path)], 1, "no such log file"),
        ([*call, "nope-1", "--log", str(tmp_path / "log")], 1, "no task 'nope-1' among 80"),
        (
            ["grade-log", "--tasks", "nope.jsonl", "--instance-id", NAME, "--log", str(tmp_path / "log")],
            1,
            "nope.jsonl",
        ),
        (["data", "eval-script", *call[1:], "nope-1"], 1, "no task 'nope-1' among 80"),
    ):
        assert cli.main(arguments) == code
        error = capsys.readouterr().err.strip()
        assert words in error and "\n" not in error
    for arguments in ([*call, NAME], [*call, NAME, "--log", "x", "--exit-code", "one"], ["data", "eval-script"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("name", "megabytes", "limit"),
    [
        (NAME, 25, 250),
        pytest.param(NAME, 100, 550, marks=pytest.mark.slow),
        pytest.param("astropy__astropy-12907", 100, 550, marks=pytest.mark.slow),
    ],
)
def test_a_very_long_log(name: str, megabytes: int, limit: int, cases: Path, call: list[str], tmp_path: Path) -> None:
    """Its results are read as those of the same log without the noise, in bounded memory (`limit` MB at the most)."""
    task = next(
        row for row in map(json.loads, Path(call[2]).read_text("utf-8").splitlines()) if row["instance_id"] == name
    )
    tests = json.loads(task["FAIL_TO_PASS"]) + json.loads(task["PASS_TO_PASS"])
    results = [f"{test} ... ok\n" if name == NAME else f"PASSED {test}\n" for test in tests]
    noise = "".join(
        f"DEBUG {i} some code under test prints what it does, again and again and again\n" for i in range(13_500)
    )
    log = tmp_path / "log"
    with log.open("w") as file:
        file.write("+ : '>>>>> Start Test Output'\n")
        for number in range(megabytes):
            file.writelines(results[number::megabytes])
            file.write(noise)
        file.write(f"Ran 3 tests in 0.1s\n== {len(results)} passed in 0.1s ==\n+ : '>>>>> End Test Output'\n")
    assert log.stat().st_size >= megabytes << 20
    watcher = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, file=sys.stderr)"
    )
    command = [sys.executable, "-c", watcher, sys.executable, "-m", "swe_rl", *call, name, "--log", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert json.loads(done.stdout)[name]["verdict"] == "resolved"
    assert int(done.stderr) < limit, done.stderr

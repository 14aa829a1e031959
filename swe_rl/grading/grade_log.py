"""`swe-rl grade-log`: a report in SWE-bench's form from the log of an eval script alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from swe_rl.errors import DataError
from swe_rl.grading.logs import ParsedLog, parse_log
from swe_rl.grading.logs_junit import parse_junit
from swe_rl.grading.report import judge, report_entry
from swe_rl.tasks.load import find_task
from swe_rl.types import Task

MAX_LOG_BYTES = 512 << 20


def main(argv: list[str]) -> int:
    """Print the report. Exit code 0 whatever the verdict; 1 where task or log cannot be read; 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="swe-rl grade-log",
        description="Grade the log of a task's eval script and print a report in SWE-bench's form, with our verdict beside"
        " it. Nothing is run. 'resolved' is the official harness's decision; 'verdict' also wants a log that can be believed.",
    )
    parser.add_argument("--tasks", required=True, help="dataset in any known form (JSONL, JSON, Parquet, folder)")
    parser.add_argument("--instance-id", required=True, help="which task")
    parser.add_argument(
        "--log", required=True, type=Path, help="the eval script's output (test_output.txt), or JUnit XML"
    )
    parser.add_argument("--exit-code", type=int, default=None, help="the eval script's exit code, if it is known")
    parser.add_argument("--json", action="store_true", help="one compact line in place of indented JSON")
    arguments = parser.parse_args(argv)
    task = find_task(arguments.tasks, arguments.instance_id, for_training=False)
    parsed = _parse(task, arguments.log, arguments.exit_code)
    judgement = judge(task, parsed, arguments.exit_code)
    report = {task.instance_id: report_entry(judgement, parsed)}
    print(json.dumps(report, indent=None if arguments.json else 4, ensure_ascii=True))
    return 0


def _parse(task: Task, path: Path, returncode: int | None) -> ParsedLog:
    text = read_log(path)
    if not text.lstrip("\ufeff \r\n").startswith(("<?xml", "<testsuite")):
        return parse_log(task, text, returncode=returncode)
    wanted = [*task.fail_to_pass, *task.pass_to_pass]
    return ParsedLog(parse_junit(path.read_bytes(), wanted), complete=True, applied=True, parser="junit")


def read_log(path: Path) -> str:
    """The log as text; bytes that are no UTF-8 are replaced. Raises DataError where it is missing or too large."""
    if not path.is_file():
        raise DataError(f"{path}: no such log file")
    if path.stat().st_size > MAX_LOG_BYTES:
        raise DataError(f"{path}: the log is larger than {MAX_LOG_BYTES >> 20} MB")
    return path.read_bytes().decode("utf-8", errors="replace")

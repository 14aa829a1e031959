"""What a certification has finished, on disk line by line, so that an interrupted one continues where it stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from types import TracebackType

from swe_rl.config import Config
from swe_rl.errors import DataError, UsageError
from swe_rl.grading.cache import GRADED_METADATA, GRADED_SETTINGS, grader_version
from swe_rl.tasks.certify.outcome import UNKNOWN, Outcome
from swe_rl.tasks.eval_script import eval_script_for
from swe_rl.types import Task

_UNGRADED = ("certified", "flaky", "metadata", "data_source", "problem_statement")  # fields that change no grading


def task_key(task: Task, repeat: int, sandbox: str, config: Config) -> str:
    """A hash of everything that a task's outcome depends on: a changed task is certified again, and so is one whose gradings
    would go by other settings or by another grader."""
    values = {k: v for k, v in dataclasses.asdict(task).items() if k not in _UNGRADED}
    values["eval_script"] = _script(task)
    values["metadata"] = [task.metadata.get(name) for name in GRADED_METADATA]
    if task.archive and Path(task.archive).is_file():
        status = Path(task.archive).stat()
        values["archive"] = [task.archive, status.st_size, status.st_mtime_ns]
    settings = [getattr(config, name) for name in GRADED_SETTINGS]
    text = json.dumps([values, repeat, sandbox, settings, grader_version()], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:24]


def _script(task: Task) -> str:
    """The script that would run, whoever makes it: the row's, swebench's, ours. "" where none can be made, or none runs."""
    if task.log_parser == "junit":
        return task.eval_script
    try:
        return eval_script_for(task)
    except (DataError, UsageError):
        return ""


class Journal:
    """Outcomes by task key in a JSONL file. A line that a crash cut in two is dropped when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.finished: dict[str, Outcome] = {}

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._read()
        self._file = self.path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read(self) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
                self.finished[entry["key"]] = Outcome.from_dict(entry["outcome"])
            except (ValueError, KeyError, TypeError):
                continue  # a damaged line costs one task's work, which is done again
        if len(whole) != len(data):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))

    def add(self, key: str, outcome: Outcome) -> None:
        """Record a finished task at once. `unknown` outcomes are not kept: the next run tries them again."""
        if outcome.status == UNKNOWN:
            return
        self.finished[key] = outcome
        self._file.write(json.dumps({"key": key, "outcome": outcome.to_dict()}, ensure_ascii=True) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

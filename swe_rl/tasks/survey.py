"""What a dataset holds, counted in one pass with flat memory: the numbers behind `swe-rl data inspect`."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.errors import DataError
from swe_rl.tasks.eval_script import script_maker
from swe_rl.tasks.forms import COLUMNS, form_of
from swe_rl.tasks.images import default_image
from swe_rl.tasks.load import RowError, not_certified, read_row
from swe_rl.tasks.rows import files_of, iter_rows
from swe_rl.types import Task

_WANTED = (
    "repo",
    "base_commit",
    "image",
    "eval_script",
    "patch",
    "test_patch",
    "fail_to_pass",
    "pass_to_pass",
    "version",
)
KEPT_ERRORS = 20


@dataclass
class Survey:
    """Counts over a dataset's rows. `missing`: usable tasks that lack a field; `errors`: the first refused rows."""

    path: str
    files: int = 0
    rows: int = 0
    usable: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    repos: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)
    certification: Counter[str] = field(default_factory=Counter)
    scripts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    errors: list[RowError] = field(default_factory=list)
    statement_chars: list[int] = field(default_factory=list)
    fail_to_pass: list[int] = field(default_factory=list)
    pass_to_pass: list[int] = field(default_factory=list)
    sample: Task | None = None

    def to_dict(self, top: int = 20) -> dict[str, Any]:
        """The survey as JSON: counters cut to their `top` largest entries, with how many there are."""
        return {
            "path": self.path,
            "files": self.files,
            "rows": self.rows,
            "usable": self.usable,
            "rejected": self.rows - self.usable,
            "forms": dict(self.forms),
            "repos": dict(self.repos.most_common(top)),
            "distinct_repos": len(self.repos),
            "data_sources": dict(self.sources.most_common(top)),
            "missing_fields": dict(self.missing),
            "image_patterns": dict(self.images.most_common(top)),
            "certification": dict(self.certification),
            "eval_scripts": dict(self.scripts),
            "reject_reasons": dict(self.reasons.most_common(top)),
            "first_rejected": [str(error) for error in self.errors],
            "statement_chars": spread(self.statement_chars),
            "fail_to_pass": spread(self.fail_to_pass),
            "pass_to_pass": spread(self.pass_to_pass),
            "sample": self.sample.instance_id if self.sample else None,
        }


def spread(values: list[int]) -> dict[str, int]:
    """Minimum, median, 95th percentile and maximum (all 0 where there is no value)."""
    ordered = sorted(values) or [0]
    at = [ordered[int(share * (len(ordered) - 1))] for share in (0.0, 0.5, 0.95, 1.0)]
    return dict(zip(("min", "median", "p95", "max"), at, strict=True))


def survey(path: str | Path, on_row: Any = None) -> Survey:
    """Read every row of `path` once. `on_row(count)` is called now and then, for a progress bar.

    Raises DataError where the file cannot be read at all.
    """
    result = Survey(str(path), files=len(files_of(path)))
    seen: set[bytes] = set()
    makers: dict[tuple[str, str], str] = {}
    for raw in iter_rows(path, COLUMNS):
        result.rows += 1
        if on_row is not None and result.rows % 500 == 0:
            on_row(result.rows)
        item = read_row(raw)
        if isinstance(item, Task) and not _first_time(item.instance_id, seen):
            item = RowError(raw.file, raw.line, f"instance_id {item.instance_id} appears twice")
        if isinstance(item, RowError):
            _count_error(result, item)
            continue
        result.forms[form_of(raw.value or {})] += 1
        _count_task(result, item, makers)
    if result.rows == 0:
        raise DataError(f"{path}: the file holds no row")
    return result


def _first_time(instance_id: str, seen: set[bytes]) -> bool:
    key = hashlib.blake2b(instance_id.encode(), digest_size=12).digest()
    if key in seen:
        return False
    seen.add(key)
    return True


def _count_error(result: Survey, error: RowError) -> None:
    result.reasons[_kind(error.reason)] += 1
    if len(result.errors) < KEPT_ERRORS:
        result.errors.append(error)


def _kind(reason: str) -> str:
    """The reason without what differs from row to row."""
    if "appears twice" in reason:
        return "instance_id appears twice"
    return reason.split(":")[0] if reason.startswith("not JSON") else reason[:90]


def _count_task(result: Survey, task: Task, makers: dict[tuple[str, str], str]) -> None:
    result.usable += 1
    result.repos[task.repo or "(none)"] += 1
    result.sources[task.data_source or "(none)"] += 1
    result.missing.update(name for name in _WANTED if not getattr(task, name))
    result.images[_image_pattern(task)] += 1
    result.certification[not_certified(task) or "certified"] += 1
    result.scripts[_script(task, makers)] += 1
    result.statement_chars.append(len(task.problem_statement))
    result.fail_to_pass.append(len(task.fail_to_pass))
    result.pass_to_pass.append(len(task.pass_to_pass))
    result.sample = result.sample or task


def _script(task: Task, makers: dict[tuple[str, str], str]) -> str:
    """Where the eval script comes from. `makers` keeps what was found out for a repository and version."""
    if task.eval_script:
        return "in the row"
    if task.log_parser == "junit":
        return "not needed (junit)"
    key = (task.repo, task.version)
    if key not in makers:
        makers[key] = script_maker(task)
    return makers[key]


def _image_pattern(task: Task) -> str:
    """The image with its instance-specific part written as a field, so that equal rules count together."""
    if not task.image:
        return "(none)"
    if task.image == default_image(task.instance_id, task.repo, task.data_source):
        head = task.image.split("/", 1)[0]
        return f"{head}/... (published rule)"
    for name in (task.instance_id, task.instance_id.lower()):
        for written in (name, name.replace("__", "_1776_"), name.replace("__", "_s_")):
            if written in task.image:
                return task.image.replace(written, "{instance_id}")
    return task.image

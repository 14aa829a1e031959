"""Tasks from files: the one door through which every dataset form comes in, and our own form goes out.

A row that cannot be used becomes a `RowError` (file, line, reason); a file with none usable is one `DataError`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.errors import DataError, SweRlError
from swe_rl.tasks.forms import COLUMNS, task_from_row
from swe_rl.tasks.printable import plain
from swe_rl.tasks.rows import RawRow, iter_rows
from swe_rl.types import Task

SHOWN_ROWS = 20  # rejected rows that a report names


@dataclass(frozen=True)
class RowError:
    """Why one row cannot be used. `line` is 1-based: the line of a text file, the row of an array or Parquet file."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass
class TaskSet:
    """The usable tasks of a file, what was refused, and what certification left out (instance id: reason)."""

    tasks: list[Task]
    rejected: list[RowError] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """One line: "120 tasks; 3 rows rejected; 12 left out (10 not certified, 2 flaky)"."""
        parts = [f"{len(self.tasks)} tasks"]
        if self.rejected:
            parts.append(f"{len(self.rejected)} rows rejected")
        if self.left_out:
            counts = Counter(self.left_out.values())
            parts.append(
                f"{len(self.left_out)} left out ({', '.join(f'{n} {why}' for why, n in counts.most_common())})"
            )
        return "; ".join(parts)

    def report(self) -> str:
        """The summary, and below it a line for each of the first `SHOWN_ROWS` rejected rows."""
        lines = [self.summary(), *(f"  rejected {plain(str(error))}" for error in self.rejected[:SHOWN_ROWS])]
        if len(self.rejected) > SHOWN_ROWS:
            lines.append(f"  and {len(self.rejected) - SHOWN_ROWS} more rejected rows")
        return "\n".join(lines)


def read_row(raw: RawRow, *, for_training: bool = True, image_template: str = "") -> Task | RowError:
    """The task of one raw row, or why there is none (`for_training`, `image_template`: see `task_from_row`)."""
    if raw.value is None:
        return RowError(raw.file, raw.line, raw.problem)
    try:
        name = f"{_stem(raw.file)}-{raw.line}"
        return task_from_row(raw.value, fallback_id=name, for_training=for_training, image_template=image_template)
    except (ValueError, RecursionError) as error:
        return RowError(raw.file, raw.line, str(error))
    except SweRlError:
        raise  # a wrong setting, not a wrong row
    except Exception as error:  # rows are hostile input: what no check expected costs one row, not the run
        return RowError(raw.file, raw.line, f"{type(error).__name__}: {error}")


def _stem(file: str) -> str:
    return Path(file).name.split(".", 1)[0].replace(" ", "_").lstrip("-") or "row"


def iter_tasks(path: str | Path) -> Iterator[Task | RowError]:
    """Stream the rows of a file or folder. A second row with the same instance id is a RowError.

    Raises DataError where the file is missing, empty, damaged or of no known form.
    """
    return (item for _, item in _located(path))


def _located(path: str | Path, image_template: str = "") -> Iterator[tuple[RawRow, Task | RowError]]:
    """Each row as found, and what `iter_tasks` says of it."""
    seen: dict[str, str] = {}
    for raw in iter_rows(path, COLUMNS):
        result = read_row(raw, image_template=image_template)
        if isinstance(result, Task):
            first = seen.setdefault(result.instance_id, f"{raw.file}:{raw.line}")
            if first != f"{raw.file}:{raw.line}":
                result = RowError(raw.file, raw.line, f"instance_id {result.instance_id} was already read at {first}")
        yield raw, result


def load_tasks(
    path: str | Path,
    *,
    only_certified: bool = False,
    with_scripts: bool = False,
    image_template: str = "",
    limit: int = 0,
) -> TaskSet:
    """All usable tasks of `path`. With `only_certified`, those that `swe-rl data certify` passed and found not flaky.

    with_scripts: make the eval scripts that rows lack now, and reject rows for which that cannot be done, so that a run
    learns of it before its first attempt. image_template: for rows that name no image (`task_from_row`). limit: read no
    further than that many usable tasks (0 = all).
    Raises DataError where the file cannot be read, no row is usable, or certification leaves none.
    """
    result = TaskSet([])
    for raw, item in _located(path, image_template):
        if isinstance(item, RowError):
            result.rejected.append(item)
        elif only_certified and (reason := not_certified(item)):
            result.left_out[item.instance_id] = reason
        elif with_scripts and (problem := _add_script(item)):
            result.rejected.append(RowError(raw.file, raw.line, problem))
        else:
            result.tasks.append(item)
            if len(result.tasks) == limit:
                break
    if not result.tasks and result.left_out:
        raise DataError(
            f"{path}: {result.summary()}. Run `swe-rl data certify {path}` and use its output,"
            " or take uncertified tasks with --no-only-certified"
        )
    if not result.tasks:
        first = f"; the first: {result.rejected[0]}" if result.rejected else ""
        raise DataError(f"{path}: none of its {len(result.rejected)} rows can be used{first}")
    return result


def _add_script(task: Task) -> str:
    """Fill `task.eval_script`; returns why that is not possible, or ""."""
    from swe_rl.tasks.eval_script import eval_script_for  # it imports this module for its command

    if task.log_parser == "junit" and not task.eval_script:
        return ""  # the grader's own runner makes the command
    try:
        task.eval_script = eval_script_for(task)
    except DataError as error:
        return str(error)
    return ""


def not_certified(task: Task) -> str:
    """Why training leaves the task out: "flaky", "broken" or "not certified"; "" where it may be used."""
    if task.flaky:
        return "flaky"
    if task.certified is False:
        return "broken"
    return "" if task.certified else "not certified"


def find_task(path: str | Path, instance_id: str, *, for_training: bool = True, image_template: str = "") -> Task:
    """The first task named `instance_id`, reading no further. Raises DataError naming what is there or why it is refused."""
    seen: list[str] = []
    refused: list[RowError] = []
    for raw in iter_rows(path, COLUMNS):
        result = read_row(raw, for_training=for_training, image_template=image_template)
        if isinstance(result, RowError):
            refused.append(result)
            continue
        if result.instance_id == instance_id:
            return result
        seen.append(result.instance_id)
    start = ", ".join(seen[:3]) + (" ..." if len(seen) > 3 else "")
    why = f"; {len(refused)} rows were refused, the first: {refused[0]}" if refused else ""
    raise DataError(f"{path}: no task {instance_id!r} among {len(seen)} ({start or 'none usable'}){why}")


def task_row(task: Task) -> dict[str, Any]:
    """The task in our own form: `{"text", "metadata": {"instance": {all Task fields}, "data_source"}}`."""
    return {
        "text": task.problem_statement,
        "metadata": {"instance": dataclasses.asdict(task), "data_source": task.data_source},
    }


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> int:
    """Write tasks as JSONL in our own form, atomically; returns how many. The file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with temporary.open("w", encoding="utf-8") as out:
            for task in tasks:
                out.write(json.dumps(task_row(task), ensure_ascii=False) + "\n")
                count += 1
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count

"""`swe-rl regrade`: the stored patches of a run graded again, and compared with the verdicts they got.

For a grader that was changed, tasks that were corrected, attempts that were lost to infrastructure, or for checking a claim.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from swe_rl.config import Config
from swe_rl.config.load import Loaded, load_config, print_and_exit_on_dry_run, validate
from swe_rl.deadline import Deadline
from swe_rl.errors import DataError, UsageError
from swe_rl.grading.cache import GRADED_SETTINGS
from swe_rl.grading.grader import grade_patch
from swe_rl.grading.verdict import GradeResult
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.provider import open_provider
from swe_rl.tasks.load import load_tasks
from swe_rl.tasks.printable import printable
from swe_rl.types import Task, Verdict

CONFIG_FILE = "config.yaml"  # in a run's folder: the settings it ran with
_ATTEMPT = re.compile(r"__g\d+__i[^_]+__\d+$")  # after the instance's id in the name of an attempt's folder
OPEN_SECONDS = 300.0  # for a sandbox to open, beside the tests' own time


@dataclass
class StoredPatch:
    """One attempt's folder: its patch and the verdict it got ("" where none was stored)."""

    folder: Path
    instance_id: str
    verdict: str


@dataclass
class Regraded:
    """A stored verdict and the new one. `reason`: what the grader said, where it said something."""

    attempt: str
    instance_id: str
    stored: str
    verdict: str
    same: bool
    reason: str = ""
    tests: dict[str, str] = field(default_factory=dict)


def stored_patches(run_dir: Path) -> list[StoredPatch]:
    """All folders below `run_dir` that hold a patch.diff. Raises DataError where there is none."""
    if not run_dir.is_dir():
        raise DataError(f"{run_dir}: no such run folder")
    found = []
    for patch in sorted(run_dir.rglob("patch.diff")):
        if any(part.startswith(".") for part in patch.relative_to(run_dir).parts):
            continue  # an attempt that is still being written
        meta = _read_json(patch.with_name("meta.json"))
        trajectory = {} if meta.get("instance_id") else _read_json(patch.with_name("traj.json"))
        named = _ATTEMPT.sub("", patch.parent.name)
        instance_id = meta.get("instance_id") or trajectory.get("instance_id") or named
        info = trajectory.get("info")
        verdict = meta.get("verdict") or (info.get("verdict") if isinstance(info, dict) else "")
        found.append(StoredPatch(patch.parent, str(instance_id), str(verdict or "")))
    if not found:
        raise DataError(f"{run_dir}: no patch.diff below this folder")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged: {error}") from error
    return value if isinstance(value, dict) else {}


def tasks_of_run(run_dir: Path, given: Sequence[str], image_template: str = "") -> dict[str, Task]:
    """The run's tasks by id, from `given` files or from those that its config.yaml names."""
    paths = list(given)
    if not paths:
        settings = _settings_of_run(run_dir)
        paths = [settings[name] for name in ("prompt_data", "eval_prompt_data") if settings.get(name)]
    if not paths:
        raise UsageError(f"{run_dir}: no config.yaml names the tasks of this run; give them with --tasks FILE")
    tasks: dict[str, Task] = {}
    for path in paths:
        tasks.update({task.instance_id: task for task in load_tasks(path, image_template=image_template).tasks})
    return tasks


def config_of_run(run_dir: Path, argv: list[str]) -> Config:
    """The settings to grade with: those given now; else, where a verdict depends on them, the run's own; else the defaults.

    With `--dry-run` it prints them and ends the program.
    Raises ConfigError for a wrong value, DataError where the run's config.yaml cannot be read.
    """
    given = load_config(argv, prog="swe-rl regrade")
    stored = _settings_of_run(run_dir)
    values = {name: stored[name] for name in GRADED_SETTINGS if name in stored and name not in given.sources}
    sources = dict.fromkeys(values, str(run_dir / CONFIG_FILE))
    sources = {**given.sources, **sources}
    config = validate({**given.config.model_dump(), **values}, sources)
    print_and_exit_on_dry_run(Loaded(config, sources, given.dry_run))
    return config


def _settings_of_run(run_dir: Path) -> dict[str, Any]:
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        return {}
    try:
        settings = yaml.safe_load(path.read_text("utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise DataError(f"{path}: {type(settings).__name__}, not a mapping of settings")
    return settings


async def regrade(
    patches: Sequence[StoredPatch],
    tasks: dict[str, Task],
    provider: SandboxProvider,
    config: Config,
    *,
    concurrency: int,
    on_done: Callable[[Regraded], None],
) -> list[Regraded]:
    """Grade every stored patch in a fresh sandbox, `concurrency` at a time; results come in the order of `patches`."""
    results: list[Regraded | None] = [None] * len(patches)
    waiting = iter(enumerate(patches))

    async def worker() -> None:
        for index, stored in waiting:
            results[index] = await _regrade_one(stored, tasks[stored.instance_id], provider, config)
            on_done(results[index])  # type: ignore[arg-type]

    workers = [asyncio.create_task(worker()) for _ in range(max(1, min(concurrency, len(patches))))]
    try:
        await asyncio.gather(*workers)
    finally:
        for work in workers:
            work.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [result for result in results if result is not None]


async def _regrade_one(stored: StoredPatch, task: Task, provider: SandboxProvider, config: Config) -> Regraded:
    patch = (stored.folder / "patch.diff").read_bytes()
    deadline = Deadline(OPEN_SECONDS + config.swe_eval_timeout)
    try:
        result = await grade_patch(task, patch, provider, config, deadline, tests_seconds=config.swe_eval_timeout)
    except DataError as error:  # no eval script can be made for this row: the others' verdicts still count
        result = GradeResult(Verdict.INFRA_ERROR, {"reason": str(error)})
    problems = result.detail.get("problems") or [result.detail.get("reason", "")]
    verdict = result.verdict.value
    return Regraded(
        attempt=stored.folder.name,
        instance_id=stored.instance_id,
        stored=stored.verdict,
        verdict=verdict,
        same=verdict == stored.verdict,
        reason="; ".join(str(problem) for problem in problems)[:500],
        tests=result.tests,
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swe-rl regrade",
        description="Grade the stored patches (patch.diff) of a run again and compare the verdicts.",
        epilog="Settings of sandboxes and grading are taken too (--sandbox docker ...); what verdicts depend on and is not"
        " given now (policy, time limit ...) is as in the run's config.yaml. Exit code 0: every verdict is the"
        " same (attempts that were lost to infrastructure aside); 1: some differ.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a run's folder, or any folder of attempts")
    parser.add_argument("--tasks", action="append", default=[], help="dataset of the run's tasks (repeatable)")
    parser.add_argument(
        "--out", "-o", type=Path, help="verdicts as JSONL, in the order they come (default RUN_DIR/regrade.jsonl)"
    )
    parser.add_argument(
        "--concurrency", type=int, default=0, help="gradings at once (default: the processors; pool: 16)"
    )
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    return parser


def main(argv: list[str]) -> int:
    """Exit code 0 where all comparable verdicts are the same, 1 where one differs or could not be had."""
    arguments, rest = build_parser().parse_known_args(argv)
    patches = stored_patches(arguments.run_dir)
    config = config_of_run(arguments.run_dir, rest)
    tasks = tasks_of_run(arguments.run_dir, arguments.tasks, config.swe_image_template)
    unknown = sorted({stored.instance_id for stored in patches} - set(tasks))
    if unknown:
        raise DataError(f"{len(unknown)} tasks of the run are in none of the datasets, the first {unknown[0]}")
    out = arguments.out or arguments.run_dir / "regrade.jsonl"
    if out.is_dir():
        raise UsageError(f"--out: {out} is a folder; name a file in it")
    results = asyncio.run(_run(patches, tasks, config, arguments.concurrency, out))
    summary = summarise(results)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        print_results(results, summary, Console())
        print(f"verdicts: {out}")
    return 0 if summary["changed"] == 0 and summary["lost"] == 0 else 1


def summarise(results: Sequence[Regraded]) -> dict[str, Any]:
    """Counts: same, changed, recovered (stored without a verdict on the patch, graded now), lost (infra_error now)."""
    kinds = Counter(_kind(result) for result in results)
    moves = Counter(f"{result.stored or '(none)'} -> {result.verdict}" for result in results if not result.same)
    names = ("same", "changed", "recovered", "lost")
    return {"attempts": len(results), **{name: kinds[name] for name in names}, "moves": dict(moves.most_common())}


def _kind(result: Regraded) -> str:
    if result.verdict == Verdict.INFRA_ERROR:
        return "lost"
    if result.stored in ("", Verdict.INFRA_ERROR.value):
        return "recovered"
    return "same" if result.same else "changed"


def print_results(results: Sequence[Regraded], summary: dict[str, Any], console: Console) -> None:
    """The attempts whose verdict is another, and the counts."""
    table = Table(title="verdicts that differ", title_justify="left")
    for name in ("attempt", "stored", "now", "why"):
        table.add_column(name, overflow="fold")
    different = [result for result in results if not result.same]
    for result in different[:40]:
        table.add_row(printable(result.attempt), result.stored or "-", result.verdict, printable(result.reason[:200]))
    if different:
        console.print(table)
    console.print("  ".join(f"{name} {summary[name]}" for name in ("attempts", "same", "changed", "recovered", "lost")))


async def _run(
    patches: list[StoredPatch], tasks: dict[str, Task], config: Config, concurrency: int, out: Path
) -> list[Regraded]:
    """All results; each is written when it comes, so that an interrupted run keeps what it found. `out` as it was stays until
    there is something to put in its place. Raises UsageError where it cannot be written."""
    part = out.with_name(f"{out.name}.part")
    _new_file(part).close()
    try:
        return await _stream(patches, tasks, config, concurrency, part)
    finally:
        part.replace(out) if part.stat().st_size else part.unlink()


async def _stream(
    patches: list[StoredPatch], tasks: dict[str, Task], config: Config, concurrency: int, part: Path
) -> list[Regraded]:
    provider = await open_provider(config)
    columns = (TextColumn("regrading"), BarColumn(bar_width=28), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        at_once = concurrency or (16 if provider.name == "pool" else os.cpu_count() or 1)
        shown = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        with part.open("w", encoding="utf-8") as file, shown as progress:
            bar = progress.add_task("regrading", total=len(patches))

            def on_done(result: Regraded) -> None:
                file.write(json.dumps(asdict(result)) + "\n")
                file.flush()
                progress.advance(bar)

            return await regrade(patches, tasks, provider, config, concurrency=at_once, on_done=on_done)
    finally:
        await provider.aclose()


def _new_file(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out: cannot write {path}: {error.strerror}") from error

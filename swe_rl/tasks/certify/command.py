"""`swe-rl data certify`: the flags, the progress bar, the files that are written."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from swe_rl.config import Config
from swe_rl.config.load import load_config, print_and_exit_on_dry_run
from swe_rl.errors import UsageError
from swe_rl.sandbox.provider import open_provider
from swe_rl.tasks.certify.journal import Journal
from swe_rl.tasks.certify.outcome import CERTIFIED, FLAKY, UNKNOWN, Outcome, apply_outcome
from swe_rl.tasks.certify.report import print_table, write_html
from swe_rl.tasks.certify.runner import certify_tasks
from swe_rl.tasks.images import pin
from swe_rl.tasks.load import load_tasks, write_tasks
from swe_rl.tasks.rows import SUFFIXES
from swe_rl.types import Task


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swe-rl data certify",
        description="Run each task's gold patch several times and the empty patch once, each in a fresh sandbox, and write"
        " which tasks are certified, flaky (which tests) or broken (why). Interrupted runs continue where they stopped.",
        epilog="Settings of sandboxes and grading are taken too (--sandbox docker, --swe-eval-timeout 900 ...):"
        " see swe-rl train --help.",
    )
    parser.add_argument("path", metavar="FILE", help="dataset in any known form")
    parser.add_argument("--out", "-o", type=Path, help="tasks with their certification (default FILE.certified.jsonl)")
    parser.add_argument("--html", type=Path, help="report page (default: beside --out)")
    parser.add_argument("--repeat", type=int, default=3, help="gradings of the gold patch (default 3)")
    parser.add_argument("--concurrency", type=int, default=0, help="tasks at once (default: the processors; pool: 16)")
    parser.add_argument("--limit", type=int, default=0, help="only the first tasks")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run finished")
    return parser


def main(argv: list[str]) -> int:
    """Exit code 0 where at least one task is certified and none is left unknown, else 1."""
    arguments, rest = build_parser().parse_known_args(argv)
    loaded = load_config(rest, prog="swe-rl data certify")
    print_and_exit_on_dry_run(loaded)
    source = Path(arguments.path)
    out = arguments.out or certified_file(source)
    if arguments.fresh:
        _journal_of(out).unlink(missing_ok=True)
    return certify_file(
        source,
        out,
        loaded.config,
        html=arguments.html,
        repeat=arguments.repeat,
        concurrency=arguments.concurrency,
        limit=arguments.limit,
    )


def certified_file(source: Path) -> Path:
    """Where the certified tasks of `source` go unless told otherwise; what is certified already keeps its name."""
    source = source if source.name.strip(".") else source.resolve()
    name = source.name
    for suffix in (*sorted(SUFFIXES, key=len, reverse=True), ".certified"):
        name = name.removesuffix(suffix)
    return source.parent / f"{name or 'tasks'}.certified.jsonl"


def _journal_of(out: Path) -> Path:
    return out.with_name(out.name + ".journal")


def certify_file(
    source: Path,
    out: Path,
    config: Config,
    *,
    repeat: int,
    html: Path | None = None,
    concurrency: int = 0,
    limit: int = 0,
) -> int:
    """Certify the tasks of `source` in the sandboxes of `config`; write them, the report and the journal, print the table.

    Returns the exit code of `main`. Raises UsageError for a wrong `repeat` or where `out` is the source and rows of it
    would be lost, DataError where `source` has no usable task, ConfigError where the sandbox cannot be had.
    """
    if repeat < 1:
        raise UsageError(f"--repeat {repeat}: at least 1")
    html = html or out.with_suffix(".html")
    loaded = load_tasks(source, image_template=config.swe_image_template)
    tasks = loaded.tasks[:limit] if limit > 0 else loaded.tasks
    lost = len(loaded.tasks) - len(tasks) + len(loaded.rejected)
    if lost and out.resolve() == source.resolve():
        raise UsageError(
            f"{source}: writing the result here would lose {lost} of its rows; name another file with --out"
        )
    console = Console(stderr=True)
    console.print(f"{source}: {loaded.summary()}", highlight=False)
    outcomes, sandbox = asyncio.run(_run(tasks, config, _journal_of(out), repeat, concurrency, console))
    write_tasks(out, (_certified_task(task, outcomes[task.instance_id]) for task in tasks))
    listed = list(outcomes.values())
    write_html(html, listed, source=str(source), sandbox=sandbox, repeat=repeat)
    print_table(listed, Console())
    print(f"tasks: {out}\nreport: {html}")
    statuses = {outcome.status for outcome in listed}
    return 0 if CERTIFIED in statuses and UNKNOWN not in statuses else 1


def _certified_task(task: Task, outcome: Outcome) -> Task:
    """The task with its outcome, and its image pinned where the registry's digest is known (`name@sha256:...`)."""
    done = apply_outcome(task, outcome)
    if outcome.status in (CERTIFIED, FLAKY) and task.image and "@sha256:" in outcome.image_digest:
        done.image = pin(task.image, outcome.image_digest)
    return done


async def _run(
    tasks: list[Task], config: Config, journal_path: Path, repeat: int, concurrency: int, console: Console
) -> tuple[dict[str, Outcome], str]:
    provider = await open_provider(config)
    try:
        at_once = concurrency or (16 if provider.name == "pool" else os.cpu_count() or 1)
        with Journal(journal_path) as journal, _progress(console) as progress:
            bar = progress.add_task(f"certifying ({provider.name})", total=len(tasks), note="")
            tally: dict[str, int] = {}

            def on_done(task: Task, outcome: Outcome) -> None:
                tally[outcome.status] = tally.get(outcome.status, 0) + 1
                note = "  ".join(f"{status} {number}" for status, number in tally.items())
                progress.update(bar, advance=1, note=note)
                if progress.disable:
                    print(f"{task.instance_id}: {outcome.status} {outcome.reason}", file=sys.stderr, flush=True)

            outcomes = await certify_tasks(
                tasks, provider, config, journal, repeat=repeat, concurrency=at_once, on_done=on_done
            )
        return outcomes, provider.name
    finally:
        await provider.aclose()


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=console, disable=not sys.stderr.isatty())

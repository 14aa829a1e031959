"""`swe-rl data inspect`: is this file what I think it is? Counts by repository, what is missing, images, a sample."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from swe_rl.tasks.printable import printable
from swe_rl.tasks.survey import Survey, survey


def main(argv: list[str]) -> int:
    """Exit code 0 where at least one row is usable, else 1."""
    parser = argparse.ArgumentParser(
        prog="swe-rl data inspect",
        description="Count and check a dataset in any known form (JSONL, JSON, Parquet, also .gz; a file or a folder).",
    )
    parser.add_argument("path", metavar="FILE", help="file or folder")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--top", type=int, default=15, help="longest lists printed (default 15)")
    arguments = parser.parse_args(argv)
    result = _with_spinner(arguments.path)
    if arguments.json:
        print(json.dumps(result.to_dict(max(1, arguments.top)), indent=2))
    else:
        print_survey(result, Console(), max(1, arguments.top))
    return 0 if result.usable else 1


def _with_spinner(path: str) -> Survey:
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:  # fmt: skip
        bar = progress.add_task(f"reading {printable(path)}", total=None)
        return survey(path, lambda rows: progress.update(bar, description=f"reading {printable(path)}: {rows:,} rows"))


def print_survey(result: Survey, console: Console, top: int) -> None:
    """Tables on `console`; text from the dataset is escaped, never read as markup."""
    rejected = result.rows - result.usable
    console.print(
        f"[bold]{printable(result.path)}[/bold]: {result.rows:,} rows in {result.files} file(s), {result.usable:,} usable,"
        f" {rejected:,} rejected"
    )
    for title, counter in (
        ("repositories", result.repos),
        ("forms", result.forms),
        ("data sources", result.sources),
        ("images", result.images),
        ("eval scripts", result.scripts),
        ("certification", result.certification),
        ("missing in usable rows", result.missing),
        ("why rows were rejected", result.reasons),
    ):
        if counter:
            console.print(_table(title, counter, result.usable or 1, top))
    console.print(_spreads(result))
    for error in result.errors[:5]:
        console.print(f"[red]rejected[/red] {printable(str(error))}", soft_wrap=True)
    if result.sample:
        _print_sample(result, console)


def _table(title: str, counter: Counter[str], whole: int, top: int) -> Table:
    table = Table(title=f"{title} ({len(counter):,})", title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right")
    table.add_column(justify="right")
    for name, count in counter.most_common(top):
        table.add_row(printable(name), f"{count:,}", f"{100 * count / whole:.1f}%")
    if len(counter) > top:
        rest = sum(counter.values()) - sum(count for _, count in counter.most_common(top))
        table.add_row(f"... and {len(counter) - top:,} more", f"{rest:,}", "")
    return table


def _spreads(result: Survey) -> Table:
    sizes = result.to_dict()
    table = Table(title="sizes", title_justify="left")
    for name in ("", "min", "median", "p95", "max"):
        table.add_column(name, justify="left" if not name else "right")
    for label, key in (
        ("characters of the issue", "statement_chars"),
        ("tests that must newly pass", "fail_to_pass"),
        ("tests that must still pass", "pass_to_pass"),
    ):
        table.add_row(label, *(f"{value:,}" for value in sizes[key].values()))
    return table


def _print_sample(result: Survey, console: Console) -> None:
    task = result.sample
    assert task is not None
    table = Table(title="a sample", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    issue = task.problem_statement[:300] + (" ..." if len(task.problem_statement) > 300 else "")
    for name, value in (
        ("instance_id", task.instance_id),
        ("repo", task.repo),
        ("base_commit", task.base_commit),
        ("image", task.image),
        ("workdir", task.workdir),
        ("first test", (task.fail_to_pass or task.pass_to_pass or [""])[0]),
        ("test files", ", ".join(task.test_files[:3])),
        ("issue", issue),
    ):
        table.add_row(name, printable(value or "-"))
    console.print(table)

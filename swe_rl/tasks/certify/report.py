"""What a certification found, as a table on the terminal and as one HTML page that needs nothing else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment
from rich.console import Console
from rich.table import Table

from swe_rl.tasks.certify.outcome import BROKEN, CERTIFIED, FLAKY, UNKNOWN, Outcome
from swe_rl.tasks.printable import printable

_ORDER = {BROKEN: 0, FLAKY: 1, UNKNOWN: 2, CERTIFIED: 3}
_COLOUR = {CERTIFIED: "green", FLAKY: "yellow", BROKEN: "red", UNKNOWN: "magenta"}


def ordered(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What needs a look first."""
    return sorted(outcomes, key=lambda outcome: (_ORDER[outcome.status], outcome.instance_id))


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    tally = Counter(outcome.status for outcome in outcomes)
    return {status: tally[status] for status in (CERTIFIED, FLAKY, BROKEN, UNKNOWN)}


def print_table(outcomes: Sequence[Outcome], console: Console, *, most: int = 40) -> None:
    """All tasks that are not certified (at most `most`), and the counts."""
    table = Table(title="certification", title_justify="left")
    for name in ("task", "status", "why", "s"):
        table.add_column(name, justify="right" if name == "s" else "left", overflow="fold")
    shown = [outcome for outcome in ordered(outcomes) if outcome.status != CERTIFIED][:most]
    shown += [outcome for outcome in ordered(outcomes) if outcome.status == CERTIFIED][: max(0, most - len(shown))]
    for outcome in shown:
        why = outcome.reason or "; ".join(outcome.notes)
        if outcome.status == FLAKY and outcome.tests:
            why += f": {', '.join(outcome.tests[:3])}"
        colour = _COLOUR[outcome.status]
        table.add_row(
            printable(outcome.instance_id),
            f"[{colour}]{outcome.status}[/]",
            printable(why[:300]),
            f"{outcome.seconds:.1f}",
        )
    if shown:
        console.print(table)
    if len(outcomes) > len(shown):
        console.print(f"... and {len(outcomes) - len(shown)} more")
    console.print("  ".join(f"{status} {number}" for status, number in counts(outcomes).items()))


def write_html(path: Path, outcomes: Sequence[Outcome], *, source: str, sandbox: str, repeat: int) -> None:
    """Write the page atomically; everything from the dataset is escaped."""
    template = resources.files(__package__).joinpath("report.html").read_text("utf-8")
    page = (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            outcomes=ordered(outcomes),
            counts=counts(outcomes),
            source=source,
            sandbox=sandbox,
            repeat=repeat,
            total=len(outcomes),
            made=time.strftime("%Y-%m-%d %H:%M:%S"),
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(page, "utf-8")
    temporary.replace(path)

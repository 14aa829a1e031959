"""What a person sees while a run works: live bars on a terminal, one plain line a step elsewhere (logs, CI)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from swe_rl.config import Config


class Display:
    """Bars for the run and for the work at hand. Modes: bar, plain, none (`--progress`; auto looks at the terminal)."""

    def __init__(self, config: Config, *, total_steps: int, done_steps: int = 0) -> None:
        mode = config.progress
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() else "plain"
        self.mode = mode
        self.console = Console(stderr=True, quiet=mode == "none", highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        if mode == "bar":
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", justify="left"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
            )
            self._steps = self._progress.add_task("training steps", total=total_steps, completed=done_steps, note="")
            self._progress.start()

    def say(self, text: str) -> None:
        """Print plain text: brackets in it are no markup."""
        self.console.print(text, markup=False)

    def step_done(self, step: int, note: str) -> None:
        """Tell of one finished training step."""
        if self._progress is not None:
            self._progress.update(self._steps, completed=step, note=note)
        else:
            self.say(f"step {step}: {note}")

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Show a stage; the yielded function takes what attempts are doing (`StageCounts.snapshot`; {} = nobody knows now)."""
        started = time.monotonic()
        task = self._progress.add_task(name, total=None, note="") if self._progress is not None else None

        def update(counts: dict[str, Any]) -> None:
            if self._progress is not None and task is not None and counts:
                total = counts["expected"] or None
                self._progress.update(task, completed=counts["finished"], total=total, note=attempts_note(counts))

        try:
            yield update
        finally:
            if self._progress is not None and task is not None:
                self._progress.remove_task(task)
            elif name.startswith("evaluat") or time.monotonic() - started > 30:
                self.say(f"{name}: {time.monotonic() - started:.1f} s")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def attempts_note(counts: dict[str, Any]) -> str:
    """Mean reward, verdicts so far and attempts by stage, in a few words."""
    parts = []
    if counts["reward_mean"] is not None:
        parts.append(f"reward {counts['reward_mean']:.2f}")
    parts += [f"{count} {name}" for name, count in sorted(counts["verdicts"].items(), key=lambda item: -item[1])]
    if counts["stages"]:
        parts.append("now: " + ", ".join(f"{count} {name}" for name, count in counts["stages"].items()))
    return "  ".join(parts)

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

Poll = Callable[[], dict[str, Any]]  # {"done": int, "total": int, stages and rewards...}; must not block for long


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
        self.console.print(text)

    def step_done(self, step: int, note: str) -> None:
        """Tell of one finished training step."""
        if self._progress is not None:
            self._progress.update(self._steps, completed=step, note=note)
        else:
            self.say(f"step {step}: {note}")

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Show a stage; the yielded function takes the newest counts (done, total and anything worth a word)."""
        started = time.monotonic()
        task = self._progress.add_task(name, total=None, note="") if self._progress is not None else None

        def update(counts: dict[str, Any]) -> None:
            if self._progress is not None and task is not None:
                note = "  ".join(f"{k} {_short(v)}" for k, v in counts.items() if k not in ("done", "total"))
                self._progress.update(task, completed=counts.get("done", 0), total=counts.get("total"), note=note)

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


def _short(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)

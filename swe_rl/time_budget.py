"""When a run that has only so much time stops training: in time for the evaluation that follows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from swe_rl.config.rollout import RolloutSettings


class TimeBudget:
    """The clocks of a run behind `max_train_seconds` and `max_run_seconds`; they go on where an interrupted run continues.

    started: of this process, by `clock`. Seconds and steps of another run whose checkpoint was loaded do not count.
    """

    def __init__(
        self, settings: RolloutSettings, *, started: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings, self._clock, self._started = settings, clock, started
        self._earlier = 0.0  # seconds of this run's earlier starts
        self._foreign_seconds, self._foreign_steps = 0.0, 0  # of training, by another run

    def used_up(self, *, trained: float, steps: int, evaluation: float) -> bool:
        """Whether there is no time for another step.

        trained, steps: seconds of training and steps so far. evaluation: seconds that the evaluation after training will take.
        """
        trained, steps = trained - self._foreign_seconds, steps - self._foreign_steps
        if self.settings.max_train_seconds and trained >= self.settings.max_train_seconds:
            return True
        if not self.settings.max_run_seconds or not steps:  # a run makes one step at least
            return False
        return self.seconds + trained / steps + evaluation > self.settings.max_run_seconds

    @property
    def seconds(self) -> float:
        """Since the run began, without the time between its starts."""
        return self._earlier + self._clock() - self._started

    def loaded(self, *, trained: float, steps: int) -> None:
        """The run begins with the state of another one."""
        self._foreign_seconds, self._foreign_steps = trained, steps

    def state_dict(self) -> dict[str, Any]:
        """JSON values for a checkpoint's state."""
        return {"seconds": self.seconds, "foreign": [self._foreign_seconds, self._foreign_steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the run's own checkpoint was saved; an empty state is that of a run that had no clock."""
        self._earlier = float(state.get("seconds", 0.0))
        self._foreign_seconds, self._foreign_steps = state.get("foreign", (0.0, 0))

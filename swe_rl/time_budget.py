"""When a run that has only so much time stops training: in time for the evaluation that follows."""

from __future__ import annotations

from dataclasses import dataclass

from swe_rl.config.rollout import RolloutSettings
from swe_rl.observe.summary import Totals


@dataclass(frozen=True)
class TimeBudget:
    """The limits of the settings. startup: seconds until this start's first rollout or evaluation."""

    settings: RolloutSettings
    startup: float

    def used_up(self, totals: Totals, *, steps: int, evaluation: float) -> bool:
        """Whether there is no time for another step. evaluation: seconds that the evaluation after training will take."""
        spent, limit = totals.seconds_training, self.settings.max_train_seconds
        if limit and spent >= limit:
            return True
        limit = self.settings.max_run_seconds
        if not limit or not steps:  # a run makes one step at least
            return False
        evaluated = totals.seconds_by_stage.get("evaluation", 0.0)
        return self.startup + evaluated + spent + spent / steps + evaluation > limit

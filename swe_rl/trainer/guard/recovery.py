"""The guard, the checkpoints that it vouches for, and the way back to them: what the driver needs to survive a collapse."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.config.guard import GuardSettings
from swe_rl.trainer.group import TrainerGroup
from swe_rl.trainer.guard.good import GoodCheckpoints
from swe_rl.trainer.guard.watch import Alarm, Guard


class Recovery:
    """`judge` every step; on an alarm `restore`, save the restored policy, and tell it by `saved(..., restored=True)`."""

    def __init__(self, settings: GuardSettings, trainer: TrainerGroup) -> None:
        self.settings, self.trainer = settings, trainer
        self.guard = Guard(settings)
        self.good = GoodCheckpoints()

    def judge(
        self, step: int, rollout: Mapping[str, float], train: Mapping[str, float], *, sampled_after: int
    ) -> Alarm | None:
        """See `Guard.judge`. sampled_after: the rollout step after which the weights were made that sampled this one."""
        alarm = self.guard.judge(step, rollout, train)
        if self.guard.content:
            self.good.confirm(sampled_after)
        return alarm

    def restore(self, alarm: Alarm) -> dict[str, Any]:
        """Give the trainer the last good weights, optimizer and counters, and the guard what it knew then.

        Returns the event for log and summary. Raises CheckpointError where the checkpoint is damaged.
        """
        steps, state = self.trainer.optimizer_steps, {}
        if self.good.path is None:
            self.trainer.restart()
        else:
            state = self.trainer.load(self.good.path)
        self.guard = Guard.restored(self.settings, state.get("guard", {}).get("watch", {}))
        undone = steps - self.trainer.optimizer_steps
        return {**alarm.to_dict(), "back_to": self.good.step, "undone_optimizer_steps": undone}

    def saved(self, step: int, path: Path, *, restored: bool = False) -> None:
        """A checkpoint was written. restored: it holds the good weights again; those that nobody saw work are removed."""
        if not restored:
            self.good.saved(step, path)
            return
        for distrusted in self.good.replace(step, path):
            shutil.rmtree(distrusted, ignore_errors=True)

    def state_dict(self) -> dict[str, Any]:
        """JSON values for a checkpoint's state."""
        return {"watch": self.guard.state_dict(), "good": self.good.state_dict()}

    def resume(self, step: int, path: Path, state: Mapping[str, Any], *, own: bool) -> None:
        """Continue from the checkpoint `path`. own: of this run; one that the user named is good by his word."""
        self.guard = Guard.restored(self.settings, state.get("watch", {}))
        known = state.get("good") if own else None
        self.good = GoodCheckpoints.restored(step, path, known) if known else GoodCheckpoints(step, path)

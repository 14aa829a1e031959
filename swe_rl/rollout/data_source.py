"""Which task comes next: seeded order, epochs, and a position that is saved and restored exactly."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from swe_rl.errors import DataError
from swe_rl.types import Task


class TaskSource:
    """Endless stream of (group number, task): every task once per epoch, in an order that seed and epoch decide.

    Group numbers count from 0 over the whole run and are never given twice.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int, shuffle: bool) -> None:
        if not tasks:
            raise DataError("there are no tasks to sample from")
        self._tasks = list(tasks)
        self._seed = seed
        self._shuffle = shuffle
        self._groups = 0
        self._order = self._order_of(0)

    def __len__(self) -> int:
        """Tasks in one epoch."""
        return len(self._tasks)

    def next(self) -> tuple[int, Task]:
        """The next group's number and task."""
        group = self._groups
        epoch, position = divmod(group, len(self._tasks))
        if position == 0:
            self._order = self._order_of(epoch)
        self._groups += 1
        return group, self._tasks[self._order[position]]

    @property
    def epoch(self) -> float:
        """How often the tasks were gone through, with the fraction of the current time."""
        return self._groups / len(self._tasks)

    def state_dict(self) -> dict[str, Any]:
        """The position, and what makes the order: enough to continue exactly."""
        return {"groups": self._groups, "seed": self._seed, "shuffle": self._shuffle, "tasks": self._digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position. Raises DataError where the tasks or their order are not those of the save."""
        now = self.state_dict()
        for name, what in (("tasks", "the training tasks"), ("seed", "the seed"), ("shuffle", "rollout_shuffle")):
            if state.get(name) != now[name]:
                raise DataError(
                    f"cannot continue the data position: {what} changed since the checkpoint "
                    f"({state.get(name)} then, {now[name]} now); start a new run instead"
                )
        groups = state.get("groups")
        if not isinstance(groups, int) or groups < 0:
            raise DataError(f"cannot continue the data position: 'groups' is {groups!r}")
        self._groups = groups
        self._order = self._order_of(groups // len(self._tasks))

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        if self._shuffle:
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order

    def _digest(self) -> str:
        names = "\n".join(task.instance_id for task in self._tasks)
        return f"{len(self._tasks)} tasks, sha256 {hashlib.sha256(names.encode()).hexdigest()[:12]}"

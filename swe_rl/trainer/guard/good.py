"""Which checkpoint a collapsed run goes back to: the newest one whose own weights were seen to work.

That a step looked well says nothing of the update that followed it. A checkpoint is good when a later step, whose attempts its
weights (or later ones) had sampled, left the guard content.
"""

from __future__ import annotations

from pathlib import Path


class GoodCheckpoints:
    """`path` None = the weights the run started with. `step` is the rollout step after which the checkpoint was saved."""

    def __init__(self, step: int = 0, path: Path | None = None) -> None:
        self.step, self.path = step, path
        self._waiting: list[tuple[int, Path]] = []

    @classmethod
    def restored(cls, step: int, path: Path, state: dict[str, object]) -> GoodCheckpoints:
        """For a run that continues from checkpoint `path`; state: the `state_dict` that was saved in it."""
        good = cls(int(str(state["step"])), Path(str(state["path"])) if state["path"] else None)
        if good.path is not None and not good.path.is_dir():
            return cls(step, path)
        good.saved(step, path)
        return good

    def state_dict(self) -> dict[str, object]:
        return {"step": self.step, "path": str(self.path or "")}

    def saved(self, step: int, path: Path) -> None:
        """A checkpoint of the weights after rollout step `step`; nobody has seen them work yet."""
        self._waiting.append((step, path))

    def needed(self) -> list[Path]:
        """Checkpoints that must stay: the good one, and the oldest that may become the next good one.

        With more in waiting (one step ahead, or during a suspicion) one of the later ones may be removed before its turn.
        """
        oldest = next((path for _, path in self._waiting if path.is_dir()), None)
        return [path for path in (self.path, oldest) if path is not None]

    def confirm(self, sampled_after: int) -> None:
        """The guard is content with attempts that the weights after step `sampled_after` had sampled."""
        proven = [(step, path) for step, path in self._waiting if step <= sampled_after and path.is_dir()]
        if proven:
            self.step, self.path = proven[-1]
            self._waiting = [(step, path) for step, path in self._waiting if step > sampled_after]

    def replace(self, step: int, path: Path) -> list[Path]:
        """The good weights were saved again at `path`; returns the checkpoints to remove: none of them was seen to work."""
        distrusted = [old for _, old in self._waiting if old != path]
        self.step, self.path, self._waiting = step, path, []
        return distrusted

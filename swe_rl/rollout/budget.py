"""One deadline per attempt, split in one place: allocate and agent, collect, grade, close (design rule 4)."""

from __future__ import annotations

from swe_rl.config.rollout import RolloutSettings
from swe_rl.deadline import Deadline

MAX_CLOSE = 15.0  # seconds kept back for closing a sandbox
MAX_COLLECT = 60.0  # seconds kept back for taking the patch out
GRADE_ALLOCATION = 60.0  # seconds kept back beside `swe_eval_timeout` for the fresh sandbox that grades


class AttemptBudget:
    """The stages' shares of `swe_rollout_timeout`.

    Time for the later stages is kept back from the earlier ones, so that a slow agent cannot starve its own grading; what an
    earlier stage leaves over goes to the later ones, for waiting. Tests get the same time in every attempt: `tests_seconds`.
    """

    def __init__(self, settings: RolloutSettings) -> None:
        seconds = settings.swe_rollout_timeout
        self.total = Deadline(seconds)
        self.close_seconds = min(MAX_CLOSE, 0.05 * seconds)
        self._collect = min(MAX_COLLECT, 0.1 * seconds)
        self._grade = min(settings.swe_eval_timeout + GRADE_ALLOCATION, 0.5 * seconds)
        # What the tests of every grading may take, however much the agent or a queue for sandboxes left over.
        self.tests_seconds = min(settings.swe_eval_timeout, max(self._grade - GRADE_ALLOCATION, 0.5 * self._grade))
        self._agent = seconds - self._collect - self._grade - self.close_seconds

    def agent(self) -> Deadline:
        """For opening the sandbox and for all turns of the agent."""
        return self._all_but(self._collect + self._grade + self.close_seconds)

    def collect(self) -> Deadline:
        """For taking the patch out of the agent's sandbox."""
        return self._all_but(self._grade + self.close_seconds).sub(max(self._collect, MAX_COLLECT))

    def grade(self) -> Deadline:
        """For the fresh sandbox and the tests in it."""
        return self._all_but(self.close_seconds)

    def allows_retry(self) -> bool:
        """Whether a fresh start after an infra_error has at least a quarter of the agent's time."""
        return self.agent().remaining() >= 0.25 * self._agent

    def allows_regrade(self) -> bool:
        """Whether a second grading after an infra_error has at least a quarter of a grading's time."""
        return self.grade().remaining() >= 0.25 * self._grade

    def _all_but(self, kept_back: float) -> Deadline:
        return Deadline(max(0.0, self.total.remaining() - kept_back))

"""Counts by stage, and the wall clock of stages that run side by side."""

from __future__ import annotations

import pytest

from swe_rl.rollout import progress
from swe_rl.rollout.progress import StageCounts


def test_wall_clock_of_stages_and_of_their_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    counts = StageCounts()
    counts.start(2)
    with counts.stage("agent"):
        now += 1.0
        with counts.stage("agent"):  # two at once are one second of the clock
            now += 1.0
        with counts.stage("grade"):
            now += 4.0
    with counts.stage("grade"):
        now += 8.0
    now += 16.0
    assert counts.busy_seconds() == {"agent": 6.0, "grade": 12.0, "agent and grade": 4.0}
    counts.start(2)
    assert counts.busy_seconds() == {} and counts.snapshot()["stages"] == {}

"""What the bars show is what the rollout manager reports."""

from __future__ import annotations

from swe_rl.config import Config
from swe_rl.observe.progress import Display
from swe_rl.rollout.progress import StageCounts


def test_the_bar_follows_the_attempts() -> None:
    counts = StageCounts()
    counts.start(4)
    counts.finish(1.0, "resolved")
    counts.finish(0.0, "unresolved")
    display = Display(Config(progress="bar"), total_steps=3)
    assert display._progress is not None
    try:
        with display.stage("attempts of step 1") as show, counts.stage("agent"):
            show(counts.snapshot())
            bar = display._progress.tasks[-1]
            assert (bar.description, bar.completed, bar.total) == ("attempts of step 1", 2, 4)
            assert bar.fields["note"] == "reward 0.50  1 resolved  1 unresolved  now: 1 agent"
            show({})  # nobody knows at the moment: what was shown stays
            assert (bar.completed, bar.total) == (2, 4)
        assert [task.description for task in display._progress.tasks] == ["training steps"]
    finally:
        display.close()

"""Totals survive a checkpoint, and add up."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from swe_rl.config import Config
from swe_rl.observe.summary import Totals, build_summary, print_summary
from swe_rl.run_folder import RunFolder

COUNTS = {
    "attempts": 8,
    "trained_tokens": 100,
    "sampled_tokens_trained": 100,
    "segments": 9,
    "dropped_tokens": 0,
    "verdict_cache_hits": 2,
    "verdicts": {"resolved": 3, "no_patch": 5},
    "forks": {"context_dropped": 1},
    "seconds_by_stage": {"agent": 1.5, "model": 1.0, "command": 0.5, "grade": 0.5},
    "busy_seconds": {"agent": 0.5, "grade": 0.4, "agent and grade": 0.3, "rollout": 0.7},
}


def test_a_checkpoint_gives_the_same_totals_back() -> None:
    totals = Totals()
    totals.add(COUNTS)
    totals.spend("train", 2.0)
    totals.rollbacks.append({"step": 9, "reason": "entropy", "value": 4.0, "band": [0.1, 2.0], "back_to": 5})
    restored = Totals.from_dict(json.loads(json.dumps(totals.to_dict())))
    assert restored == totals
    restored.add(COUNTS)
    assert restored.attempts == 16 and restored.verdicts == {"resolved": 6, "no_patch": 10}
    assert restored.forks == {"context_dropped": 2} and restored.attempt_seconds_by_stage["agent"] == 3.0
    assert restored.busy_seconds == {"agent": 1.0, "grade": 0.8, "agent and grade": 0.6, "rollout": 1.4}


def test_a_token_that_was_not_sampled_shows_in_the_audit() -> None:
    totals = Totals()
    totals.add({**COUNTS, "sampled_tokens_trained": 99})
    assert totals.audit()["sampled_fraction"] == 0.99


def test_the_screen_says_what_the_file_says(tmp_path: Path) -> None:
    config = Config(export_root=str(tmp_path))
    totals = Totals(first_logprob_diff=2e-7)
    totals.add(COUNTS)
    totals.rollbacks.append({"step": 9, "reason": "entropy", "back_to": 5})
    rate = {
        "resolve_rate": 0.25,
        "ci95": [0.2, 0.3],
        "n": 400,
        "tasks": 90,
        "levels": {"L1": {"resolve_rate": 0.5, "ci95": [0, 1], "n": 4}},
    }
    summary = build_summary(config, RunFolder.open(config), totals, {"before": rate, "after": rate}, sandbox="docker")
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=400))
    busy = "together 2.0 s in 0.7 s of rollouts; something was graded for 0.4 s, 0.3 s of it while others were sampled"
    for text in (
        busy,
        "(of agent: model 1.0 s, command 0.5 s)",
        "step 9 (entropy) to 5",
        "25.0% [20.0, 30.0] (n=400)",
        "L1",
        "resolved 3",
        "100% of them sampled",
        "2e-07",
    ):
        assert text in out.getvalue()

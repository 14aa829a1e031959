"""The guard on series like those of real runs: quiet under their noise, quick when the policy collapses, exact after a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from swe_rl.config import Config
from swe_rl.trainer.checkpoint_folder import checkpoint_folder, prune
from swe_rl.trainer.guard.good import GoodCheckpoints
from swe_rl.trainer.guard.watch import Alarm, Guard

GROUPS, ATTEMPTS = 12, 8
ALIKE = 0.8  # correlation of attempts at one task; the quickstart's groups are mostly all resolved or all not

Step = tuple[dict[str, float], dict[str, float]]


def step_of(rng: np.random.Generator, rate: float, entropy: float = 0.14, diff: float = 5e-7) -> Step:
    """What a rollout step and its training step report when the policy resolves `rate` of all attempts."""
    scale = 1 / ALIKE - 1
    chances = rng.beta(rate * scale, (1 - rate) * scale, GROUPS) if rate else np.zeros(GROUPS)
    resolved = rng.binomial(ATTEMPTS, chances).sum() / (GROUPS * ATTEMPTS)
    noise = rng.lognormal(0, 0.3, 2)
    return {"resolve_rate": resolved, "groups": GROUPS, "entropy": entropy * noise[0]}, {
        "train/mean_abs_logprob_diff": diff * noise[1]
    }


def first_alarm(guard: Guard, steps: Iterator[Step] | list[Step], start: int = 1) -> Alarm | None:
    for number, (rollout, train) in enumerate(steps, start):
        if alarm := guard.judge(number, rollout, train):
            return alarm
    return None


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("diff", [5e-7, 0.03])  # fp32 in step; one step ahead
def test_no_false_alarm_in_ten_thousand_steps_at_constant_accuracy(rate, diff):
    rng = np.random.default_rng(int(1000 * rate))
    assert first_alarm(Guard(Config()), (step_of(rng, rate, diff=diff) for _ in range(10_000))) is None


def test_no_false_alarm_in_a_thousand_short_runs():
    """The first steps are where a mean rests on little."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        for rate in (0.15, 0.2, 0.3, 0.5, 0.8):
            guard = Guard(Config())
            assert first_alarm(guard, [step_of(rng, rate) for _ in range(60)]) is None and guard.doubt() is None


def test_learning_is_no_collapse():
    """Accuracy rises from 12% to 60% while the entropy falls to a sixth within 60 steps."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        learning = [step_of(rng, 0.12 + 0.008 * k, entropy=0.18 * math.exp(-0.03 * k)) for k in range(60)]
        guard = Guard(Config())
        assert first_alarm(guard, learning) is None and guard.doubt() is None


def test_harder_tasks_for_a_while_are_no_collapse():
    rng = np.random.default_rng(3)
    rates = [0.3] * 40 + [0.23] * 200 + [0.3] * 40
    assert first_alarm(Guard(Config()), [step_of(rng, rate) for rate in rates]) is None


@pytest.mark.parametrize(("rate", "within"), [(0.15, 18), (0.3, 8), (0.6, 4)])
def test_nothing_resolved_any_more_is_noticed(rate, within):
    """Entropy and log-probs look as ever: accuracy alone must tell, the sooner the higher it was."""
    for seed in range(20):
        rng, guard = np.random.default_rng(seed), Guard(Config())
        assert first_alarm(guard, [step_of(rng, rate) for _ in range(30)]) is None
        alarm = first_alarm(guard, [step_of(rng, 0.0) for _ in range(within)], start=31)
        assert alarm is not None and alarm.reason == "accuracy" and alarm.value < alarm.low
        assert alarm.low == pytest.approx(rate / 2, rel=0.4) and alarm.high is None


def test_a_fall_to_three_quarters_is_not_under_half():
    rng, guard = np.random.default_rng(5), Guard(Config())
    assert first_alarm(guard, [step_of(rng, 0.6) for _ in range(30)]) is None
    assert first_alarm(guard, [step_of(rng, 0.45) for _ in range(300)], start=31) is None


@pytest.mark.parametrize(("entropy", "side"), [(2.0, "high"), (0.02, "low"), (float("nan"), "")])
def test_entropy_outside_its_band(entropy, side):
    rng, guard = np.random.default_rng(0), Guard(Config())
    assert first_alarm(guard, [step_of(rng, 0.3) for _ in range(10)]) is None
    alarm = first_alarm(guard, [step_of(rng, 0.3, entropy=entropy) for _ in range(3)], start=11)
    assert alarm is not None and alarm.reason == "entropy"
    assert alarm.step == (12 if side else 11)  # twice in a row, or no number at all
    json.dumps(alarm.to_dict(), allow_nan=False)
    if side:
        assert (alarm.value > alarm.high) == (side == "high") and (alarm.value < alarm.low) == (side == "low")


def test_one_odd_step_is_none():
    rng, guard = np.random.default_rng(0), Guard(Config())
    for _ in range(20):
        assert first_alarm(guard, [step_of(rng, 0.3), step_of(rng, 0.3, entropy=3.0), step_of(rng, 0.3)]) is None


def test_a_collapse_by_the_first_update_is_noticed():
    """The only step of the good policy is the first: its entropy is the measure, whatever comes later."""
    rng, guard = np.random.default_rng(0), Guard(Config())
    alarm = first_alarm(guard, [step_of(rng, 0.3), *(step_of(rng, 0.0, entropy=5.0) for _ in range(5))])
    assert alarm is not None and (alarm.reason, alarm.step) == ("entropy", 3)


def test_engine_and_trainer_that_part_are_noticed():
    rng = np.random.default_rng(0)
    for usual, odd in ((5e-7, 0.8), (0.1, 2.0)):
        guard = Guard(Config())
        assert first_alarm(guard, [step_of(rng, 0.3, diff=usual) for _ in range(10)]) is None
        alarm = first_alarm(guard, [step_of(rng, 0.3, diff=odd) for _ in range(3)], start=11)
        assert alarm is not None and (alarm.reason, alarm.step, alarm.low) == ("logprob_diff", 12, None)


def test_the_end_of_a_run_needs_less_evidence():
    rng, guard = np.random.default_rng(0), Guard(Config())
    assert first_alarm(guard, [*(step_of(rng, 0.3) for _ in range(10)), step_of(rng, 0.3, entropy=3.0)]) is None
    assert not guard.content
    alarm = guard.doubt()
    assert alarm is not None and alarm.reason == "entropy"


@pytest.mark.parametrize("entropy", [0.9, 0.02])  # six times the mean, a seventh of it
def test_a_last_step_a_little_outside_is_no_collapse(entropy):
    rng, guard = np.random.default_rng(0), Guard(Config())
    steps = [*(step_of(rng, 0.3) for _ in range(10)), step_of(rng, 0.3, entropy=entropy)]
    assert first_alarm(guard, steps) is None
    assert not guard.content and guard.doubt() is None


def test_what_may_be_chance_is_said_and_no_alarm():
    rng, guard = np.random.default_rng(0), Guard(Config())
    assert first_alarm(guard, [step_of(rng, 0.3) for _ in range(11)]) is None and guard.suspicion() is None
    mean = guard.accuracy.mean
    odd = {"resolve_rate": 0.076, "groups": 18.0, "entropy": 0.15}
    assert guard.judge(12, odd, {}) is None
    suspicion = guard.suspicion()
    assert suspicion is not None and (suspicion.reason, suspicion.step) == ("accuracy", 12)
    assert suspicion.value == pytest.approx(0.076) and suspicion.low == pytest.approx(0.5 * mean)
    assert guard.judge(13, {**odd, "resolve_rate": 0.6}, {}) is None and guard.suspicion() is None
    assert guard.judge(14, {**odd, "resolve_rate": 0.3, "entropy": 0.9}, {}) is None
    suspicion = guard.suspicion()
    assert suspicion is not None and suspicion.reason == "entropy"
    off = Guard(Config(guard=False))
    assert first_alarm(off, [step_of(rng, 0.3), *(step_of(rng, 0.0, entropy=5.0) for _ in range(5))]) is None
    assert off.suspicion() is None


def test_the_outcome_is_judged_by_intervals():
    def rate(value: float, high: float) -> dict[str, object]:
        return {"resolve_rate": value, "ci95": [0.0, high]}

    guard = Guard(Config())
    alarm = guard.judge_outcome(12, rate(0.274, 0.35), rate(0.058, 0.085))
    assert alarm is not None and alarm.to_dict() == {
        "step": 12,
        "reason": "held-out accuracy",
        "value": 0.058,
        "band": [0.137, None],
    }
    assert guard.judge_outcome(12, rate(0.274, 0.35), rate(0.10, 0.14)) is None  # may be half of it by chance
    assert guard.judge_outcome(12, rate(0.0, 0.02), rate(0.0, 0.02)) is None
    assert Guard(Config(guard=False)).judge_outcome(12, rate(0.274, 0.35), rate(0.0, 0.02)) is None


def test_steps_without_training_are_judged_by_what_they_have():
    guard = Guard(Config(guard_min_steps=3))
    quiet = {"resolve_rate": 0.5, "groups": 12.0, "entropy": 0.1}
    assert first_alarm(guard, [(quiet, {})] * 5) is None
    assert first_alarm(guard, [({"groups": 12.0}, {})] * 5) is None  # every attempt an infra_error, say
    assert first_alarm(guard, [({**quiet, "resolve_rate": 0.0}, {})] * 5) is not None


def test_off_means_off():
    rng, guard = np.random.default_rng(0), Guard(Config(guard=False))
    steps = [step_of(rng, 0.6), *(step_of(rng, 0.0, entropy=5.0, diff=3.0) for _ in range(50))]
    assert first_alarm(guard, steps) is None and guard.doubt() is None


def test_a_restored_guard_goes_on_exactly():
    def series() -> list[Step]:
        rng = np.random.default_rng(8)
        return [step_of(rng, rate) for rate in [0.3] * 20 + [0.0] * 10]

    whole, first = Guard(Config()), Guard(Config())
    expected = first_alarm(whole, series())
    assert expected is not None and expected.step > 22
    assert first_alarm(first, series()[:22]) is None
    second = Guard.restored(Config(), json.loads(json.dumps(first.state_dict())))
    assert first_alarm(second, series()[22:], start=23) == expected
    assert Guard.restored(Config(), {}).state_dict() == Guard(Config()).state_dict()


def test_a_checkpoint_is_good_when_its_own_weights_were_seen_to_work(tmp_path):
    paths = [tmp_path / f"step_{step}" for step in (10, 20, 30)]
    for path in paths:
        path.mkdir()
    good = GoodCheckpoints()
    good.saved(10, paths[0])
    good.confirm(9)
    assert good.path is None  # step 10 was sampled by the weights before the checkpoint's
    good.confirm(10)
    assert (good.step, good.path) == (10, paths[0])
    good.saved(20, paths[1])
    good.saved(30, paths[2])
    good.confirm(25)
    assert good.step == 20
    again = tmp_path / "step_33"
    assert good.replace(33, again) == [paths[2]] and (good.step, good.path) == (33, again)


def test_what_is_good_survives_a_resume(tmp_path: Path):
    old, newest = tmp_path / "step_10", tmp_path / "step_20"
    old.mkdir()
    newest.mkdir()
    state = json.loads(json.dumps(GoodCheckpoints(10, old).state_dict()))
    good = GoodCheckpoints.restored(20, newest, state)
    assert good.path == old
    good.confirm(20)
    assert good.path == newest
    old.rmdir()
    assert GoodCheckpoints.restored(20, newest, state).path == newest  # the old one was removed: the best there is
    assert GoodCheckpoints.restored(20, newest, GoodCheckpoints().state_dict()).path is None


@pytest.mark.parametrize("behind", [1, 2])  # in step; one step ahead
@pytest.mark.parametrize("suspicion", [False, True])
def test_the_good_checkpoint_is_there_however_few_are_kept(tmp_path: Path, behind: int, suspicion: bool):
    """The driver's order: judge step k, then save k; only the newest one is kept besides what the guard needs."""
    good, found = GoodCheckpoints(), []
    for step in range(1, 12):
        if not (suspicion and step in (4, 5, 6)):
            good.confirm(step - behind)
        path = checkpoint_folder(tmp_path, step)
        path.mkdir()
        (path / "manifest.json").write_text("{}")
        prune(tmp_path, 1, spare=good.needed())
        good.saved(step, path)
        found.append(good.step)
        assert good.path is None or good.path.is_dir()
    assert found[-1] >= 11 - behind - 1 and len(list(tmp_path.iterdir())) <= 3

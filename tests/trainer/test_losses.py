"""Loss formulas against slow obvious references, and the invariances of the aggregation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.config import Config
from swe_rl.trainer.batch import plan_steps, token_weights, training_batch
from swe_rl.trainer.losses import clipped_policy_loss, kl_estimate, policy_loss, truncated_importance_weights
from swe_rl.trainer.packing import make_micro_batch
from tests.trainer.conftest import VOCAB, make_samples

REAL = st.floats(-3, 3)


@given(REAL, REAL, REAL)
def test_clipped_loss_equals_ppo_with_two_bounds(new, old, advantage):
    ratio = math.exp(new - old)
    bounded = min(max(ratio, 0.8), 1.28)
    expected = -min(ratio * advantage, bounded * advantage)
    loss, _ = clipped_policy_loss(torch.tensor([new]), torch.tensor([old]), torch.tensor([advantage]), 0.2, 0.28)
    assert float(loss) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"), [(1.5, 1.0, 0), (1.5, -1.0, 1.5), (0.5, -1.0, 0), (0.5, 1.0, -0.5), (1.2, 1, -1.2)]
)
def test_clipping_stops_the_gradient_on_the_greedy_side_only(ratio, advantage, slope):
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, _ = clipped_policy_loss(new, torch.zeros(1), torch.tensor([float(advantage)]), 0.2, 0.28)
    loss.sum().backward()
    assert float(new.grad) == pytest.approx(slope, rel=1e-5)


@given(REAL, REAL)
def test_kl_estimators(policy, reference):
    d = reference - policy
    expected = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d, "low_var_kl": math.exp(d) - 1 - d}
    for kind, value in expected.items():
        actual = kl_estimate(torch.tensor([policy]), torch.tensor([reference]), kind)
        assert float(actual) == pytest.approx(value, rel=1e-3, abs=1e-5), kind


def test_kl_estimators_agree_with_the_exact_kl_in_expectation():
    g = torch.Generator().manual_seed(0)
    p, q = (torch.log_softmax(0.4 * torch.randn(20, generator=g), 0) for _ in range(2))
    exact = float((p.exp() * (p - q)).sum())
    for kind, tolerance in (("k1", 1e-5), ("k3", 1e-5), ("k2", 0.1)):  # k2 is biased, a little
        expected = float((p.exp() * kl_estimate(p, q, kind)).sum())
        assert expected == pytest.approx(exact, rel=tolerance), kind


def test_truncated_importance_weights():
    trainer, rollout = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -2.0, -0.5])
    weights, cut = truncated_importance_weights(trainer, rollout, 2.0)
    assert weights.tolist() == pytest.approx([1.0, 2.0, math.exp(-0.5)])
    assert cut.tolist() == [False, True, False]


def test_one_absurd_token_stays_finite():
    new = torch.tensor([0.0], requires_grad=True)
    loss, _ = clipped_policy_loss(new, torch.tensor([-1e4]), torch.tensor([-1.0]), 0.2, 0.28)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(new.grad).all()
    assert torch.isfinite(kl_estimate(torch.tensor([-1e4]), torch.zeros(1), "k3")).all()


def test_kl_from_the_old_and_the_sampling_policy():
    """Sums of exp(d) - 1 - d, d = log new - log of the policy that gave the token; a placeholder (weight 0) adds nothing."""
    new, old, rollout = [-1.0, -2.0, -0.3], [-1.5, -1.0, -9.0], [-1.25, -2.0, -9.0]
    fields = {"weight": [0.5, 0.5, 0.0], "advantage": [1.0, -1.0, 1.0], "rollout_log_prob": rollout}
    tensors = {name: torch.tensor(values) for name, values in fields.items()}
    several = policy_loss(torch.tensor(new), torch.ones(3), {**tensors, "old_log_prob": torch.tensor(old)}, Config())[1]
    once = policy_loss(torch.tensor(new), torch.ones(3), tensors, Config())[1]
    assert float(several["ppo_kl"]) == pytest.approx(math.exp(0.5) - 1.5 + math.exp(-1.0), rel=1e-5)
    assert float(once["ppo_kl"]) == 0.0
    for sums in (several, once):
        assert float(sums["rollout_kl"]) == pytest.approx(math.exp(0.25) - 1.25, rel=1e-4)


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean"])
def test_loss_equals_the_obvious_reference(aggregation):
    """The whole step in plain Python loops: TIS, clip, KL, entropy, and the mean that the setting names."""
    config = Config(
        loss_aggregation=aggregation, kl_loss_coef=0.3, kl_loss_type="k2", entropy_coef=0.05, tis_clip=1.5, use_tis=True
    )
    batch = training_batch(make_samples(), config, VOCAB)
    plan = plan_steps(batch, steps=1, aggregation=aggregation, max_tokens=80, ranks=1, seed=(0,))
    g = torch.Generator().manual_seed(1)
    values = {}  # (tokens, trained) of a sequence -> its made-up log-probs
    for s in batch.sequences:
        n = len(s.trained)
        values[s.tokens.tobytes()] = {k: -2 * torch.rand(n, generator=g) for k in ("new", "old", "ref", "entropy")}

    total = 0.0
    for row in plan[0][0]:
        micro = make_micro_batch(row)
        joined = {k: torch.cat([values[s.tokens.tobytes()][k] for s in row]) for k in ("new", "old", "ref", "entropy")}
        fields = {**micro.fields, "old_log_prob": joined["old"], "ref_log_prob": joined["ref"]}
        total += float(policy_loss(joined["new"], joined["entropy"], fields, config)[0])

    per_trajectory: dict[object, list[float]] = {}
    for s, key in zip(batch.sequences, batch.keys, strict=True):
        v = values[s.tokens.tobytes()]
        for i in range(len(s.trained)):
            new, old, ref, entropy = (float(v[k][i]) for k in ("new", "old", "ref", "entropy"))
            advantage, rollout = float(s.fields["advantage"][i]), float(s.fields["rollout_log_prob"][i])
            ratio = math.exp(new - old)
            pg = -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage) * min(math.exp(old - rollout), 1.5)
            per_trajectory.setdefault(key, []).append(pg + 0.3 * (ref - new) ** 2 / 2 - 0.05 * entropy)
    means = [sum(v) / len(v) for v in per_trajectory.values()]
    tokens = [x for v in per_trajectory.values() for x in v]
    expected = sum(means) / len(means) if aggregation == "trajectory_mean" else sum(tokens) / len(tokens)
    assert total == pytest.approx(expected, rel=1e-4)


@given(st.integers(0, 50), st.integers(20, 300), st.integers(1, 4), st.sampled_from(["token_mean", "trajectory_mean"]))
@settings(max_examples=40, deadline=None)
def test_weights_do_not_depend_on_packing_or_ranks(seed, max_tokens, ranks, aggregation):
    batch = training_batch(make_samples(seed), Config(), VOCAB)
    plan = plan_steps(batch, steps=1, aggregation=aggregation, max_tokens=max_tokens, ranks=ranks, seed=(0,))
    placed = [s for rows in plan for row in rows[0] for s in row]
    expected = token_weights(batch.sequences, batch.keys, aggregation)
    found = {(s.tokens.tobytes(), s.trained.tobytes()): float(s.fields["weight"][0]) for s in placed}
    assert len(placed) == len(batch.sequences)
    for s, weight in zip(batch.sequences, expected, strict=True):
        assert found[(s.tokens.tobytes(), s.trained.tobytes())] == pytest.approx(weight, rel=1e-6)
    assert sum(float(s.fields["weight"].sum()) for s in placed) == pytest.approx(1.0, rel=1e-5)


def test_splitting_a_trajectory_into_segments_keeps_its_share():
    batch = training_batch(make_samples(), Config(), VOCAB)
    weights = token_weights(batch.sequences, batch.keys, "trajectory_mean")
    shares: dict[object, float] = {}
    for s, key, weight in zip(batch.sequences, batch.keys, weights, strict=True):
        shares[key] = shares.get(key, 0.0) + weight * len(s.trained)
    assert len(shares) < len(batch.sequences)  # some trajectories have several segments
    assert list(shares.values()) == pytest.approx([1 / len(shares)] * len(shares))

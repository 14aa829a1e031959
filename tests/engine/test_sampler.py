"""Sampling: the right distribution, the right log-prob, the same token for the same number."""

from __future__ import annotations

import math

import torch

from swe_rl.engine.embedded.sampler import sample
from swe_rl.engine.embedded.sampling_params import SamplingParams

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -float("inf")]])


def draw(params: SamplingParams, numbers: list[float]) -> list[int]:
    rows = len(numbers)
    return sample(LOGITS.expand(rows, -1), [params] * rows, numbers)[0]


def frequencies(params: SamplingParams, count: int = 4000) -> torch.Tensor:
    numbers = [(i + 0.5) / count for i in range(count)]  # every quantile once: frequencies are exact to 1 / count
    return torch.bincount(torch.tensor(draw(params, numbers)), minlength=5) / count


def test_sampled_frequencies_are_the_softmax() -> None:
    for temperature in (0.5, 1.0, 2.0):
        expected = torch.softmax(LOGITS[0] / temperature, -1)
        assert torch.allclose(frequencies(SamplingParams(temperature=temperature)), expected, atol=1e-3)


def test_top_k_and_top_p_renormalise_what_is_left() -> None:
    full = torch.softmax(LOGITS[0], -1)
    for params, kept in ((SamplingParams(top_k=2), 2), (SamplingParams(top_p=0.7), 2), (SamplingParams(top_p=0.6), 1)):
        expected = torch.where(torch.arange(5) < kept, full, torch.zeros(5))
        assert torch.allclose(frequencies(params), expected / expected.sum(), atol=1e-3)


def test_a_token_of_zero_probability_is_never_drawn() -> None:
    assert draw(SamplingParams(), [0.0, 1.0 - 2**-53]) == [0, 3]


def test_log_prob_is_of_the_scaled_distribution_before_filters() -> None:
    for params in (
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=0.5, top_k=1),
        SamplingParams(temperature=0.5, top_p=0.1),
    ):
        tokens, log_probs = sample(LOGITS, [params], [0.1])
        expected = torch.log_softmax(LOGITS[0] / params.temperature, -1)[tokens[0]]
        assert math.isclose(log_probs[0], float(expected), abs_tol=1e-6)


def test_greedy_has_log_probs_of_the_unscaled_distribution() -> None:
    tokens, log_probs = sample(LOGITS, [SamplingParams.parse({"temperature": 0})], [0.9])
    assert tokens == [0] and math.isclose(log_probs[0], float(LOGITS[0].log_softmax(-1)[0]), abs_tol=1e-6)


def test_rows_do_not_influence_one_another() -> None:
    params = [SamplingParams(), SamplingParams(greedy=True), SamplingParams(top_k=2), SamplingParams(temperature=3.0)]
    numbers = [0.95, 0.5, 0.99, 0.7]
    together = sample(LOGITS.expand(4, -1), params, numbers)
    alone = [sample(LOGITS, [p], [u]) for p, u in zip(params, numbers, strict=True)]
    assert together == ([a[0][0] for a in alone], [a[1][0] for a in alone])


def test_broken_logits_are_reported_as_nan() -> None:
    for bad in (float("nan"), float("inf")):
        _, log_probs = sample(torch.tensor([[bad, 1.0], [0.0, 1.0]]), [SamplingParams()] * 2, [0.5, 0.5])
        assert math.isnan(log_probs[0]) and math.isfinite(log_probs[1])

"""Rates and intervals against what is known about them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.evaluate.intervals import pass_at_k, resolve_rate


def test_independent_attempts_give_the_binomial_interval() -> None:
    rng = np.random.default_rng(3)
    outcomes = rng.random(600) < 0.3
    rate = resolve_rate((f"t{i}", bool(o)) for i, o in enumerate(outcomes))
    p = outcomes.mean()
    half = 1.96 * math.sqrt(p * (1 - p) / 600)
    assert rate.resolve_rate == pytest.approx(p)
    assert rate.ci95[0] == pytest.approx(p - half, abs=0.01)
    assert rate.ci95[1] == pytest.approx(p + half, abs=0.01)


def test_repeated_attempts_at_few_tasks_do_not_shrink_the_interval() -> None:
    few = resolve_rate((f"t{i}", i < 5) for i in range(20))
    repeated = resolve_rate((f"t{i}", i < 5) for i in range(20) for _ in range(50))
    assert repeated.n == 1000 and repeated.tasks == 20
    assert repeated.ci95[1] - repeated.ci95[0] == pytest.approx(few.ci95[1] - few.ci95[0], abs=0.02)


def test_none_or_all_resolved_still_has_width() -> None:
    assert resolve_rate([("a", False), ("b", False), ("c", False)] * 20).ci95 == (0.0, 1.0)
    zero = resolve_rate((f"t{i}", False) for i in range(300))
    assert zero.ci95 == (0.0, pytest.approx(0.01))


def test_seeded() -> None:
    data = [(f"t{i}", i % 3 == 0) for i in range(50)]
    assert resolve_rate(data) == resolve_rate(data)


@given(n=st.integers(1, 12), data=st.data())
def test_pass_at_k_equals_counting_subsets(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    expected = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert pass_at_k(c, n, k) == pytest.approx(expected)

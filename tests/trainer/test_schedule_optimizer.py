"""Learning-rate schedule, decay on matrices only, and the guard against numbers that are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from swe_rl.config import Config
from swe_rl.trainer.optimizer import build_optimizer, clip_gradients, optimizer_step
from swe_rl.trainer.schedule import lr_at


def test_warm_up_then_decay():
    settings = Config(lr=1.0, min_lr=0.1, lr_warmup_iters=4, lr_decay_style="linear", lr_decay_iters=14)
    assert [lr_at(s, settings, 99) for s in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert lr_at(4, settings, 99) == 1.0
    assert lr_at(9, settings, 99) == pytest.approx(0.55)
    assert lr_at(14, settings, 99) == lr_at(1000, settings, 99) == pytest.approx(0.1)


def test_cosine_uses_the_length_of_the_run_by_default():
    settings = Config(lr=2.0, lr_decay_style="cosine")
    assert lr_at(0, settings, 10) == 2.0
    assert lr_at(5, settings, 10) == pytest.approx(1.0)
    assert lr_at(10, settings, 10) == pytest.approx(0.0)
    assert lr_at(10, Config(lr=2.0), 10) == 2.0


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]


def test_adamw_equals_the_formula_and_decays_matrices_only():
    settings = Config(lr=0.1, weight_decay=0.5, adam_beta1=0.9, adam_beta2=0.98, adam_eps=1e-8)
    actual, optimizer = parameters(), None
    expected = [p.detach().clone() for p in actual]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in expected]
    optimizer = build_optimizer(actual, settings)
    for step in range(1, 4):
        for i, p in enumerate(actual):
            p.grad = torch.full_like(p, 0.1 * step)
            m, v = moments[i]
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            v.mul_(0.98).add_(p.grad**2, alpha=0.02)
            if p.ndim == 2:
                expected[i] -= 0.05 * 0.5 * expected[i]
            expected[i] -= 0.05 * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-8)
        optimizer_step(optimizer, lr=0.05, clip_grad=0.0, loss=1.0)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-5, atol=1e-6)


def test_clipping_scales_to_the_bound():
    ps = parameters()
    for p in ps:
        p.grad = torch.ones_like(p)
    assert clip_gradients(ps, 0.0) == pytest.approx(math.sqrt(17))
    assert clip_gradients(ps, 2.0) == pytest.approx(math.sqrt(17))
    assert math.sqrt(sum(float(p.grad.square().sum()) for p in ps)) == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(("loss", "gradient"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_a_step_that_is_not_finite_changes_nothing(loss, gradient):
    ps = parameters()
    before = [p.detach().clone() for p in ps]
    optimizer = build_optimizer(ps, Config(lr=0.1))
    for p in ps:
        p.grad = torch.full_like(p, gradient)
    _, stepped = optimizer_step(optimizer, 0.1, 1.0, loss)
    assert not stepped
    assert all(torch.equal(a, b) for a, b in zip(ps, before, strict=True))
    assert all(p.grad is None for p in ps)
    assert not optimizer.state

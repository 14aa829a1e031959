"""Chunked log-probs: the values and gradients of the plain formula, without its memory."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swe_rl.trainer.log_probs import chunked_log_probs

N, D, V = 50, 16, 37


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, D, generator=g).requires_grad_()
    weight = (0.4 * torch.randn(V, D, generator=g)).requires_grad_()
    return hidden, weight, torch.randint(V, (N,), generator=g)


def plain(hidden, weight, targets, temperature):
    log_p = torch.log_softmax((hidden.double() @ weight.double().t()) / temperature, dim=-1)
    return log_p[torch.arange(N), targets], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
@pytest.mark.parametrize("chunk", [1, 7, N, 1000])
@pytest.mark.parametrize("use", ["log_probs", "entropy", "both"])
def test_values_and_gradients_equal_the_plain_formula(temperature, chunk, use):
    hidden, weight, targets = inputs()
    coefficient = torch.linspace(-1, 2, N)

    def loss(log_probs, entropy):
        return (
            coefficient * log_probs * (use != "entropy") + coefficient.flip(0) * entropy * (use != "log_probs")
        ).sum()

    expected = plain(hidden, weight, targets, temperature)
    expected_grads = torch.autograd.grad(loss(*expected), (hidden, weight))
    actual = chunked_log_probs(hidden, weight, targets, temperature=temperature, chunk_size=chunk)
    if use == "both":
        actual_loss = loss(*actual)
    else:
        actual_loss = (coefficient * actual[0]).sum() if use == "log_probs" else (coefficient.flip(0) * actual[1]).sum()
    actual_grads = torch.autograd.grad(actual_loss, (hidden, weight))
    for a, b in zip([*actual, *actual_grads], [*expected, *expected_grads], strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-5)


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements any operation returned."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.numel())
        return result


def test_no_tensor_of_tokens_by_vocabulary_exists_forward_or_backward():
    n, d, v, chunk = 512, 8, 300, 32
    hidden, weight = torch.randn(n, d, requires_grad=True), torch.randn(v, d, requires_grad=True)
    targets = torch.randint(v, (n,))
    with LargestTensor() as seen:
        log_probs, entropy = chunked_log_probs(hidden, weight, targets, chunk_size=chunk)
        (log_probs.sum() + entropy.sum()).backward()
    assert chunk * v <= seen.largest <= max(chunk * v, n * d)
    with LargestTensor() as seen:  # the check sees what it must see
        torch.log_softmax(hidden @ weight.t(), -1)
    assert seen.largest == n * v


def test_temperature_must_be_positive():
    hidden, weight, targets = inputs()
    with pytest.raises(ValueError, match="temperature"):
        chunked_log_probs(hidden, weight, targets, temperature=0.0)

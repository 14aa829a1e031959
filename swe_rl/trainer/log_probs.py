"""Log-probabilities and entropies of trained tokens, a chunk of tokens at a time.

With a vocabulary of 150,000, fp32 logits of 16,000 tokens are 10 GB, and autograd would keep several copies. Here only
`chunk_size` rows of logits exist at any time: the forward pass keeps two numbers per token, the backward pass computes
each chunk's logits again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable


class _ChunkedLogProbs(torch.autograd.Function):
    """log softmax(h W^T / temperature) at the targets, and its entropy, with a chunked hand-written backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        chunk_size: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = hidden.shape[0]
        log_z = torch.empty(count, dtype=torch.float32, device=hidden.device)
        log_probs = torch.empty_like(log_z)
        entropy = torch.empty_like(log_z)
        for start in range(0, count, chunk_size):
            rows = slice(start, start + chunk_size)
            logits = _logits(hidden[rows], weight, temperature)
            log_z[rows] = torch.logsumexp(logits, dim=-1)
            log_probs[rows] = logits.gather(1, targets[rows, None]).squeeze(1) - log_z[rows]
            # H = log Z - sum_j p_j z_j
            probs = torch.exp(logits - log_z[rows, None])
            entropy[rows] = log_z[rows] - torch.einsum("nv,nv->n", probs, logits)
        ctx.save_for_backward(hidden, weight, targets, log_z, entropy)
        ctx.temperature, ctx.chunk_size = temperature, chunk_size
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_probs: torch.Tensor | None, grad_entropy: torch.Tensor | None) -> tuple[Any, ...]:
        hidden, weight, targets, log_z, entropy = ctx.saved_tensors
        if grad_log_probs is None and grad_entropy is None:
            return None, None, None, None, None
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start in range(0, hidden.shape[0], ctx.chunk_size):
            rows = slice(start, start + ctx.chunk_size)
            logits = _logits(hidden[rows], weight, ctx.temperature)
            log_p = logits.sub_(log_z[rows, None])
            probs = torch.exp(log_p)
            # d log p_target / d z_j = [j = target] - p_j ;  d H / d z_j = -p_j (log p_j + H)
            slope = torch.zeros_like(log_z[rows]) if grad_log_probs is None else grad_log_probs[rows]
            if grad_entropy is None:
                grad = probs.mul_(-slope[:, None])
            else:
                scale = log_p.add_(entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(slope[:, None])
                grad = probs.mul_(scale.neg_())
            grad.scatter_add_(1, targets[rows, None], slope[:, None])
            grad = grad.div_(ctx.temperature).to(hidden.dtype)
            torch.mm(grad, weight, out=grad_hidden[rows])
            grad_weight += grad.t() @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None


def _logits(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    """[n, V] fp32 logits of a chunk, divided by the temperature."""
    logits = (hidden @ weight.t()).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def chunked_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int = 1024,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of `targets` and entropies (nats), both fp32 [M], of the temperature-scaled distribution.

    hidden: [M, D] outputs of the decoder at the predicting positions; weight: [V, D] of the language-model head;
    targets: [M] int64. The definition is the engine's: logits are divided by `temperature`, then normalised.
    Both results are differentiable with respect to hidden and weight.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    return _ChunkedLogProbs.apply(hidden, weight, targets, float(temperature), int(chunk_size))

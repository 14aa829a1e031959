"""From logits to tokens: temperature, top-k, top-p, and the log-prob that training needs."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch

from swe_rl.engine.embedded.sampling_params import SamplingParams


def sample(logits: torch.Tensor, params: Rows[SamplingParams], uniforms: Rows[float]) -> tuple[list[int], list[float]]:
    """One token per row of `logits` [rows, vocabulary], and its log-prob.

    The log-prob is that of the temperature-scaled distribution before top-k and top-p (as SGLang returns it). A row with
    NaN or infinite logits comes back with log-prob NaN: the caller ends that request.
    uniforms: one number in [0, 1) per row; sampling inverts the cumulative distribution, so that equal numbers give equal
    tokens whatever else is in the batch.
    """
    scaled = logits.float()
    temperatures = torch.tensor([p.temperature for p in params])
    if not bool((temperatures == 1.0).all()):
        scaled = scaled / temperatures[:, None]
    log_probs = torch.log_softmax(scaled, dim=-1)
    tokens = torch.argmax(log_probs, dim=-1)
    random_rows = [i for i, p in enumerate(params) if not p.greedy]
    if random_rows:
        chosen = log_probs if len(random_rows) == len(params) else log_probs[random_rows]
        probs = chosen.exp().double()
        filtered = [i for i in random_rows if params[i].top_p < 1.0 or 0 < params[i].top_k < logits.shape[-1]]
        if filtered:
            probs = _filter(probs, [params[i] for i in random_rows])
        cumulative = probs.cumsum(dim=-1)
        target = torch.tensor([uniforms[i] for i in random_rows], dtype=torch.float64)[:, None] * cumulative[:, -1:]
        # right=True: the first token whose cumulative probability exceeds the target, so one of zero probability never is
        drawn = torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)
        tokens[random_rows] = drawn
    picked = log_probs.gather(-1, tokens[:, None]).squeeze(-1)
    return tokens.tolist(), picked.tolist()


def _filter(probs: torch.Tensor, params: Rows[SamplingParams]) -> torch.Tensor:
    """Zero what top-k and top-p leave out: per row the k likeliest, and of the sorted tokens those before mass p is passed."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    vocabulary = probs.shape[-1]
    top_k = torch.tensor([p.top_k or vocabulary for p in params])[:, None]
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64)[:, None]
    dropped = (torch.arange(vocabulary)[None] >= top_k) | (ordered.cumsum(dim=-1) - ordered > top_p)
    return torch.zeros_like(probs).scatter_(-1, index, ordered.masked_fill(dropped, 0.0))

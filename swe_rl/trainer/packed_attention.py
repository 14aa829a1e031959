"""Causal attention inside each sequence of a packed row, for machines without FlashAttention.

Registered with transformers' AttentionInterface under the name `packed_sdpa`. Each sequence is one causal SDPA call, so
the cost is the sum of squares of the lengths; a dense block-diagonal mask would cost the square of the sum.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available

PACKED_SDPA = "packed_sdpa"


def packed_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within sequences.

    query: [1, heads, L, D]; key, value: [1, kv heads, L, D]; cu_seq_lens_q: [S + 1] starts of the sequences.
    Returns [1, L, heads, D] as transformers' attention functions do. Raises ValueError for what it cannot do right
    (padding masks, batches of rows, attention sinks): silently wrong attention trains the wrong thing.
    """
    if cu_seq_lens_q is None or attention_mask is not None or query.shape[0] != 1 or kwargs.get("s_aux") is not None:
        raise ValueError(f"{PACKED_SDPA} takes one packed row with cu_seq_lens_q, no mask and no attention sinks")
    starts: list[int] = cu_seq_lens_q.tolist()
    sizes = [end - start for start, end in itertools.pairwise(starts)]
    outputs = [
        F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=_window_mask(q, sliding_window),
            dropout_p=dropout,
            is_causal=sliding_window is None or q.shape[2] <= sliding_window,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for q, k, v in zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _window_mask(query: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """[T, T] causal band of width `window`, or None where the sequence is not longer than it."""
    length = query.shape[2]
    if window is None or length <= window:
        return None
    causal = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    return causal & ~causal.tril(-window)


AttentionInterface.register(PACKED_SDPA, packed_sdpa)


def choose_attention(device: torch.device | str, dtype: torch.dtype) -> str:
    """The name of the packed attention for layers that compute in `dtype` on `device`.

    FlashAttention 2 on GPUs that have it, and only for the dtypes that it has kernels for; else `packed_sdpa`.
    """
    halves = dtype in (torch.bfloat16, torch.float16)
    return "flash_attention_2" if halves and "cuda" in str(device) and is_flash_attn_2_available() else PACKED_SDPA

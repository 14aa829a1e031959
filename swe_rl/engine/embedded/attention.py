"""Attention over the engine's own KV rows, plugged into transformers' attention interface.

The model runs on one packed row of tokens [1, n]: first one token of each decoding sequence, then the prompt chunks.
Linear layers see all of them as one matrix; only attention has to know which token belongs to which sequence. No model
code is changed: transformers hands the `batch` keyword through to the attention function (as vLLM's backend uses it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from swe_rl.engine.embedded.kv_rows import KVRows
from swe_rl.errors import UsageError

NAME = "swe_rl_packed"
IGNORED = {"dropout", "position_ids", "use_cache", "is_causal", "output_attentions", "cache_position"}


@dataclass(frozen=True)
class Chunk:
    """`length` tokens of one prompt; KV row `row` already holds the `start` tokens before them."""

    row: int
    start: int
    length: int


@dataclass
class PackedBatch:
    """What one forward pass computes. Decoding sequences sit in rows 0 to len(decode_lengths) - 1.

    decode_lengths: per decoding row, its tokens including the new one. chunks: in the order of the packed tokens.
    """

    rows: KVRows
    decode_lengths: list[int]
    chunks: list[Chunk]
    _masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.decode_span = max(self.decode_lengths, default=0)
        self.decode_index = torch.arange(len(self.decode_lengths))
        self.decode_positions = torch.tensor(self.decode_lengths, dtype=torch.long) - 1

    def decode_mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive [rows, 1, 1, span]: 0 where a key may be read, -inf past a row's end or before its window."""
        if window not in self._masks:
            keys, last = torch.arange(self.decode_span), self.decode_positions[:, None]
            hidden = keys > last
            if window is not None:
                hidden |= keys <= last - window
            mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
            self._masks[window] = mask[:, None, None] if bool(hidden.any()) else None
        return self._masks[window]


def chunk_mask(chunk: Chunk, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Additive causal mask [chunk, start + chunk] of a prompt chunk whose first token is at position `start`."""
    query = torch.arange(chunk.start, chunk.start + chunk.length)[:, None]
    key = torch.arange(chunk.start + chunk.length)[None]
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    batch: PackedBatch,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, n, size], key and value [1, key-value heads, n, size] -> [1, n, heads, size].

    Writes the new keys and values into the rows, then reads them back with everything before them.
    """
    unsupported = {name for name, given in others.items() if given is not None} - IGNORED
    if unsupported:
        raise UsageError(f"the embedded engine cannot compute attention with {sorted(unsupported)}; use SGLang")
    keys, values = batch.rows.keys[module.layer_idx], batch.rows.values[module.layer_idx]
    heads, total, size = query.shape[1:]
    kv_heads = key.shape[1]
    output = query.new_empty(1, total, heads, size)
    count = len(batch.decode_lengths)
    if count:
        index, positions, span = batch.decode_index, batch.decode_positions, batch.decode_span
        keys[index, :, positions] = key[0, :, :count].transpose(0, 1)
        values[index, :, positions] = value[0, :, :count].transpose(0, 1)
        # query heads that share a key-value head become query positions: no key is ever repeated in memory
        grouped = query[0, :, :count].transpose(0, 1).reshape(count, kv_heads, heads // kv_heads, size)
        mask = batch.decode_mask(sliding_window, query.dtype)
        if mask is not None:
            mask = mask.expand(count, 1, heads // kv_heads, span)
        attended = F.scaled_dot_product_attention(
            grouped, keys[:count, :, :span], values[:count, :, :span], attn_mask=mask, scale=scaling
        )
        output[0, :count] = attended.reshape(count, heads, size)
    offset = count
    for chunk in batch.chunks:
        end, tokens = chunk.start + chunk.length, slice(offset, offset + chunk.length)
        keys[chunk.row, :, chunk.start : end] = key[0, :, tokens]
        values[chunk.row, :, chunk.start : end] = value[0, :, tokens]
        causal = chunk.start == 0 and (sliding_window is None or sliding_window >= end)
        attended = F.scaled_dot_product_attention(
            query[:, :, tokens],
            keys[chunk.row : chunk.row + 1, :, :end],
            values[chunk.row : chunk.row + 1, :, :end],
            attn_mask=None if causal else chunk_mask(chunk, sliding_window, query.dtype),
            is_causal=causal,
            scale=scaling,
            enable_gqa=heads != kv_heads,
        )
        output[:, tokens] = attended.transpose(1, 2)
        offset += chunk.length
    return output, None


AttentionInterface.register(NAME, packed_attention)

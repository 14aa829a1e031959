"""The KV cache of all running sequences: one tensor, one row a sequence, running rows side by side.

A decode step then reads `rows[:n]` as a view. Nothing is concatenated per step; the tensor doubles when it must grow.
"""

from __future__ import annotations

import torch


class KVRows:
    """`data` is [2 x layers (keys, then values), rows, key-value heads, tokens, head size]."""

    def __init__(self, layers: int, heads: int, head_size: int, dtype: torch.dtype, *, max_tokens: int) -> None:
        self.layers = layers
        self.max_tokens = max_tokens
        self.data = torch.zeros(2 * layers, 0, heads, 0, head_size, dtype=dtype)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def reserve(self, rows: int, tokens: int) -> None:
        """Make room for `rows` rows of `tokens` tokens. Cells never written are zero: masked cells must stay finite."""
        layers2, have_rows, heads, have_tokens, size = self.data.shape
        if rows <= have_rows and tokens <= have_tokens:
            return
        if rows > have_rows:
            rows = max(rows, 2 * have_rows, 4)
        if tokens > have_tokens:
            tokens = min(max(tokens, 2 * have_tokens, 256), max(tokens, self.max_tokens))
        grown = self.data.new_zeros(layers2, max(rows, have_rows), heads, max(tokens, have_tokens), size)
        grown[:, :have_rows, :, :have_tokens] = self.data
        self.data = grown
        self.keys = list(grown[: self.layers].unbind(0))
        self.values = list(grown[self.layers :].unbind(0))

    def copy_out(self, row: int, length: int) -> torch.Tensor:
        """A copy of the first `length` tokens of a row: [2 x layers, heads, length, head size]."""
        return self.data[:, row, :, :length].clone()

    def copy_in(self, row: int, kv: torch.Tensor, length: int) -> None:
        self.data[:, row, :, :length] = kv[:, :, :length]

    def copy_row(self, source: int, target: int, length: int) -> None:
        self.data[:, target, :, :length] = self.data[:, source, :, :length]

    def swap(self, a: int, b: int, length: int) -> None:
        kept = self.copy_out(a, length)
        self.copy_row(b, a, length)
        self.copy_in(b, kept, length)

    def heal(self) -> None:
        """Zero every cell that is not finite: even masked, 0 x NaN is NaN, and rows are used again."""
        self.data.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

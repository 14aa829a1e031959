"""The KV cache of all running sequences: one tensor, one row a sequence, running rows side by side.

A decode step then reads `rows[:n]` as a view. Nothing is concatenated per step; the tensor doubles when it must grow, and
where that would pass its bound it gives up unused rows for longer ones, or unused length for more rows.
"""

from __future__ import annotations

import torch


class KVRows:
    """`data` is [2 x layers (keys, then values), rows, key-value heads, tokens, head size].

    max_length: tokens of the longest row. max_tokens: the most cells, rows x tokens.
    """

    def __init__(
        self, layers: int, heads: int, head_size: int, dtype: torch.dtype, *, max_length: int, max_tokens: int
    ) -> None:
        self.layers = layers
        self.max_length = max_length
        self.max_tokens = max_tokens
        self.data = torch.zeros(2 * layers, 0, heads, 0, head_size, dtype=dtype)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def reserve(self, rows: int, tokens: int) -> None:
        """Make room for `rows` rows of `tokens` tokens, at most `max_tokens` cells; no more than that is in use.

        Cells never written are zero: masked cells must stay finite. Raises RuntimeError where there is no memory.
        """
        layers2, have_rows, heads, have_tokens, size = self.data.shape
        if rows <= have_rows and tokens <= have_tokens:
            return
        new_rows, new_tokens = have_rows, have_tokens
        if rows > have_rows:
            new_rows = max(rows, 2 * have_rows, 4)
        if tokens > have_tokens:
            new_tokens = min(max(tokens, 2 * have_tokens, 256), max(tokens, self.max_length))
        if new_rows * new_tokens > self.max_tokens:  # length first, a quarter to spare: a growing row moves all
            spare = max(tokens + tokens // 4, self.max_tokens // new_rows)
            new_tokens = max(tokens, min(new_tokens, spare, self.max_tokens // rows))
            new_rows = max(rows, min(new_rows, self.max_tokens // new_tokens))
        kept_rows, kept_tokens = min(have_rows, new_rows), min(have_tokens, new_tokens)
        grown = self.data.new_zeros(layers2, new_rows, heads, new_tokens, size)
        grown[:, :kept_rows, :, :kept_tokens] = self.data[:, :kept_rows, :, :kept_tokens]
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

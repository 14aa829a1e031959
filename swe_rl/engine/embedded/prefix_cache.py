"""Reuse of computed KV: a new prompt that begins like an earlier sequence copies its KV instead of computing it.

The next turn of a conversation extends the last one, and the attempts of a group share their prompt. Entries are found
by hashes of 16-token blocks, each hash covering all tokens before it; the tokens themselves are compared before use.
The cache is cleared with every weight update, so KV of old weights never serves a new request.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

from swe_rl.engine.embedded.kv_rows import KVRows
from swe_rl.engine.embedded.sequence import BLOCK, Sequence, extend_chain


@dataclass(eq=False)
class Prefix:
    """Tokens whose KV is at hand: in `kv` (a finished sequence) or in the row of `owner` (one that still runs)."""

    tokens: list[int]
    chain: list[int]
    kv: torch.Tensor | None = None
    owner: Sequence | None = None


class PrefixCache:
    """Keeps the least recently used entries out: stored ones hold at most `max_tokens` tokens together."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.stored_tokens = 0
        self._entries: OrderedDict[int, Prefix] = OrderedDict()  # by id(), least recently used first
        self._blocks: dict[int, dict[int, Prefix]] = {}  # block hash -> entries that hold the block
        self._shared: dict[int, Prefix] = {}  # id() of a running sequence -> the entry in its row

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sequence: Sequence, limit: int) -> tuple[Prefix | None, int]:
        """The entry that shares the longest beginning with `sequence`, and how many tokens (at most `limit`)."""
        chain, low, high = sequence.chain, 0, min(len(sequence.chain), limit // BLOCK)
        while low < high:  # entries hold every block before one they hold, so the depth can be bisected
            middle = (low + high + 1) // 2
            low, high = (middle, high) if chain[middle - 1] in self._blocks else (low, middle - 1)
        if low == 0:
            return None, 0
        best, best_length = None, 0
        for prefix in list(self._blocks[chain[low - 1]].values())[-8:]:
            length = _common(prefix.tokens, sequence.tokens, limit)
            if length > best_length:
                best, best_length = prefix, length
        if best is not None:
            self._entries.move_to_end(id(best))
        return best, best_length

    def share(self, sequence: Sequence) -> None:
        """Let others copy the prompt of a running sequence from its row."""
        if sequence.chain and id(sequence) not in self._shared:
            prefix = Prefix(sequence.tokens[: sequence.prompt_length], sequence.chain, owner=sequence)
            self._shared[id(sequence)] = prefix
            self._add(prefix)

    def unshare(self, sequence: Sequence) -> None:
        """Forget what `share` offered: the sequence leaves its row."""
        prefix = self._shared.pop(id(sequence), None)
        if prefix is not None:
            self._remove(prefix)

    def store(self, sequence: Sequence, rows: KVRows) -> None:
        """Keep the KV of a sequence that leaves its row; entries that it extends are dropped."""
        tokens = sequence.tokens[: sequence.computed]
        chain = extend_chain(sequence.chain[: len(tokens) // BLOCK], tokens)
        if not chain or len(tokens) > self.max_tokens:
            return
        for older in [p for p in self._blocks.get(chain[0], {}).values() if p.kv is not None]:
            if older.tokens == tokens[: len(older.tokens)]:
                self._remove(older)
        while self.stored_tokens + len(tokens) > self.max_tokens:
            self._remove(next(p for p in self._entries.values() if p.kv is not None))
        self._add(Prefix(tokens, chain, kv=rows.copy_out(sequence.row, len(tokens))))

    def clear(self) -> None:
        self._entries.clear()
        self._shared.clear()
        self._blocks.clear()
        self.stored_tokens = 0

    def _add(self, prefix: Prefix) -> None:
        self._entries[id(prefix)] = prefix
        for block in prefix.chain:
            self._blocks.setdefault(block, {})[id(prefix)] = prefix
        if prefix.kv is not None:
            self.stored_tokens += len(prefix.tokens)

    def _remove(self, prefix: Prefix) -> None:
        del self._entries[id(prefix)]
        for block in prefix.chain:
            holders = self._blocks[block]
            del holders[id(prefix)]
            if not holders:
                del self._blocks[block]
        if prefix.kv is not None:
            self.stored_tokens -= len(prefix.tokens)


def _common(a: list[int], b: list[int], limit: int) -> int:
    """How many leading tokens agree, at most `limit`."""
    bound = min(len(a), len(b), limit)
    if a[:bound] == b[:bound]:
        return bound
    return next(i for i in range(bound) if a[i] != b[i])

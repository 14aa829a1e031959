"""The running sequences and their cache rows: decoding ones first and side by side, then those whose prompt is read."""

from __future__ import annotations

from collections.abc import Iterator

from swe_rl.engine.embedded.attention import Chunk, PackedBatch
from swe_rl.engine.embedded.kv_rows import KVRows
from swe_rl.engine.embedded.sequence import Sequence


class RunningBatch:
    """`running[i]` owns row i. Rows move when a sequence joins the decoding ones or leaves, never between."""

    def __init__(self, rows: KVRows) -> None:
        self.rows = rows
        self.running: list[Sequence] = []
        self.decoding = 0  # the first `decoding` of `running` have exactly one token to compute

    def add(self, sequence: Sequence) -> None:
        """Give a sequence the next free row."""
        sequence.row = len(self.running)
        self.running.append(
            sequence
        )  # first: if there is no memory for its row, it ends with the others and is not lost
        self._reserve()

    def _reserve(self) -> None:
        self.rows.reserve(len(self.running), max((len(s.tokens) for s in self.running), default=0))

    def start_decoding(self, sequence: Sequence) -> None:
        """Move a sequence whose prompt is computed behind the decoding ones."""
        other = self.running[self.decoding]
        if other is not sequence:
            self.rows.swap(sequence.row, other.row, max(sequence.computed, other.computed))
            self._place(other, sequence.row)
            self._place(sequence, self.decoding)
        self.decoding += 1

    def remove(self, sequence: Sequence) -> None:
        """Free a row; the last decoding row, then the last row of all, move into the holes."""
        hole = sequence.row
        if hole < self.decoding:
            self.decoding -= 1
            hole = self._fill(hole, self.decoding)
        self._fill(hole, len(self.running) - 1)
        self.running.pop()
        sequence.row = -1

    def _fill(self, hole: int, source: int) -> int:
        if source != hole:
            self.rows.copy_row(source, hole, self.running[source].computed)
            self._place(self.running[source], hole)
        return source

    def _place(self, sequence: Sequence, row: int) -> None:
        self.running[row] = sequence
        sequence.row = row

    def plan(self, prefill_budget: int) -> tuple[list[int], list[int], PackedBatch]:
        """Tokens, their positions and the batch of the next forward pass: one token a decoding row, then prompt chunks."""
        decoding = self.running[: self.decoding]
        tokens = [sequence.tokens[sequence.computed] for sequence in decoding]
        positions = [sequence.computed for sequence in decoding]
        chunks: list[Chunk] = []
        for sequence in self.running[self.decoding :]:
            length = min(sequence.pending, prefill_budget)
            if length == 0:
                break
            start = sequence.computed
            tokens += sequence.tokens[start : start + length]
            positions += range(start, start + length)
            chunks.append(Chunk(sequence.row, start, length))
            prefill_budget -= length
        self._reserve()
        return tokens, positions, PackedBatch(self.rows, [p + 1 for p in positions[: self.decoding]], chunks)

    def chunk_owners(self, batch: PackedBatch) -> Iterator[tuple[Sequence, Chunk, int]]:
        """Each chunk with its sequence and the packed index of its first token."""
        offset = len(batch.decode_lengths)
        for chunk in batch.chunks:
            yield self.running[chunk.row], chunk, offset
            offset += chunk.length

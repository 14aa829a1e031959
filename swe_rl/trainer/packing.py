"""Sequences of ragged lengths become micro-batches without padding.

A micro-batch is one row of tokens: sequences end to end, position ids restarting at each. Agent trajectories differ in
length by a factor of ten, so padding to the longest would spend most of the arithmetic on nothing, and a padding token
with mask 1 would be trained (a fault seen in peers). Only positions whose next token is trained reach the vocabulary.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from swe_rl.errors import DataError


@dataclass(frozen=True)
class TrainingSequence:
    """One training sequence.

    tokens: [T] int64. trained: [M] int64, the indices t >= 1 of the tokens that the loss sees; their log-prob is
    log p(tokens[t] | tokens[:t]). fields: named float32 arrays [M], one value per trained token ("weight", ...).
    """

    tokens: np.ndarray
    trained: np.ndarray
    fields: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.trained) and not (int(self.trained.min()) >= 1 and int(self.trained.max()) < len(self.tokens)):
            raise DataError(
                f"a trained token must have a token before it: trained indices span {int(self.trained.min())}.."
                f"{int(self.trained.max())}, the sequence has {len(self.tokens)} tokens"
            )
        for name, values in self.fields.items():
            if len(values) != len(self.trained):
                raise DataError(f"field '{name}' has {len(values)} values for {len(self.trained)} trained tokens")


@dataclass
class MicroBatch:
    """Sequences packed into one row of L tokens, M of which are trained.

    input_ids, position_ids: [L] int64. cu_seqlens: [S + 1] int32, where sequences begin (and L). predict: [M], the
    positions whose output predicts a trained token. targets: [M], those tokens. fields: float32 [M] each.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int
    predict: torch.Tensor
    targets: torch.Tensor
    fields: dict[str, torch.Tensor]

    @property
    def tokens(self) -> int:
        return int(self.input_ids.numel())

    def to(self, device: torch.device | str) -> MicroBatch:
        return MicroBatch(
            self.input_ids.to(device),
            self.position_ids.to(device),
            self.cu_seqlens.to(device),
            self.max_seqlen,
            self.predict.to(device),
            self.targets.to(device),
            {name: values.to(device) for name, values in self.fields.items()},
        )


def make_micro_batch(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Pack sequences (all with the same fields) into one micro-batch, in their order."""
    lengths = [len(s.tokens) for s in sequences]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    trained = np.concatenate([s.trained + start for s, start in zip(sequences, starts, strict=False)])
    input_ids = torch.from_numpy(np.concatenate([s.tokens for s in sequences]).astype(np.int64))
    predict = torch.from_numpy(trained.astype(np.int64) - 1)
    return MicroBatch(
        input_ids=input_ids,
        position_ids=torch.from_numpy(np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])),
        cu_seqlens=torch.from_numpy(starts.astype(np.int32)),
        max_seqlen=max(lengths),
        predict=predict,
        targets=input_ids[predict + 1],
        fields={
            name: torch.from_numpy(np.concatenate([s.fields[name] for s in sequences]).astype(np.float32))
            for name in sequences[0].fields
        },
    )


def placeholder(fields: Sequence[str]) -> TrainingSequence:
    """A sequence of two tokens whose fields are all 0.0 (weight included): nothing of it is trained.

    A rank without a sequence for a micro-batch runs it, because every rank must take part in every collective.
    """
    values = np.zeros(1, np.float32)
    return TrainingSequence(np.zeros(2, np.int64), np.ones(1, np.int64), dict.fromkeys(fields, values))


def plan_micro_batches(lengths: Sequence[int], max_tokens: int, ranks: int = 1) -> list[list[list[int]]]:
    """Indices of sequences by rank and micro-batch: `plan[rank][k]` is one micro-batch.

    Every rank gets the same number of micro-batches, as few as fit, of at most `max_tokens` tokens each; a sequence
    longer than that is a micro-batch of its own (a sequence is never split). Loads are balanced by longest-first greedy
    assignment (LPT, Graham 1969), and the k-th micro-batches of the ranks are of similar size. A micro-batch may be
    empty where there are fewer sequences than ranks. Deterministic.
    """
    if max_tokens < 1 or ranks < 1:
        raise ValueError(f"max_tokens ({max_tokens}) and ranks ({ranks}) must be positive")
    if not lengths:
        return [[] for _ in range(ranks)]
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    per_rank = max(1, -(-sum(min(n, max_tokens) for n in lengths) // (max_tokens * ranks)))
    while True:
        bins, loads = _longest_first(lengths, order, per_rank * ranks)
        if all(load <= max_tokens or len(members) <= 1 for members, load in zip(bins, loads, strict=True)):
            break
        per_rank += 1
    by_load = sorted(range(len(bins)), key=lambda b: (-loads[b], b))
    plan: list[list[list[int]]] = [[] for _ in range(ranks)]
    for row in range(per_rank):
        members = by_load[row * ranks : (row + 1) * ranks]
        for rank, b in enumerate(members if row % 2 == 0 else reversed(members)):
            plan[rank].append(bins[b])
    return plan


def _longest_first(lengths: Sequence[int], order: Sequence[int], count: int) -> tuple[list[list[int]], list[int]]:
    """Put each sequence, longest first, into the bin with the least tokens."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, b) for b in range(count)]
    for i in order:
        load, b = heapq.heappop(heap)
        bins[b].append(i)
        heapq.heappush(heap, (load + lengths[i], b))
    loads = [0] * count
    for load, b in heap:
        loads[b] = load
    return bins, loads

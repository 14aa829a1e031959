"""Demonstrations for `swe-rl sft`: compact in memory, planned into batches of similar length."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from swe_rl.errors import DataError


@dataclass(frozen=True)
class Batch:
    """tokens, weights: [rows, longest]; padding has weight 0 and stands at the right, where causal attention ignores it."""

    tokens: torch.Tensor
    weights: torch.Tensor
    real_tokens: int


class Demonstrations:
    """Rows as arrays. `answers[i][j]` says whether token j of row i is the demonstrator's."""

    def __init__(self, tokens: list[np.ndarray], answers: list[np.ndarray], dropped: int) -> None:
        self.tokens, self.answers, self.dropped = tokens, answers, dropped
        self.total_tokens = sum(len(row) for row in tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def plan(self, batch_tokens: int, seed: int) -> list[list[int]]:
        """Row numbers of each batch of one epoch: shuffled, with neighbours of similar length in one batch."""
        rng = random.Random(seed)
        order = list(range(len(self.tokens)))
        rng.shuffle(order)
        batches: list[list[int]] = []
        window = 2048
        for low in range(0, len(order), window):
            rows = sorted(order[low : low + window], key=lambda i: len(self.tokens[i]))
            current: list[int] = []
            for row in rows:
                if current and (len(current) + 1) * len(self.tokens[row]) > batch_tokens:
                    batches.append(current)
                    current = []
                current.append(row)
            batches.append(current)
        rng.shuffle(batches)
        return batches

    def batch(self, rows: Sequence[int], context_weight: float) -> Batch:
        longest = max(len(self.tokens[row]) for row in rows)
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        weights = torch.zeros(len(rows), longest)
        for place, row in enumerate(rows):
            ids, answers = self.tokens[row], self.answers[row]
            tokens[place, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
            weights[place, : len(ids)] = torch.from_numpy(np.where(answers, 1.0, context_weight)).float()
        return Batch(tokens, weights, sum(len(self.tokens[row]) for row in rows))


def load_demonstrations(paths: Sequence[str], *, max_tokens: int) -> Demonstrations:
    """Read token-form JSONL files. Raises DataError naming file and line of a bad row, or if nothing is left."""
    tokens: list[np.ndarray] = []
    answers: list[np.ndarray] = []
    dropped = 0
    for path in paths:
        with Path(path).open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                ids, mask = _row(line, f"{path}:{number}")
                if len(ids) > max_tokens:
                    dropped += 1
                    continue
                tokens.append(ids)
                answers.append(mask)
    if not tokens:
        raise DataError(f"no demonstration of at most {max_tokens} tokens in {', '.join(paths)}")
    return Demonstrations(tokens, answers, dropped)


def _row(line: str, where: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        row = json.loads(line)
        ids = np.asarray(row["tokens"], dtype=np.int32)
        mask = np.asarray(row["loss_mask"], dtype=bool)
        prompt_length = int(row["prompt_length"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: not a demonstration row (tokens, prompt_length, loss_mask): {error!r}") from error
    if ids.ndim != 1 or prompt_length + len(mask) != len(ids) or not mask.any():
        raise DataError(
            f"{where}: {len(ids)} tokens, prompt_length {prompt_length}, {len(mask)} mask entries do not fit"
        )
    return ids, np.concatenate([np.zeros(prompt_length, dtype=bool), mask])

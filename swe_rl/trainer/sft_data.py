"""Demonstrations for `swe-rl sft`: compact in memory, planned into steps, handed to the trainer's packing."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from swe_rl.errors import DataError
from swe_rl.trainer.packing import TrainingSequence


class Demonstrations:
    """Rows as arrays. `answers[i][j]` says whether token j of row i is the demonstrator's."""

    def __init__(self, tokens: list[np.ndarray], answers: list[np.ndarray], dropped: int) -> None:
        self.tokens, self.answers, self.dropped = tokens, answers, dropped
        self.total_tokens = sum(len(row) for row in tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def plan(self, batch_tokens: int, seed: int) -> list[list[int]]:
        """Row numbers of each step of one epoch: shuffled, of at most `batch_tokens` tokens (or one longer row)."""
        order = list(range(len(self.tokens)))
        random.Random(seed).shuffle(order)
        batches: list[list[int]] = [[]]
        filled = 0
        for row in order:
            length = len(self.tokens[row])
            if batches[-1] and filled + length > batch_tokens:
                batches.append([])
                filled = 0
            batches[-1].append(row)
            filled += length
        return batches

    def sequences(self, rows: Sequence[int], context_weight: float) -> list[TrainingSequence]:
        """The rows as training sequences. Answers weigh 1, all else `context_weight`; 0 takes no part in the loss."""
        return [weighted_sequence(self.tokens[row], np.where(self.answers[row], 1.0, context_weight)) for row in rows]


def weighted_sequence(tokens: np.ndarray, weights: np.ndarray) -> TrainingSequence:
    """tokens, weights: [T]. Fields: "weight", and "answer", which is 1 where the weight is. The first token is never trained."""
    trained = np.flatnonzero(weights[1:] > 0) + 1
    kept = weights[trained].astype(np.float32)
    return TrainingSequence(
        tokens.astype(np.int64), trained, {"weight": kept, "answer": (kept == 1.0).astype(np.float32)}
    )


def normalised(sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """The same sequences with weights that add up to 1, so that the loss of a step is a mean however it is packed."""
    total = sum(float(sequence.fields["weight"].sum()) for sequence in sequences)
    return [
        TrainingSequence(s.tokens, s.trained, {**s.fields, "weight": s.fields["weight"] / max(total, 1e-9)})
        for s in sequences
    ]


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

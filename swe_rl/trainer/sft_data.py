"""Demonstrations for `swe-rl sft`: compact in memory, planned into steps, handed to the trainer's packing."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from swe_rl.errors import DataError
from swe_rl.trainer.packing import TrainingSequence


class Demonstrations:
    """Rows as arrays. `answers[i][j]` says whether token j of row i is the demonstrator's. sha256: of the files."""

    def __init__(self, tokens: list[np.ndarray], answers: list[np.ndarray], dropped: int, sha256: str) -> None:
        self.tokens, self.answers, self.dropped, self.sha256 = tokens, answers, dropped, sha256
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


def load_demonstrations(paths: Sequence[str], *, max_tokens: int, vocabulary: int) -> Demonstrations:
    """Read token-form JSONL files of ids below `vocabulary`.

    Raises DataError naming file and line of a bad row, or if nothing is left.
    """
    digest = hashlib.sha256()
    tokens: list[np.ndarray] = []
    answers: list[np.ndarray] = []
    dropped = 0
    for path in paths:
        with Path(path).open("rb") as stream:
            for number, line in enumerate(stream, 1):
                digest.update(line)
                ids, mask = _row(line, f"{path}:{number}", vocabulary)
                if len(ids) > max_tokens:
                    dropped += 1
                    continue
                tokens.append(ids)
                answers.append(mask)
    if not tokens:
        raise DataError(f"no demonstration of at most {max_tokens} tokens in {', '.join(paths)}")
    return Demonstrations(tokens, answers, dropped, digest.hexdigest())


def _row(line: bytes, where: str, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        row = json.loads(line)
        ids, mask, prompt_length = row["tokens"], row["loss_mask"], row["prompt_length"]
        shape = f"{len(ids)} tokens, prompt_length {prompt_length!r}, {len(mask)} mask entries"
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: not a demonstration row (tokens, prompt_length, loss_mask): {error!r}") from error
    if not all(type(token) is int and 0 <= token < vocabulary for token in ids):
        wrong = next(token for token in ids if type(token) is not int or not 0 <= token < vocabulary)
        raise DataError(
            f"{where}: token {wrong!r}: ids of this --hf-checkpoint are integers from 0 to {vocabulary - 1}"
        )
    if type(prompt_length) is not int or prompt_length < 0 or prompt_length + len(mask) != len(ids):
        raise DataError(f"{where}: {shape} do not fit")
    if not all(entry in (0, 1) for entry in mask):
        raise DataError(f"{where}: loss_mask has entries other than 0 and 1")
    answers = np.array([False] * prompt_length + [bool(entry) for entry in mask])
    if not answers[1:].any():
        raise DataError(f"{where}: {shape}: no answer token to train (the first of a row cannot be)")
    return np.array(ids, dtype=np.int32), answers

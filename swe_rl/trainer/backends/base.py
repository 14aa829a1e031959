"""What a training backend does: everything that depends on how the model is spread over processes, and nothing else.

All methods are collective: every rank calls them in the same order with the same number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from swe_rl.trainer.packing import MicroBatch

# (log_probs [M], entropy [M], fields) -> (scalar loss, sums for the metrics)
LossFunction = Callable[
    [torch.Tensor, torch.Tensor, dict[str, torch.Tensor]], tuple[torch.Tensor, dict[str, torch.Tensor]]
]


class TrainBackend(Protocol):
    """A policy, its optimizer and perhaps a frozen reference, on this rank's share of the devices."""

    vocab_size: int

    def log_probs(self, batches: Sequence[MicroBatch], *, reference: bool) -> list[torch.Tensor]:
        """Log-probs [M] of each micro-batch on the CPU, without gradients, from the policy or the reference."""

    def forward_backward(self, batches: Sequence[MicroBatch], loss_function: LossFunction) -> dict[str, float]:
        """Accumulate the gradients of the summed losses of all micro-batches of all ranks; the sums over all of them."""

    def optimizer_step(self, lr: float, loss: float) -> tuple[float, bool]:
        """See `swe_rl.trainer.optimizer.optimizer_step`."""

    def reduce_max(self, value: float) -> float:
        """The largest of the ranks' values."""

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Live tensors (sharded ones as DTensor) of model and optimizer, to be saved from or loaded into in place.

        Names are `model.<parameter>`, `optimizer.<exp_avg|exp_avg_sq|step>.<parameter>`.
        """

    def full_weights(self) -> dict[str, torch.Tensor]:
        """On rank 0 a copy of the whole policy on the CPU under Hugging Face names, tied weights once; elsewhere {}."""

    def save_hf(self, folder: Path, weights: dict[str, torch.Tensor]) -> None:
        """Write config and safetensors of `weights` (from `full_weights`) into an existing folder. Rank 0 only."""

"""AdamW with decay on matrices only, and one guarded optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from swe_rl.config.optimizer import OptimizerSettings


def build_optimizer(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019). Vectors (norms, biases) are not decayed: they have no scale to shrink."""
    parameters = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_eps,
        fused=True,
    )


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """The global L2 norm of all gradients (over all ranks); they are scaled to `max_norm` where it is positive."""
    parameters = list(parameters)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm if max_norm > 0 else math.inf)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def optimizer_step(optimizer: torch.optim.Optimizer, lr: float, clip_grad: float, loss: float) -> tuple[float, bool]:
    """Clip, set the learning rate, step and clear the gradients. Returns (gradient norm, whether it stepped).

    With a loss or gradient norm that is not finite nothing is changed: one such step would make every weight NaN.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = clip_gradients(parameters, clip_grad)
    stepped = math.isfinite(norm) and math.isfinite(loss)
    if stepped:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, stepped

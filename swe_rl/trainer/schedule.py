"""The learning rate as a pure function of the optimizer step: there is no scheduler state that a resume could lose."""

from __future__ import annotations

import math

from swe_rl.config.optimizer import OptimizerSettings


def lr_at(step: int, settings: OptimizerSettings, total_steps: int) -> float:
    """Learning rate of optimizer step `step` (0 = the first).

    Linear warm-up over `lr_warmup_iters` steps, then constant, linear or cosine (Loshchilov & Hutter 2017) decay to
    `min_lr` at step `lr_decay_iters` (`total_steps` where that is 0), and `min_lr` from there on.
    """
    if step < settings.lr_warmup_iters:
        return settings.lr * (step + 1) / settings.lr_warmup_iters
    if settings.lr_decay_style == "constant":
        return settings.lr
    end = settings.lr_decay_iters or total_steps
    progress = min(1.0, (step - settings.lr_warmup_iters) / max(1, end - settings.lr_warmup_iters))
    shape = 1.0 - progress if settings.lr_decay_style == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.min_lr + (settings.lr - settings.min_lr) * shape

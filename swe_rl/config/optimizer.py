"""Settings: optimizer, schedule, batching."""

from __future__ import annotations

from typing import ClassVar, Literal

from swe_rl.config.setting import Area, setting


class OptimizerSettings(Area):
    area: ClassVar[str] = "optimizer"

    train_backend: Literal["fsdp"] = setting("fsdp", "training backend")
    lr: float = setting(1e-6, "peak learning rate", gt=0)
    min_lr: float = setting(0.0, "learning rate at the end of the schedule", ge=0)
    lr_warmup_iters: int = setting(0, "optimizer steps of linear warm-up", ge=0)
    lr_decay_style: Literal["constant", "linear", "cosine"] = setting("constant", "schedule after warm-up")
    lr_decay_iters: int = setting(0, "optimizer steps until min_lr; 0 = num_rollout * num_steps_per_rollout", ge=0)
    weight_decay: float = setting(0.1, "AdamW weight decay (matrices only)", ge=0)
    adam_beta1: float = setting(0.9, "AdamW beta1", ge=0, lt=1)
    adam_beta2: float = setting(0.98, "AdamW beta2", ge=0, lt=1)
    adam_eps: float = setting(1e-8, "AdamW epsilon", gt=0)
    clip_grad: float = setting(1.0, "gradient norm bound; 0 = none", ge=0)
    max_nonfinite_steps: int = setting(
        3, "stop after this many skipped steps in a row (loss or gradient norm not finite)", ge=1
    )
    num_steps_per_rollout: int = setting(1, "optimizer steps that share one rollout batch", ge=1)
    max_tokens_per_gpu: int = setting(
        16384, "tokens packed into one micro-batch; a longer sequence is one of its own", ge=1
    )
    log_prob_chunk_size: int = setting(1024, "tokens whose vocabulary logits exist at once", ge=1)
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass")
    train_timeout: float = setting(
        7200.0, "seconds one training step, save or load may take before the run stops", gt=0
    )

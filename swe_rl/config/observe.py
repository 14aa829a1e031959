"""Settings: evaluation during training, metrics and their sinks."""

from __future__ import annotations

from typing import ClassVar, Literal

from swe_rl.config.setting import Area, setting


class ObserveSettings(Area):
    area: ClassVar[str] = "evaluation and metrics"

    eval_interval: int = setting(0, "rollout steps between held-out evaluations; 0 = only before and after", ge=0)
    eval_attempts: int = setting(0, "attempts of one evaluation; 0 = n_samples_per_eval_prompt per task", ge=0)
    n_samples_per_eval_prompt: int = setting(1, "attempts per held-out task", ge=1)
    eval_temperature: float = setting(1.0, "sampling temperature of evaluations", ge=0)
    eval_greedy: bool = setting(False, "report greedy decoding beside the sampled rate")
    use_wandb: bool = setting(False, "log to Weights & Biases")
    wandb_project: str = setting("slime_swe", "W&B project", env=("WANDB_PROJECT",))
    wandb_group: str = setting("", "W&B group")
    wandb_key: str = setting("", "W&B API key", env=("WANDB_KEY", "WANDB_API_KEY"), secret=True)
    wandb_mode: Literal["online", "offline", "disabled"] = setting(
        "online", "offline keeps the run on disk; disabled is W&B's own switch", env=("WANDB_MODE",)
    )
    progress: Literal["auto", "bar", "plain", "none"] = setting(
        "auto", "auto = bars on a terminal, plain lines elsewhere"
    )
    debug_mode: bool = setting(
        False, "short run with verbose logs: 40 rollout steps, unless --num-rollout says otherwise", env=("DEBUG_MODE",)
    )

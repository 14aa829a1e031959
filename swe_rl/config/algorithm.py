"""Settings: what the trainer optimises."""

from __future__ import annotations

from typing import ClassVar, Literal

from swe_rl.config.setting import Area, setting


class AlgorithmSettings(Area):
    area: ClassVar[str] = "algorithm"

    advantage_estimator: Literal["grpo"] = setting("grpo", "how rewards become advantages")
    grpo_std_normalization: bool = setting(True, "divide group advantages by the group's standard deviation")
    eps_clip: float = setting(0.2, "PPO clip below 1", ge=0, lt=1)
    eps_clip_high: float = setting(0.28, "PPO clip above 1", ge=0)
    kl_loss_coef: float = setting(0.0, "weight of the KL to the reference; 0 = no reference is loaded", ge=0)
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = setting("low_var_kl", "KL estimator (low_var_kl = k3)")
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", ge=0)
    use_tis: bool = setting(True, "truncated importance weights between rollout and trainer log-probs")
    tis_clip: float = setting(2.0, "upper bound of those weights", ge=1)
    loss_aggregation: Literal["token_mean", "trajectory_mean"] = setting(
        "token_mean", "token_mean, or trajectory_mean: every attempt counts once whatever its length and segments"
    )

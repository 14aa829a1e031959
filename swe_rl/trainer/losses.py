"""The policy loss of one micro-batch: clipped policy gradient, KL to a reference, entropy, off-policy correction.

Token losses are multiplied by the weights of `batch.token_weights` and summed: no micro-batch is ever averaged, so the
sum over all micro-batches and ranks is the loss of the whole optimizer step.
"""

from __future__ import annotations

import torch

from swe_rl.config.algorithm import AlgorithmSettings

MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8: far outside every clip range, and still finite in fp32

# Metrics that are summed over tokens; the trainer divides those in TOKEN_MEANS by the number of trained tokens.
TOKEN_MEANS = (
    *("clip_fraction_low", "clip_fraction_high", "tis_weight", "tis_clipped_fraction", "abs_logprob_diff"),
    *("ppo_kl", "rollout_kl"),
)


def log_ratio_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp of a log-ratio, bounded so that one absurd token cannot make the loss infinite."""
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def clipped_policy_loss(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, eps_low: float, eps_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """-min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) per token, and the ratio r = exp(log_probs - old_log_probs).

    PPO (Schulman et al. 2017, eq. 7) with the separate upper bound of DAPO (Yu et al. 2025, eq. 10). All arguments [M].
    """
    ratio = log_ratio_exp(log_probs - old_log_probs)
    clipped = ratio.clamp(1.0 - eps_low, 1.0 + eps_high)
    return -torch.minimum(ratio * advantages, clipped * advantages), ratio


def kl_estimate(log_probs: torch.Tensor, reference: torch.Tensor, kind: str) -> torch.Tensor:
    """Per-token estimate of KL(policy || reference) from samples of the policy (Schulman 2020, "Approximating KL").

    With d = log p_ref - log p: k1 = -d (unbiased; as a loss its gradient is zero in expectation), k2 = d^2 / 2,
    k3 = exp(d) - 1 - d (unbiased, never negative; `low_var_kl` is its other name).
    """
    d = reference - log_probs
    if kind == "k1":
        return -d
    if kind == "k2":
        return 0.5 * d.square()
    if kind in ("k3", "low_var_kl"):
        d = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return torch.expm1(d) - d
    raise ValueError(f"unknown KL estimator '{kind}'")


def truncated_importance_weights(
    trainer_log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, bound: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(p_trainer / p_rollout, bound) per token, and which tokens were cut (Yao et al. 2025, truncated importance
    sampling). It corrects for tokens sampled by an engine, or by weights, that differ from the trainer's."""
    weights = log_ratio_exp(trainer_log_probs - rollout_log_probs)
    return weights.clamp(max=bound), weights > bound


def policy_loss(
    log_probs: torch.Tensor, entropy: torch.Tensor, fields: dict[str, torch.Tensor], settings: AlgorithmSettings
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of one micro-batch (a scalar to call backward on) and sums for the metrics.

    log_probs, entropy: [M] with gradients. fields, each [M]: weight, advantage, rollout_log_prob; old_log_prob where
    several optimizer steps share a rollout (without it the policy is still the one before the update, and the ratio is
    exactly 1); ref_log_prob where kl_loss_coef > 0.
    """
    weight, advantage, rollout = fields["weight"], fields["advantage"], fields["rollout_log_prob"]
    old = fields.get("old_log_prob", log_probs.detach())
    token_loss, ratio = clipped_policy_loss(log_probs, old, advantage, settings.eps_clip, settings.eps_clip_high)
    tis, cut = truncated_importance_weights(old, rollout, settings.tis_clip)
    if settings.use_tis:
        token_loss = token_loss * tis
    pg_loss = (weight * token_loss).sum()
    entropy_mean = (weight * entropy).sum()
    loss = pg_loss - settings.entropy_coef * entropy_mean if settings.entropy_coef else pg_loss
    known = {}  # without a reference there is no KL to report
    if settings.kl_loss_coef:
        known["kl"] = (weight * kl_estimate(log_probs, fields["ref_log_prob"], settings.kl_loss_type)).sum()
        loss = loss + settings.kl_loss_coef * known["kl"]

    trained = weight > 0  # a placeholder's weight is 0
    now = log_probs.detach()  # the tokens are samples of the earlier policies: theirs is the first place in KL(. || .)
    diff = (old - rollout).abs() * trained
    sums = {
        "loss": loss,
        "pg_loss": pg_loss,
        **known,
        "entropy": entropy_mean,
        "trained_tokens": trained.sum(),
        "clip_fraction_low": (trained & (ratio < 1.0 - settings.eps_clip) & (advantage < 0)).sum(),
        "clip_fraction_high": (trained & (ratio > 1.0 + settings.eps_clip_high) & (advantage > 0)).sum(),
        "tis_weight": (tis * trained).sum(),
        "tis_clipped_fraction": (cut & trained).sum(),
        "abs_logprob_diff": diff.sum(),
        "ppo_kl": (kl_estimate(old, now, "k3") * trained).sum(),
        "rollout_kl": (kl_estimate(rollout, now, "k3") * trained).sum(),
    }
    return loss, {name: value.detach().double() for name, value in sums.items()}

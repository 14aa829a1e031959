"""What a rollout step hands to the driver: samples for the trainer, and the numbers about how they came to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.grading.cheat_scan import cheat_metrics
from swe_rl.grading.defence_metrics import defence_metrics
from swe_rl.rollout.audit import TokenAudit
from swe_rl.rollout.run_one import AttemptResult
from swe_rl.types import Sample


@dataclass
class RolloutBatch:
    """samples: of all kept groups, ordered by group and attempt. metrics: numbers of this step, for the log.

    counts: what adds up over a run (attempts, verdicts, forks, tokens, seconds by stage ...), named as in the summary.
    data_state: the task source's position after this step; a checkpoint of this step's training must hold this one.
    """

    step: int
    samples: list[Sample]
    metrics: dict[str, float]
    counts: dict[str, Any]
    data_state: dict[str, Any]


def run_counts(results: Sequence[AttemptResult], kept: Sequence[AttemptResult]) -> dict[str, Any]:
    """Sums over the attempts of a step; the trained tokens are those of the kept ones."""
    trained = _audit(kept)
    everything = _audit(results)
    seconds: Counter[str] = Counter()
    for result in results:
        seconds.update(result.timings)
    return {
        "attempts": len(results),
        "verdicts": dict(Counter(result.verdict for result in results)),
        "exit_statuses": dict(Counter(result.exit_status for result in results)),
        "forks": dict(trained.forks),
        "segments": trained.segments,
        "trained_tokens": trained.trained,
        "sampled_tokens_trained": trained.sampled,
        "dropped_tokens": everything.dropped,
        "retried_tokens": everything.retried,
        "verdict_cache_hits": sum(result.verdict_from_cache for result in results),
        "retries": sum(result.retries for result in results),
        "seconds_by_stage": dict(seconds),
    }


def sampled_entropy(results: Sequence[AttemptResult]) -> float | None:
    """Mean -log p of all sampled tokens (nats), kept or not: an estimate of the policy's entropy that needs no trainer.

    Call it before samples are masked. None where nothing was sampled, or a custom function gave no log-probs.
    """
    total, tokens = 0.0, 0
    for result in results:
        for sample in result.samples:
            if sample.rollout_log_probs and sample.loss_mask:
                total -= sum(p for p, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if mask)
                tokens += sum(sample.loss_mask)
    return total / tokens if tokens else None


def step_metrics(results: Sequence[AttemptResult], kept: Sequence[AttemptResult]) -> dict[str, float]:
    """Numbers of one step for the log; shares and means are over the attempts that count."""
    counting = [result for result in results if result.counts]
    counts = run_counts(results, kept)
    prompt_tokens = sum(result.prompt_tokens for result in results)
    metrics: dict[str, float] = {
        "attempts": len(results),
        "attempts_kept": len(kept),
        "infra_errors": len(results) - len(counting),
        "retries": counts["retries"],
        "turns_mean": _mean(counting, lambda result: result.turns),
        "sampled_tokens": sum(result.sampled_tokens for result in results),
        "sampled_tokens_mean": _mean(counting, lambda result: result.sampled_tokens),
        "seconds_attempt_mean": _mean(counting, lambda result: result.seconds),
        "seconds_attempt_max": max((result.seconds for result in results), default=0.0),
        "cached_share": sum(result.cached_tokens for result in results) / prompt_tokens if prompt_tokens else 0.0,
        "verdict_cache_hits": counts["verdict_cache_hits"],
        "trained_tokens": counts["trained_tokens"],
        "sampled_fraction": _audit(kept).sampled_fraction,
        "segments": counts["segments"],
        "dropped_tokens": counts["dropped_tokens"],
    }
    if counting:
        metrics["reward_mean"] = _mean(counting, lambda result: result.reward or 0.0)
        metrics["resolve_rate"] = _mean(counting, lambda result: result.verdict == "resolved")
        metrics["truncated_share"] = _mean(
            counting, lambda result: result.exit_status in ("step_limit", "context_limit", "deadline")
        )
        for level, group in _by_level(counting).items():
            metrics[f"resolve_rate/{level}"] = _mean(group, lambda result: result.verdict == "resolved")
    for prefix in ("verdicts", "exit_statuses", "forks"):
        for name, count in counts[prefix].items():
            metrics[f"{prefix}/{name or 'unknown'}"] = count
    for stage, seconds in counts["seconds_by_stage"].items():
        metrics[f"seconds_mean/{stage}"] = seconds / len(results)
    metrics |= cheat_metrics(result.cheats for result in results)
    metrics |= defence_metrics(result.defences for result in results)
    versions = [version for result in counting for version in result.weight_versions]
    if versions:
        metrics["weight_version_min"], metrics["weight_version_max"] = min(versions), max(versions)
    return metrics


def _by_level(results: Sequence[AttemptResult]) -> dict[str, list[AttemptResult]]:
    """The attempts at tasks that name their difficulty (`level` in the task's metadata), by that name."""
    levels: dict[str, list[AttemptResult]] = {}
    for result in results:
        metadata = result.samples[-1].metadata.get("task_metadata") or {} if result.samples else {}
        if metadata.get("level") is not None:
            levels.setdefault(str(metadata["level"]), []).append(result)
    return dict(sorted(levels.items()))


def _audit(results: Sequence[AttemptResult]) -> TokenAudit:
    total = TokenAudit()
    for result in results:
        total += result.audit
    return total


def _mean(results: Sequence[AttemptResult], value: Callable[[AttemptResult], float]) -> float:
    return sum(value(result) for result in results) / len(results) if results else 0.0

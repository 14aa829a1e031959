"""One attempt through the two functions of a run, and what is known of it afterwards."""

from __future__ import annotations

import logging
import math
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from swe_rl.errors import UsageError
from swe_rl.grading.cheat_scan import scan_trajectory
from swe_rl.grading.defence_metrics import defences_met
from swe_rl.rollout.attempt import save_attempt
from swe_rl.rollout.audit import TokenAudit, audit_attempt
from swe_rl.rollout.functions import RolloutFunctions
from swe_rl.rollout.ledger import recording
from swe_rl.rollout.runtime import Runtime
from swe_rl.types import Sample, SampleStatus, Task, Verdict

log = logging.getLogger(__name__)


@dataclass
class AttemptResult:
    """One attempt's outcome. `reward` None = it does not count (infra_error) and has no samples that train."""

    instance_id: str
    group: int
    index: int
    samples: list[Sample]
    reward: float | None
    verdict: str
    exit_status: str
    audit: TokenAudit
    seconds: float
    attempt_dir: str = ""
    error: str = ""
    turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0
    retries: int = 0
    verdict_from_cache: bool = False
    cheats: list[str] = field(default_factory=list)  # kinds of known cheats that were seen, see grading.cheat_scan
    defences: list[str] = field(default_factory=list)  # of the grader, that it ran into; see grading.defence_metrics
    timings: dict[str, float] = field(default_factory=dict)
    weight_versions: list[int] = field(default_factory=list)  # sorted, distinct

    @property
    def counts(self) -> bool:
        return self.reward is not None


async def run_one(
    runtime: Runtime, functions: RolloutFunctions, task: Task, sample: Sample, sampling_params: dict[str, Any]
) -> AttemptResult:
    """One attempt through the two functions. Whatever they raise becomes an infra_error with its traceback, except
    wrong settings (UsageError) and cancellation."""
    started = time.monotonic()
    samples: list[Sample] = [sample]
    error = ""
    with recording() as calls:
        try:
            made = await functions.generate(runtime.config, sample, sampling_params)
            samples = check_samples(made, sample, runtime.vocab_size)
            if all(one.reward is None and one.status is not SampleStatus.FAILED for one in samples):
                reward = check_reward(await functions.reward(runtime.config, samples[-1]))
                for one in samples:  # segments of one attempt share its outcome
                    one.reward = reward
                    one.remove_sample = one.remove_sample or samples[-1].remove_sample
                    one.metadata["verdict"] = samples[-1].metadata.get("verdict") or verdict_of(reward)
                if not samples[-1].remove_sample:
                    await _record_custom_reward(runtime, samples, reward)
        except UsageError:
            raise
        except Exception as exception:
            error = f"{type(exception).__name__}: {exception}"
            log.warning("%s: attempt failed: %s", task.instance_id, error)
            for one in samples:
                one.status, one.remove_sample = SampleStatus.FAILED, True
                one.metadata = {**one.metadata, "traceback": "".join(traceback.format_exception(exception))}
    return _result(runtime, task, sample, samples, audit_attempt(samples, calls, _attempt_id(samples)), started, error)


async def _record_custom_reward(runtime: Runtime, samples: list[Sample], reward: float) -> None:
    """A user's reward function does not know of the attempt's folder: its outcome goes there too."""
    attempt = runtime.recall(_attempt_id(samples))
    if attempt is None or (attempt.verdict is not None and attempt.trajectory.reward == reward):
        return
    attempt.trajectory.verdict = attempt.verdict or Verdict(verdict_of(reward))
    attempt.trajectory.custom_reward = reward
    await save_attempt(runtime, attempt)


def _attempt_id(samples: list[Sample]) -> str:
    return str(samples[-1].metadata.get("attempt_id", ""))


def _result(
    runtime: Runtime,
    task: Task,
    sample: Sample,
    samples: list[Sample],
    audit: TokenAudit,
    started: float,
    error: str,
) -> AttemptResult:
    last = samples[-1]
    failed = last.remove_sample or last.status in (SampleStatus.FAILED, SampleStatus.ABORTED) or last.reward is None
    verdict = Verdict.INFRA_ERROR.value if failed else str(last.metadata.get("verdict") or verdict_of(last.reward))
    result = AttemptResult(
        instance_id=task.instance_id,
        group=sample.group_index or 0,
        index=sample.index or 0,
        samples=[] if failed else samples,
        reward=None if failed else float(last.reward),  # type: ignore[arg-type]
        verdict=verdict,
        exit_status=str(last.metadata.get("exit_status", "infra_error" if failed else "")),
        audit=audit.untrained() if failed else audit,
        seconds=time.monotonic() - started,
        attempt_dir=str(last.metadata.get("attempt_dir", "")),
        error=error,
    )
    attempt = runtime.recall(_attempt_id(samples))
    if attempt is not None:
        trajectory = attempt.trajectory
        result.error = error or str(trajectory.verdict_detail.get("error", ""))
        result.turns = len(trajectory.turns)
        result.prompt_tokens = sum(len(turn.prompt_ids) for turn in trajectory.turns)
        result.sampled_tokens = sum(len(turn.output_ids) for turn in trajectory.turns)
        result.cached_tokens = sum(turn.cached_tokens for turn in trajectory.turns)
        result.retries = len(attempt.failures)
        result.verdict_from_cache = bool(trajectory.verdict_detail.get("cached"))
        result.timings = dict(trajectory.timings)
        result.weight_versions = sorted({v for turn in trajectory.turns for v in turn.weight_versions})
        result.defences = defences_met(trajectory.verdict_detail)
        result.cheats = sorted({finding.kind for finding in scan_trajectory(trajectory)})
        runtime.forget(attempt.attempt_id)
    for one in samples:  # the task goes no further: a training batch must not carry issue texts and gold patches
        one.metadata = {name: value for name, value in one.metadata.items() if name not in ("instance", "task")}
        one.metadata |= {"instance_id": task.instance_id, "task_metadata": task.metadata}
    return result


def check_samples(made: Any, original: Sample, vocab_size: int | None = None) -> list[Sample]:
    """The samples a generate function returned, complete, consistent and fit to be trained on; raises ValueError naming what
    is wrong. Here it costs the one attempt; the trainer could only end the run.

    Segments that are removed, failed or aborted are left out where others of the attempt are not: its reward still counts.
    """
    samples = made if isinstance(made, list) else [made]
    if not samples or not all(isinstance(one, Sample) for one in samples):
        raise ValueError(f"the generate function returned {type(made).__name__}, not a Sample or a list of them")
    for one in samples:
        one.group_index, one.index, one.rollout_id = original.group_index, original.index, original.rollout_id
    unfit = (SampleStatus.FAILED, SampleStatus.ABORTED)
    trained = [one for one in samples if not one.remove_sample and one.status not in unfit]
    for one in trained:
        one.validate(vocab_size)
        if one.rollout_log_probs is None:
            raise ValueError("no rollout_log_probs; the generate function must ask the engine for log-probs")
        if one.reward is not None and check_reward(one.reward) != trained[-1].reward:
            raise ValueError(f"segments of one attempt have different rewards: {one.reward} and {trained[-1].reward}")
    return trained or samples


def check_reward(reward: Any) -> float:
    """A reward as a finite float; raises ValueError for anything else (None of an aborted sample, NaN, dictionaries)."""
    if isinstance(reward, bool | int | float) and math.isfinite(reward):
        return float(reward)
    raise ValueError(f"the reward function returned {reward!r}, not a finite number")


def verdict_of(reward: Any) -> str:
    """The verdict of a custom reward, for counting: above one half is resolved."""
    return (Verdict.RESOLVED if isinstance(reward, int | float) and reward > 0.5 else Verdict.UNRESOLVED).value

"""The two coroutines that a trainer calls: `generate` makes an attempt, `reward_func` grades it.

They have the signatures of slime's custom functions (`--custom-generate-function-path`, `--custom-rm-path`) and use only
attribute names that its `Sample` shares with ours, so they can be plugged into slime as they are; our own rollout
manager calls the same two. slime needs a third, `post_process_rewards` (`--custom-reward-post-process-path`): left to itself
it compares the rewards of removed samples too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swe_rl.advantages import group_advantages
from swe_rl.errors import DataError
from swe_rl.rollout.attempt import grade_attempt, run_attempt
from swe_rl.rollout.places import in_whole_attempt
from swe_rl.rollout.runtime import runtime_for
from swe_rl.rollout.samples import make_samples
from swe_rl.tasks.forms import form_of, task_from_row
from swe_rl.types import Task, Verdict

COMPARING = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")  # slime's estimators that compare within groups


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """Let the bash agent work on the sample's task in a fresh sandbox.

    args: our Config, or any Namespace (what it lacks comes from the environment and defaults).
    sample: `metadata["instance"]`, or `metadata` itself, holds the task in any known dataset form (or `metadata["task"]` is a
    Task); `metadata["attempts_dir"]`, where set, replaces the folder for attempts.
    sampling_params: SGLang's names; `max_new_tokens` bounds one turn.
    Returns the sample filled with tokens, loss mask and log-probs, or a list where the attempt has several segments (or
    steps, with `dynamic_history`). An attempt that failed for reasons of the infrastructure, also after fresh starts,
    comes back with status FAILED and `remove_sample` set. Raises ConfigError, and DataError for a row that is no task.
    """
    async with runtime_for(args) as runtime:
        task = task_of(sample, runtime.config.swe_image_template)
        directory = sample.metadata.get("attempts_dir") or runtime.attempts_dir
        async with runtime.places.agent():
            attempt = await run_attempt(
                runtime,
                task,
                sampling_params,
                group=sample.group_index or 0,
                index=sample.index or 0,
                directory=Path(directory) if directory else None,
            )
    runtime.remember(attempt)
    trajectory = attempt.trajectory
    if getattr(sample, "rollout_id", None) is None:
        sample.rollout_id = sample.index
    sample.metadata = {
        **sample.metadata,
        "attempt_id": attempt.attempt_id,
        "attempt_dir": str(attempt.directory or ""),
        "instance_id": task.instance_id,
        "exit_status": trajectory.exit_status,
        "verdict": attempt.verdict.value if attempt.verdict else None,
    }
    samples = make_samples(sample, trajectory, runtime.tokenizer, dynamic_history=runtime.config.dynamic_history)
    if not in_whole_attempt():  # nobody will say when the attempt may be forgotten
        attempt.forget_prompts()
    return samples[0] if len(samples) == 1 else samples


async def reward_func(args: Any, sample: Any, **_: Any) -> Any:
    """Grade the attempt that `generate` made, by the task's own tests in a fresh sandbox: 1.0 resolved, 0.0 not.

    A resolved attempt that ran into a limit instead of submitting gets `reward_not_submitted`.
    sample: one sample, or a list (then a list of rewards comes back); samples of one attempt are graded once together.
    Sets `metadata["verdict"]`; an `infra_error`, which says nothing about the policy, also sets `remove_sample`.
    Raises DataError for a sample that did not come from `generate` in this process.
    """
    if isinstance(sample, list):
        return [await reward_func(args, one) for one in sample]
    async with runtime_for(args) as runtime:
        attempt_id = sample.metadata.get("attempt_id", "")
        attempt = runtime.recall(attempt_id)
        if attempt is None:
            raise DataError(
                f"sample {sample.index}: attempt '{attempt_id}' is not known here: was it made by `generate`?"
            )
        verdict = await grade_attempt(runtime, attempt)
    if not in_whole_attempt():
        attempt.release()
    sample.metadata["verdict"] = verdict.value
    if verdict is Verdict.INFRA_ERROR:
        sample.remove_sample = True
    return attempt.trajectory.reward or 0.0


def post_process_rewards(args: Any, samples: list[Any], **_: Any) -> tuple[list[float], list[float]]:
    """Rewards of one rollout as slime's trainer wants them: as they are, and compared within their groups.

    args: `advantage_estimator` and `rewards_normalization` (default true) ask for the comparison, as in slime, and
    `grpo_std_normalization` (default true) for the division by the group's standard deviation. An attempt counts once however
    many samples it has; removed samples (`infra_error`) stay out of their group's mean and get 0.
    Raises DataError where samples of one attempt have different rewards.
    """
    raw = [float(sample.reward or 0.0) for sample in samples]
    estimator = getattr(args, "advantage_estimator", "grpo")
    if estimator not in COMPARING or not getattr(args, "rewards_normalization", True):
        return raw, raw
    divides = estimator != "reinforce_plus_plus_baseline" and getattr(args, "grpo_std_normalization", True)
    compared = group_advantages(samples, normalise_std=divides)
    return raw, [advantage or 0.0 for advantage in compared.advantages]


def task_of(sample: Any, image_template: str = "") -> Task:
    """The task in a sample's metadata; raises DataError where there is none."""
    if isinstance(sample.metadata.get("task"), Task):
        return sample.metadata["task"]
    try:
        return task_from_row(_row(sample), fallback_id=_fallback_id(sample), image_template=image_template)
    except ValueError as error:
        raise DataError(f"sample {sample.index}: metadata holds no task: {error}") from error


def _row(sample: Any) -> dict[str, Any]:
    """The dataset's row again: trainers put its columns, or those beside the prompt, into `metadata`."""
    metadata = sample.metadata
    if "instance" in metadata:
        return {"text": sample.prompt, "metadata": metadata}
    flat = {"prompt": sample.prompt, **metadata}
    if form_of(flat) in ("areal", "swebench"):  # read as slime's coding-agent form, whose rows may have no id
        return {"prompt": sample.prompt, "metadata": metadata}
    return flat


def _fallback_id(sample: Any) -> str:
    """One id for all attempts at a row that has none."""
    return f"sample-{sample.index if sample.group_index is None else f'g{sample.group_index}'}"

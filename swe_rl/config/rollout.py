"""Settings: how many attempts are made, of what, and what becomes of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from swe_rl.config.setting import Area, setting


class RolloutSettings(Area):
    area: ClassVar[str] = "rollout"

    prompt_data: str = setting("", "training tasks (JSONL or Parquet)", env=("PROMPT_DATA",))
    eval_prompt_data: str = setting("", "held-out tasks for evaluation", env=("EVAL_PROMPT_DATA",))
    num_rollout: int = setting(2000, "rollout steps of the run", ge=1)
    max_train_seconds: float = setting(
        0.0, "stop training after this many seconds of steps; 0 = after num_rollout steps", ge=0
    )
    max_run_seconds: float = setting(
        0.0,
        "end training early enough for the run to end within this, if the evaluation after takes as long as the one before "
        "(0 = no limit)",
        ge=0,
    )
    rollout_batch_size: int = setting(12, "groups (tasks) per rollout step", ge=1)
    n_samples_per_prompt: int = setting(8, "attempts per group", ge=1)
    rollout_temperature: float = setting(1.0, "sampling temperature", ge=0)
    rollout_top_p: float = setting(1.0, "nucleus sampling; 1 = off", gt=0, le=1)
    rollout_top_k: int = setting(-1, "top-k sampling; -1 = off", ge=-1)
    rollout_max_context_len: int = setting(16384, "tokens of prompt and answer together", ge=16)
    rollout_max_response_len: int = setting(4096, "most new tokens of one turn", ge=1)
    rollout_shuffle: bool = setting(True, "shuffle the tasks each epoch (seeded)")
    async_rollout: bool = setting(False, "sample step k+1 while step k trains (one step ahead)", flags=("--async",))
    dynamic_sampling: bool = setting(True, "skip groups whose rewards are all equal and sample others in their place")
    dynamic_sampling_max_factor: float = setting(
        2.0, "at most this many times rollout_batch_size groups are tried in a step", ge=1
    )
    swe_max_concurrent: int = setting(128, "attempts in flight over the whole run", ge=1)
    swe_rollout_timeout: float = setting(1800.0, "seconds of one attempt: allocate, agent, collect, grade, close", gt=0)
    swe_eval_timeout: float = setting(600.0, "seconds of one grading inside an attempt", gt=0)
    swe_infra_retries: int = setting(2, "fresh starts of an attempt after an infra_error", ge=0)
    swe_save_traj_dir: str = setting("", "folder for attempts; empty = <run dir>/attempts")
    only_certified: bool = setting(
        True,
        "use only tasks certified as sound and not flaky, in training and evaluation; others, never certified ones too, are left "
        "out and counted",
    )
    custom_generate_function_path: str = setting("", "module.function in place of the bash agent")
    custom_rm_path: str = setting("", "module.function in place of grading by tests")
    shuffle_rewards: bool = setting(False, "control experiment: permute rewards among attempts before training")
    mask_limit_hits: Literal["none", "length", "all"] = setting(
        "none", "leave attempts that hit a limit out of the loss: none; length (token limit); all (steps and time too)"
    )

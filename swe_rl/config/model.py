"""Settings: which policy is trained and where checkpoints go."""

from __future__ import annotations

from typing import ClassVar, Literal

from swe_rl.config.setting import Area, setting


class ModelSettings(Area):
    area: ClassVar[str] = "model and checkpoints"

    hf_checkpoint: str = setting(
        "", "local Hugging Face folder of the policy (config, weights, tokenizer)", env=("HF_CKPT",)
    )
    ref_load: str = setting(
        "", "Hugging Face folder of the KL reference; empty = the initial policy", env=("REF_LOAD",)
    )
    load: str = setting("", "checkpoint folder (step_...) that a new run begins with; an interrupted run needs none")
    save: str = setting(
        "", "folder for the checkpoints of this one run; empty = <run dir>/checkpoints", env=("SAVE_CKPT",)
    )
    save_interval: int = setting(10, "rollout steps between checkpoints", ge=1)
    save_keep: int = setting(2, "newest checkpoints kept; 0 = all", ge=0)
    auto_resume: bool = setting(True, "continue an interrupted run found in the run folder")
    run_dir: str = setting("", "folder of this run; empty = <export root>/<run name>")
    run_name: str = setting("", "name of this run; empty = swe-rl_<RUN_TIMESTAMP or now>")
    export_root: str = setting("export", "folder below which runs are written", env=("EXPORT_ROOT",))
    dtype: Literal["float32", "bfloat16"] = setting("float32", "parameter type in trainer and engine")
    seed: int = setting(1, "seed of everything random; recorded in the run's config", ge=0)

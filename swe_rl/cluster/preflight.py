"""What is looked at before a run writes anything: whether its data, code, prompts and checkpoint can be used, and the disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from swe_rl.agent.templates import load_prompts
from swe_rl.config import Config
from swe_rl.errors import UsageError
from swe_rl.observe.metrics import check_wandb
from swe_rl.rollout.functions import load_functions
from swe_rl.run_folder import RunFolder
from swe_rl.tasks.load import load_tasks
from swe_rl.trainer.checkpoint_folder import list_checkpoints, read_manifest

CHECKPOINTS_AT_ONCE = 3  # kept ones and the one being written
BYTES_PER_PARAMETER = 12  # of a checkpoint: weights and AdamW's two moments in fp32, whatever the model folder holds


def check_inputs(config: Config) -> None:
    """Raise the typed error of whatever a training run could not use, at once: Ray and engines take a minute to start."""
    for path in filter(None, (config.prompt_data, config.eval_prompt_data)):
        load_tasks(
            path,
            only_certified=config.only_certified,
            with_scripts=True,
            image_template=config.swe_image_template,
            limit=1,
        )
    check_attempts(config)
    check_wandb(config)
    if config.load:
        read_manifest(config.load)


def check_attempts(config: Config) -> None:
    """Raise ConfigError where attempts could not be made for want of the user's functions or prompts."""
    load_functions(config)
    load_prompts(config.swe_agent_config)


def check_disk(run: RunFolder, config: Config) -> None:
    """Raise UsageError unless the checkpoints' disk has room for those to come (estimated from the model's size) and 200 MB.

    Called before anything of a new run is written; the checkpoints of one that is continued are there already.
    """
    weights = sum(file.stat().st_size for file in Path(config.hf_checkpoint).glob("*.safetensors"))
    checkpoints = max(CHECKPOINTS_AT_ONCE, config.save_keep + 1)
    if config.guard:  # it may hold an older good one, and one that may become the next
        checkpoints += 2
    checkpoints = max(1, checkpoints - len(list_checkpoints(run.checkpoints)))
    parameters = weights // _bytes_per_weight(Path(config.hf_checkpoint))
    needed = parameters * BYTES_PER_PARAMETER * checkpoints + weights + 200_000_000
    place = next(path for path in (run.checkpoints.absolute(), *run.checkpoints.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UsageError(
            f"{run.checkpoints} has {free / 1e9:.2f} GB free, this run may need {needed / 1e9:.2f} GB; "
            "free some, or set --export-root (EXPORT_ROOT) or --save (SAVE_CKPT) to another disk, or lower --save-keep"
        )


def _bytes_per_weight(folder: Path) -> int:
    """Of the parameters in a Hugging Face folder, by its config; 4 where that does not say."""
    settings = json.loads((folder / "config.json").read_text())
    return 2 if (settings.get("dtype") or settings.get("torch_dtype")) in ("bfloat16", "float16") else 4

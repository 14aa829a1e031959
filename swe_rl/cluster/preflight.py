"""What is checked about the machine before a run starts: room on the disk, so that no run dies half-way through a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from swe_rl.config import Config
from swe_rl.errors import UsageError
from swe_rl.run_folder import RunFolder

CHECKPOINTS_AT_ONCE = 3  # kept ones and the one being written
BYTES_PER_PARAMETER = 12  # of a checkpoint: weights and AdamW's two moments in fp32, whatever the model folder holds


def check_disk(run: RunFolder, config: Config) -> None:
    """Raise UsageError unless the run's disk has room for its checkpoints (estimated from the model's size) and 200 MB."""
    weights = sum(file.stat().st_size for file in Path(config.hf_checkpoint).glob("*.safetensors"))
    checkpoints = max(CHECKPOINTS_AT_ONCE, config.save_keep + 1) + config.guard  # the guard may hold an older good one
    parameters = weights // _bytes_per_weight(Path(config.hf_checkpoint))
    needed = parameters * BYTES_PER_PARAMETER * checkpoints + weights + 200_000_000
    free = shutil.disk_usage(run.path).free
    if free < needed:
        raise UsageError(
            f"{run.path} has {free / 1e9:.2f} GB free, this run may need {needed / 1e9:.2f} GB; "
            "free some, or set --export-root (EXPORT_ROOT) to another disk, or lower --save-keep"
        )


def _bytes_per_weight(folder: Path) -> int:
    """Of the parameters in a Hugging Face folder, by its config; 4 where that does not say."""
    settings = json.loads((folder / "config.json").read_text())
    return 2 if (settings.get("dtype") or settings.get("torch_dtype")) in ("bfloat16", "float16") else 4

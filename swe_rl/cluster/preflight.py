"""What is checked about the machine before a run starts: room on the disk, so that no run dies half-way through a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from swe_rl.config import Config
from swe_rl.errors import UsageError
from swe_rl.run_folder import RunFolder

CHECKPOINTS_AT_ONCE = 3  # kept ones and the one being written
BYTES_PER_WEIGHT_BYTE = 3  # weights and AdamW's two moments


def check_disk(run: RunFolder, config: Config) -> None:
    """Raise UsageError unless the run's disk has room for its checkpoints (estimated from the model's size) and 200 MB."""
    weights = sum(file.stat().st_size for file in Path(config.hf_checkpoint).glob("*.safetensors"))
    checkpoints = max(CHECKPOINTS_AT_ONCE, config.save_keep + 1) + config.guard  # the guard may hold an older good one
    needed = weights * BYTES_PER_WEIGHT_BYTE * checkpoints + weights + 200_000_000
    free = shutil.disk_usage(run.path).free
    if free < needed:
        raise UsageError(
            f"{run.path} has {free / 1e9:.2f} GB free, this run may need {needed / 1e9:.2f} GB; "
            "free some, or set --export-root (EXPORT_ROOT) to another disk, or lower --save-keep"
        )

"""What `swe-rl sft` accepts, and what must be the same when an interrupted run continues."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from swe_rl.errors import DataError, UsageError

COPY_LENGTH = 96  # tokens of one copy drill
_LEAST = {
    "epochs": 1,
    "max_steps": 0,
    "warmup": 0,
    "batch_tokens": 1,
    "row_tokens": 1,
    "copy_steps": 0,
    "copy_rows": 0,
    "weight_decay": 0,
    "clip_grad": 0,
    "min_lr": 0,
    "save_interval": 1,
    "max_tokens": 2,
    "threads": 0,
}
# Where and how fast it runs, and what is made of the weights at the end: none of it changes the weights.
_FREE = {"out", "threads", "log", "save_interval", "export_dtype"}


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UsageError, one line naming flag, value and what is allowed, before anything is loaded."""
    for name, least in _LEAST.items():
        value = getattr(args, name)
        if not (math.isfinite(value) and value >= least):
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    if not (math.isfinite(args.lr) and args.lr > 0):
        raise UsageError(f"--lr {args.lr}: must be above 0")
    if not 0 <= args.context_weight < 1:
        raise UsageError(f"--context-weight {args.context_weight}: allowed is 0 <= weight < 1")
    if args.copy_steps and args.batch_tokens < COPY_LENGTH:
        raise UsageError(
            f"--batch-tokens {args.batch_tokens}: a step of --copy-steps holds no drill of {COPY_LENGTH} tokens; "
            f"give at least {COPY_LENGTH}"
        )


def vocabulary_of(folder: str) -> int:
    """The number of token ids of a Hugging Face folder. Raises UsageError where it is none."""
    if not (Path(folder) / "config.json").is_file():
        raise UsageError(f"--hf-checkpoint {folder}: no config.json there; give a Hugging Face folder")
    try:
        return int(AutoConfig.from_pretrained(folder).get_text_config().vocab_size)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"--hf-checkpoint {folder}: config.json cannot be used: {reason}") from error


def what_decides(args: argparse.Namespace, data_sha256: str) -> dict[str, Any]:
    """Everything that decides the trained weights, as JSON values: stored with a state, compared on resume."""
    values = {name: value for name, value in vars(args).items() if name not in _FREE}
    return {**values, "hf_checkpoint": str(Path(args.hf_checkpoint).resolve()), "data": data_sha256}


def require_same(stored: Any, now: dict[str, Any], folder: Path) -> None:
    """Raise DataError naming the settings in which the stored state differs from this run."""
    if not isinstance(stored, dict):
        raise DataError(f"{folder}: does not say how it was made; give another --out or remove it")
    differing = [name for name in sorted(now.keys() | stored.keys()) if now.get(name) != stored.get(name)]
    if differing:
        found = ", ".join(
            "--data (its content)"
            if name == "data"
            else f"--{name.replace('_', '-')} {stored.get(name)} (now {now.get(name)})"
            for name in differing
        )
        raise DataError(f"{folder}: made with other settings: {found}; use the same, give another --out, or remove it")

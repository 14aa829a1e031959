"""The folder of an evaluation: it belongs to one evaluation, and never to a training run that the same settings name."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TextIO

from swe_rl.config import Config
from swe_rl.config.load import dump_yaml
from swe_rl.errors import ConfigError
from swe_rl.run_folder import check_same_settings, lock_folder, write_atomically

TRAINING_ONLY = ("checkpoints", "evaluations")  # what the folder of a training run holds, and that of an evaluation not


def folder_of(config: Config) -> Path:
    """Where an evaluation is written."""
    stamp = os.environ.get("RUN_TIMESTAMP") or datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
    return Path(config.run_dir or Path(config.export_root) / (config.run_name or f"eval_{stamp}")).resolve()


def attempts_folder(folder: Path, config: Config) -> Path:
    """Where its attempts are written."""
    return Path(config.swe_save_traj_dir).resolve() if config.swe_save_traj_dir else folder / "attempts"


def claim(folder: Path, config: Config) -> TextIO:
    """Make the folder and write the settings there; it is ours until the lock that is returned is closed.

    Raises UsageError where another process uses it, ConfigError where it holds another run; that run's files stay as they
    are. An evaluation with the same settings that did not finish is made again.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--run-dir/--export-root: cannot make {folder}: {error.strerror}") from None
    lock = lock_folder(folder)
    try:
        if any((folder / name).exists() for name in TRAINING_ONLY):
            raise ConfigError(f"--run-dir {folder}: holds a training run; choose another --run-dir or --run-name")
        if (folder / "summary.json").exists():
            raise ConfigError(
                f"--run-dir {folder}: holds a finished evaluation; choose another --run-dir or --run-name"
            )
        if (folder / "config.yaml").exists():
            check_same_settings(folder, config)
        write_atomically(folder / "config.yaml", dump_yaml(config))
    except BaseException:
        lock.close()
        raise
    return lock

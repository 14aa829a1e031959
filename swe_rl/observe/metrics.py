"""Metrics of a run: one JSON line a step on disk (the truth), and Weights & Biases beside it when asked for."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from swe_rl.config import Config
from swe_rl.errors import UsageError


class MetricsLog:
    """Appends records to `metrics.jsonl`; every record has `kind`, `step` and `time` (seconds since the epoch)."""

    def __init__(self, path: Path, config: Config, *, run_name: str) -> None:
        self.path = path
        self._wandb = _start_wandb(config, path.parent, run_name) if config.use_wandb else None

    def log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        record = {"kind": kind, "step": step, "time": time.time(), **{k: _plain(v) for k, v in values.items()}}
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with self.path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                written = file.write(line)
                if written < len(line):  # what a disk does that is filling up
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            except OSError:
                file.truncate(size)
                raise
        if self._wandb is not None:
            numbers = {
                f"{kind}/{k}": v for k, v in record.items() if isinstance(v, int | float) and k not in ("step", "time")
            }
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        if self._wandb is not None:
            self._wandb.finish()


def check_wandb(config: Config) -> None:
    """Raise UsageError where `--use-wandb` lacks the package or the key."""
    if not config.use_wandb:
        return
    if importlib.util.find_spec("wandb") is None:
        raise UsageError("--use-wandb: the wandb package is not installed (pip install 'swe-rl[wandb]')")
    if config.wandb_mode == "online" and not (config.wandb_key or os.environ.get("WANDB_API_KEY")):
        raise UsageError("--use-wandb: set WANDB_API_KEY (or WANDB_KEY), or use --wandb-mode offline")


def _start_wandb(config: Config, folder: Path, run_name: str) -> Any:
    check_wandb(config)
    import wandb

    if config.wandb_key:
        os.environ["WANDB_API_KEY"] = config.wandb_key
    settings = {k: v for k, v in config.model_dump().items() if k not in ("wandb_key", "swe_server_token")}
    return wandb.init(
        project=config.wandb_project,
        group=config.wandb_group or None,
        name=run_name,
        id=run_name.replace("/", "-"),
        resume="allow",
        dir=str(folder),
        mode=config.wandb_mode,
        config=settings,
        settings=wandb.Settings(silent=True, console="off"),
    )


def _plain(value: Any) -> Any:
    """JSON has no NaN: such a value becomes its name, so that it is seen rather than lost."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if hasattr(value, "item"):
        return _plain(value.item())
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete records of a metrics file; a last line cut by a crash is left out."""
    records = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return records


def drop_after(path: Path, step: int) -> None:
    """On resume, forget records of steps after the checkpoint: they are about to be made again."""
    kept = [r for r in read_metrics(path) if r["step"] <= step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
    temporary.replace(path)

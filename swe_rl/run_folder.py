"""The folder of one run: where everything lies, what marks it finished, and when a start continues an earlier one."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import yaml

from swe_rl.config import Config
from swe_rl.config.load import dump_yaml
from swe_rl.errors import ConfigError, UsageError

# Settings that may change between the start and the continuation of a run without changing what is computed.
FREE_TO_CHANGE = frozenset(
    (
        *("run_dir", "run_name", "export_root", "auto_resume", "load", "save_keep", "swe_save_traj_dir"),
        *("progress", "use_wandb", "wandb_project", "wandb_group", "wandb_key", "wandb_mode", "debug_mode"),
        *("ray_address", "ray_object_store_mb", "engine_urls", "engine_start_timeout", "sandbox_root"),
        *("swe_env_server_url", "swe_env_server_port", "swe_exec_server_urls", "swe_server_token"),
    )
)


def config_hash(config: Config) -> str:
    """16 hex digits that are equal for runs which compute the same: of all settings but secrets, folders and addresses."""
    settings = yaml.safe_load(dump_yaml(config))
    counting = {name: value for name, value in settings.items() if name not in FREE_TO_CHANGE | {"save"}}
    return hashlib.sha256(json.dumps(counting, sort_keys=True).encode()).hexdigest()[:16]


class RunFolder:
    """Paths of a run. `resumed` says whether an unfinished earlier run is being continued."""

    def __init__(self, path: Path, config: Config, *, resumed: bool) -> None:
        self.path = path
        self.name = path.name
        self.resumed = resumed
        self.attempts = Path(config.swe_save_traj_dir or path / "attempts")
        self.checkpoints = Path(config.save or path / "checkpoints")
        self.metrics = path / "metrics.jsonl"
        self.plots = path / "plots"
        self.hf = path / "hf"
        self.summary = path / "summary.json"
        self.processes = path / "processes.json"
        self.logs = path / "logs"
        self._lock: TextIO | None = None
        self._made: list[Path] = []  # folders and the claim on `--save` that this start made
        self._latest: str | None = None  # what the link `latest` named before

    @classmethod
    def open(cls, config: Config, *, admit: Callable[[RunFolder, Config], None] | None = None) -> RunFolder:
        """Create the run's folder, or find the unfinished run that the same command started (`auto_resume`).

        admit: called before anything is written; what it raises ends the start without a trace.
        Raises UsageError if the run is in use by another process or finished, ConfigError if its settings differ.
        """
        run = cls._found(config)
        if admit is not None:
            admit(run, config)
        path = run.path
        try:
            run._make(path)
        except OSError as error:
            raise ConfigError(f"--run-dir/--export-root: cannot make {path}: {error.strerror}") from None
        run._lock = lock_folder(path)
        if run.summary.exists():
            raise UsageError(
                f"--run-dir {path}: this run has finished (summary.json); choose another --run-dir or --run-name"
            )
        for folder in (run.attempts, run.checkpoints, run.logs, run.path / "evaluations"):
            run._make(folder)
        if config.save:
            run._claim_checkpoints()
        write_atomically(path / "config.yaml", dump_yaml(config))
        run._latest = _point_latest(path)
        return run

    def discard(self) -> None:
        """Remove the folder of a run whose settings turned out to be of no use before its first step, if this start made it."""
        if self.path not in self._made or self.metrics.exists():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        _restore_latest(self.path, self._latest)
        for made in reversed(self._made):  # those elsewhere; others may have theirs in them by now
            with contextlib.suppress(OSError):
                made.rmdir() if made.is_dir() else made.unlink()

    @classmethod
    def _found(cls, config: Config) -> RunFolder:
        """The run that these settings mean: an unfinished one, or a new one that nothing was written of yet."""
        root = Path(config.export_root)
        if config.run_dir:
            path = Path(config.run_dir).resolve()  # it may be named by the link `latest`
        else:
            found = _unfinished(root / "latest", config) if config.auto_resume and not config.run_name else None
            path = found or _new_path(root, config)
        resumed = (path / "config.yaml").exists()
        if resumed:
            check_same_settings(path, config)
            if not config.auto_resume and not (path / "summary.json").exists():
                raise UsageError(
                    f"{path} holds an unfinished run, which --no-auto-resume says not to continue; "
                    "choose another --run-dir or --run-name"
                )
        return cls(path, config, resumed=resumed)

    def _make(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self._made.append(folder)

    def _claim_checkpoints(self) -> None:
        """A `--save` folder belongs to one run: another would remove its checkpoints and continue from them."""
        claim, owner = self.checkpoints / ".run", str(self.path.resolve())
        known = claim.exists()
        if known:
            found = claim.read_text().strip()
        else:
            found = owner if self.resumed or not any(self.checkpoints.glob("step_*")) else "another run"
        if found != owner:
            raise ConfigError(
                f"--save {self.checkpoints} (SAVE_CKPT) holds the checkpoints of {found}; choose another folder, "
                f"and --load {self.checkpoints}/step_... to continue from one of them"
            )
        write_atomically(claim, owner + "\n")
        if not known:
            self._made.append(claim)

    def bind(self, config: Config) -> Config:
        """The settings with every folder of this run filled in, for processes that know the config only."""
        folders = {"run_dir": self.path, "save": self.checkpoints, "swe_save_traj_dir": self.attempts}
        return config.model_copy(update={name: str(folder.resolve()) for name, folder in folders.items()})

    def evaluation(self, label: str) -> Path:
        """Where the result of an evaluation is kept."""
        return self.path / "evaluations" / f"{label}.json"

    def forget_evaluations_after(self, step: int) -> None:
        """On resume: results of weights that are about to be made again."""
        for file in (self.path / "evaluations").glob("step-*.json"):
            if file.stem.removeprefix("step-").isdigit() and int(file.stem.removeprefix("step-")) > step:
                file.unlink()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def lock_folder(path: Path) -> TextIO:
    """Take the lock of a run's folder; it is held until the file returned is closed, or this process ends.

    Raises UsageError where another process holds it.
    """
    lock = (path / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise UsageError(f"{path} is in use by another process; wait for it or choose another --run-name") from None
    return lock


def write_atomically(path: Path, text: str) -> None:
    """Write beside and rename: a reader sees the old file or the new one, never half of one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object as a person likes to read it, atomically."""
    write_atomically(path, json.dumps(value, indent=2) + "\n")


def _new_path(root: Path, config: Config) -> Path:
    stamp = os.environ.get("RUN_TIMESTAMP") or datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
    return root / (config.run_name or f"swe-rl_{stamp}")


def _unfinished(latest: Path, config: Config) -> Path | None:
    """The newest run if it did not finish and has the same settings."""
    if not latest.is_symlink() or not (latest / "config.yaml").exists() or (latest / "summary.json").exists():
        return None
    return latest.resolve() if not _differences(latest.resolve(), config) else None


def _differences(path: Path, config: Config) -> list[str]:
    try:
        saved = yaml.safe_load((path / "config.yaml").read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--run-dir {path}: config.yaml cannot be read: {error}") from None
    now = yaml.safe_load(dump_yaml(config))
    if not isinstance(saved, dict):
        return ["config.yaml"]
    return [k for k in sorted(set(saved) | set(now)) if k not in FREE_TO_CHANGE and saved.get(k) != now.get(k)]


def check_same_settings(path: Path, config: Config) -> None:
    """Raise ConfigError where the run in `path` was started with settings that compute something else."""
    if different := _differences(path, config):
        raise ConfigError(
            f"--run-dir {path} holds a run with other settings ({', '.join(different)}); choose another --run-name"
        )


def _point_latest(path: Path) -> str | None:
    """Let `latest` beside the run name it; returns what the link named before."""
    link = path.parent / "latest"
    if link.is_dir() and not link.is_symlink():
        return None  # a folder of the user's own
    before = str(link.readlink()) if link.is_symlink() else None
    temporary = path.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    temporary.replace(link)
    return before


def _restore_latest(path: Path, before: str | None) -> None:
    """Let `latest` name again what it did before the run in `path`, which is gone."""
    link = path.parent / "latest"
    if not link.is_symlink() or str(link.readlink()) != path.name:
        return
    if before and (path.parent / before).exists():
        _point_latest(path.parent / before)
    else:
        link.unlink()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from disk, or ConfigError naming the file."""
    try:
        value = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return value

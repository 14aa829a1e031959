"""The folder of one checkpoint: written beside its place, marked complete, renamed; refused where it is not whole.

<save>/step_000010/manifest.json   format, optimizer step and the size of every file: the completeness marker
                   state.json      what the driver needs to go on (data position, seeds, ...)
                   config.json     the resolved settings, secrets masked
                   dist/           torch.distributed.checkpoint: model, optimizer, random states
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from swe_rl.trainer.errors import CheckpointError

FORMAT = "swe-rl-checkpoint/1"
_NAME = re.compile(r"step_(\d{6,})")
_PARTIAL = ".partial-"
_REPLACED = ".replaced-"


def checkpoint_folder(root: str | Path, step: int) -> Path:
    """Where the checkpoint after rollout step `step` lives below `root`."""
    return Path(root) / f"step_{step:06d}"


def partial_folder(final: Path) -> Path:
    """Where a checkpoint is written before it is whole: beside its place, so that the rename is atomic."""
    return final.with_name(f"{_PARTIAL}{final.name}")


def list_checkpoints(root: str | Path) -> list[Path]:
    """Folders below `root` that are named as checkpoints and have a manifest, oldest step first."""
    root = Path(root)
    if not root.is_dir():
        return []
    found = [(int(match[1]), path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found) if (path / "manifest.json").is_file()]


def latest_checkpoint(root: str | Path) -> Path | None:
    """The newest whole checkpoint below `root`, if any; broken ones are passed over, a killed `commit` is finished."""
    finish_commits(Path(root))
    for path in reversed(list_checkpoints(root)):
        try:
            read_manifest(path)
        except CheckpointError:
            continue
        return path
    return None


def require_space(folder: Path, needed: int) -> None:
    """Raise CheckpointError where the disk of `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(f"the disk is full: {needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free")


def write_json(path: Path, value: Any) -> None:
    """Write JSON and wait until it is on disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())


def commit(partial: Path, final: Path, manifest: dict[str, Any]) -> None:
    """Mark `partial` complete and rename it to `final`; a checkpoint that is already there is replaced."""
    files = {str(p.relative_to(partial)): p.stat().st_size for p in sorted(partial.rglob("*")) if p.is_file()}
    write_json(partial / "manifest.json", {**manifest, "format": FORMAT, "files": files})
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    partial.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_commits(root: Path) -> None:
    """Put back what a `commit` below `root` had moved away when it was killed: the new folder if whole, else the old."""
    for replaced in root.glob(f"{_REPLACED}*"):
        final = root / replaced.name.removeprefix(_REPLACED)
        if final.exists():
            continue
        try:
            read_manifest(partial_folder(final))
        except CheckpointError:
            replaced.rename(final)
        else:
            partial_folder(final).rename(final)


def prune(root: Path, keep: int, *, spare: Collection[Path] = ()) -> list[Path]:
    """Remove all but the newest `keep` checkpoints (0 = keep all) and those of `spare`, and what dead runs left unfinished."""
    for path in root.iterdir():
        if path.name.startswith((f"{_PARTIAL}step_", f"{_REPLACED}step_")):
            shutil.rmtree(path, ignore_errors=True)
    old = [path for path in list_checkpoints(root)[:-keep] if path not in spare] if keep else []
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    return old


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a whole checkpoint of ours. Raises CheckpointError, in one line, for anything else."""
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint '{folder}': no such folder")
    manifest = _read_json(folder, "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"checkpoint '{folder}': manifest.json is not of format {FORMAT}")
    files = manifest.get("files")
    if not isinstance(files, dict) or not isinstance(manifest.get("optimizer_steps"), int):
        raise CheckpointError(f"checkpoint '{folder}': manifest.json lacks 'files' or 'optimizer_steps'")
    for name, size in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise CheckpointError(
                f"checkpoint '{folder}' is damaged: {name} is missing or not {size} bytes; use an older one"
            )
    return manifest


def read_state(folder: Path) -> dict[str, Any]:
    """What the driver stored with the checkpoint."""
    return _read_json(folder, "state.json")


def _read_json(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"checkpoint '{folder}': no {name}; it is half-written or not a checkpoint of swe-rl"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint '{folder}': {name} cannot be read ({error})") from error

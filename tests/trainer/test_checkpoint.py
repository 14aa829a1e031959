"""Checkpoints: whole or refused, safe to read, pruned, and a full disk leaves the old one."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch

from swe_rl.trainer import checkpoint
from swe_rl.trainer.checkpoint_folder import (
    checkpoint_folder,
    commit,
    latest_checkpoint,
    list_checkpoints,
    partial_folder,
    prune,
    read_manifest,
    require_space,
)
from swe_rl.trainer.errors import CheckpointError
from tests.trainer.conftest import make_config, save_tiny_model


@pytest.fixture
def saved(tiny_model, tmp_path, start_worker) -> Path:
    worker = start_worker(make_config(tiny_model, wandb_key="hush"))
    final = checkpoint_folder(tmp_path / "checkpoints", 7)
    partial = partial_folder(final)
    commit(partial, final, {"optimizer_steps": worker.save(str(partial))})
    return final


def test_a_whole_checkpoint_is_found_and_holds_no_secret(saved, tmp_path):
    assert latest_checkpoint(tmp_path / "checkpoints") == saved
    assert json.loads((saved / "config.json").read_text())["wandb_key"] == "***"
    assert "hush" not in "".join(p.read_text(errors="ignore") for p in saved.rglob("*.json"))
    assert latest_checkpoint(tmp_path / "nowhere") is None


def break_missing_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def break_half_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": "swe-rl')


def break_foreign(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": "other/9"}')


def break_truncated_data(folder: Path) -> None:
    data = next((folder / "dist").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-100])


def break_missing_index(folder: Path) -> None:
    (folder / "dist" / ".metadata").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_missing_manifest, "no manifest.json; it is half-written"),
        (break_half_manifest, "cannot be read"),
        (break_foreign, "not of format"),
        (break_truncated_data, "damaged"),
        (break_missing_index, "damaged"),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_broken_checkpoints_are_refused_in_one_line(saved, damage, message, tmp_path, start_worker, tiny_model):
    damage(saved)
    worker = start_worker(make_config(tiny_model))
    before = worker.backend.full_weights()
    with pytest.raises(CheckpointError, match=message) as error:
        worker.load(str(saved), weights_only=False)
    assert "\n" not in str(error.value) and str(saved) in str(error.value)
    assert latest_checkpoint(tmp_path / "checkpoints") is None
    assert all(torch.equal(t, before[n]) for n, t in worker.backend.full_weights().items())


def test_a_checkpoint_of_another_model_is_refused(saved, tmp_path, start_worker, untied_model):
    wider = save_tiny_model(tmp_path / "wider", hidden=40)
    with pytest.raises(CheckpointError, match=r"another model.*is \(101, 32\) there, \(101, 40\)"):
        start_worker(make_config(wider)).load(str(saved), weights_only=False)
    with pytest.raises(CheckpointError, match=r"another model: it has no tensor model\.lm_head"):
        start_worker(make_config(untied_model)).load(str(saved), weights_only=False)


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (Path.touch, (self.target,))


def test_an_index_that_would_run_code_is_refused(saved, tmp_path):
    target = tmp_path / "pwned"
    (saved / "dist" / ".metadata").write_bytes(pickle.dumps(Hostile(target)))
    with pytest.raises(CheckpointError, match="only tensors may be in a checkpoint"):
        checkpoint.load_tensors({"x": torch.zeros(1)}, saved / "dist")
    assert not target.exists()


def test_values_that_are_no_tensors_are_refused(tmp_path, start_worker, tiny_model):
    start_worker(make_config(tiny_model))
    checkpoint.save_tensors({"x": {"not": "a tensor"}}, tmp_path / "d")  # type: ignore[dict-item]
    with pytest.raises(CheckpointError, match="no tensor x"):
        checkpoint.load_tensors({"x": torch.zeros(1)}, tmp_path / "d")


def fake(root: Path, step: int) -> Path:
    folder = checkpoint_folder(root, step)
    partial = partial_folder(folder)
    partial.mkdir(parents=True)
    (partial / "data").write_text("x" * step)
    commit(partial, folder, {"optimizer_steps": step})
    return folder


def test_only_the_newest_are_kept_and_leftovers_go(tmp_path):
    folders = [fake(tmp_path, step) for step in (1, 2, 10, 1_000_000)]
    (tmp_path / ".partial-step_000011").mkdir()
    (tmp_path / "notes").mkdir()
    assert prune(tmp_path, keep=2) == folders[:2]
    assert list_checkpoints(tmp_path) == folders[2:]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step_000010", "step_1000000"]
    prune(tmp_path, keep=0)
    assert list_checkpoints(tmp_path) == folders[2:]
    prune(tmp_path, keep=1, spare=[folders[2]])
    assert list_checkpoints(tmp_path) == folders[2:]


def test_the_newest_whole_one_is_chosen_and_the_same_step_is_replaced(tmp_path):
    old, new = fake(tmp_path, 1), fake(tmp_path, 2)
    (new / "data").write_text("")
    assert latest_checkpoint(tmp_path) == old
    assert fake(tmp_path, 2) == new
    assert read_manifest(new)["files"] == {"data": 2}
    assert latest_checkpoint(tmp_path) == new


@pytest.mark.parametrize("whole", [True, False])
def test_a_replacement_that_was_killed_between_its_renames_is_finished(tmp_path, monkeypatch, whole):
    fake(tmp_path, 1)
    old = fake(tmp_path, 2)
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path.name.startswith(".partial-"):
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        fake(tmp_path, 2)
    assert not old.exists()
    if not whole:
        (tmp_path / ".partial-step_000002" / "data").unlink()
    assert latest_checkpoint(tmp_path) == old
    assert read_manifest(old)["files"] == {"data": 2}


def test_a_write_that_fails_in_the_middle_is_one_clear_error(tiny_model, saved, tmp_path, start_worker):
    """A file size limit fails the write in the middle of a file, as a disk that fills up does."""
    worker = start_worker(make_config(tiny_model))
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"was not written: .* MB free on its disk") as error:
            worker.save(str(tmp_path / "checkpoints" / ".partial-step_000008"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "\n" not in str(error.value)
    assert latest_checkpoint(tmp_path / "checkpoints") == saved
    worker.load(str(saved), weights_only=False)


def test_missing_space_is_seen_before_anything_is_written(tmp_path):
    require_space(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"the disk is full: 1000000000000\.0 MB needed"):
        require_space(tmp_path, 10**18)

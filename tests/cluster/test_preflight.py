"""Room for a run's checkpoints is counted in parameters, not in the bytes that the model folder happens to have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from swe_rl.cluster.preflight import check_disk
from swe_rl.config import Config
from swe_rl.errors import UsageError
from swe_rl.run_folder import RunFolder
from swe_rl.trainer.checkpoint_folder import checkpoint_folder


@pytest.mark.parametrize(("dtype", "file_bytes"), [("float32", 4_000_000), ("bfloat16", 2_000_000)])
def test_a_million_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, file_bytes: int) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"dtype": dtype}))
    (model / "model.safetensors").write_bytes(bytes(file_bytes))
    config = Config(hf_checkpoint=str(model), export_root=str(tmp_path / "out"), save_keep=2)
    checkpoint, rest = 12_000_000, file_bytes + 200_000_000
    # Two kept ones, one that is written, the guard's good one and the next; the export.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * checkpoint + rest))
    run = RunFolder.open(config, admit=check_disk)
    run.close()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * checkpoint + rest - 1))
    with pytest.raises(UsageError, match=r"0\.26 GB free, this run may need 0\.26 GB"):
        check_disk(run, config)
    for step in (1, 2, 3, 4):  # an interrupted run goes on beside the checkpoints that it has
        folder = checkpoint_folder(run.checkpoints, step)
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=checkpoint + rest))
    RunFolder.open(config, admit=check_disk).close()


def test_the_disk_of_the_checkpoints_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, disk = tmp_path / "model", tmp_path / "disk"
    for folder in (model, disk):
        folder.mkdir()
    (model / "config.json").write_text("{}")
    full = {disk: 0}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=full.get(path, 10**12)))
    config = Config(hf_checkpoint=str(model), export_root=str(tmp_path / "out"), save=str(disk / "new" / "ckpt"))
    with pytest.raises(UsageError, match="SAVE_CKPT"):
        RunFolder.open(config, admit=check_disk)
    assert not (tmp_path / "out").exists()

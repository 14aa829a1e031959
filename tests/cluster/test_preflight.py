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


@pytest.mark.parametrize(("dtype", "file_bytes"), [("float32", 4_000_000), ("bfloat16", 2_000_000)])
def test_a_million_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, file_bytes: int) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"dtype": dtype}))
    (model / "model.safetensors").write_bytes(bytes(file_bytes))
    config = Config(hf_checkpoint=str(model), export_root=str(tmp_path / "out"), save_keep=2)
    run = RunFolder.open(config)
    needed = 4 * 12_000_000 + file_bytes + 200_000_000  # two kept, an older good one, one being written; the export
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    check_disk(run, config)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    with pytest.raises(UsageError, match=r"0\.25 GB free, this run may need 0\.25 GB"):
        check_disk(run, config)
    run.close()

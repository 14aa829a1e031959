"""The disk of a run fills up while it works: one line says so, nothing is left half-written, and with room again it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_rl.observe.metrics import read_metrics
from swe_rl.trainer.checkpoint_folder import list_checkpoints, read_manifest
from tests.whole_run.conftest import Lab
from tests.whole_run.test_train import start, wait_for_step, wait_until_gone

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk"),
]
STEPS = 12


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(65536)):
            pass
    return filler


def test_a_disk_that_fills_up_in_the_middle(lab: Lab, disk: Path) -> None:
    flags = ("--num-rollout", str(STEPS), "--trainer-threads", "1")
    process = start(lab, disk, *flags)
    run = wait_for_step(disk, 2, process)
    filler = fill(disk)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    told = [line for line in output.splitlines() if line.startswith("swe-rl:")]
    assert len(told) == 1 and any(words in told[0] for words in ("No space left on device", "disk is full")), output
    assert wait_until_gone(disk) == []

    assert not (run / "summary.json").exists()
    checkpoints = list_checkpoints(run / "checkpoints")
    assert checkpoints and all(read_manifest(path) for path in checkpoints)
    assert {p.name for p in (run / "checkpoints").iterdir()} == {p.name for p in checkpoints}
    for attempt in (run / "attempts").rglob("calc-*"):
        assert not attempt.name.startswith(".")
        for name in ("traj.json", "meta.json", "turns.json"):
            json.loads((attempt / name).read_text())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert len(read_metrics(run / "metrics.jsonl")) == len(lines)
    leftovers = [p for p in run.rglob("*") if p.name.endswith((".tmp", ".tmp.png")) or ".partial" in p.name]
    assert leftovers == []

    filler.unlink()
    again = start(lab, disk, *flags)
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0, output
    assert (disk / "latest").resolve() == run and "continuing" in output
    assert json.loads((run / "summary.json").read_text())["attempts"] == STEPS * 8
    assert [r["step"] for r in read_metrics(run / "metrics.jsonl") if r["kind"] == "train"] == list(range(1, STEPS + 1))

"""Two real training processes over Ray: the same update as one process, and no hang when one dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from swe_rl.cluster.local_ray import ray_cluster
from swe_rl.config import Config
from swe_rl.errors import DataError
from swe_rl.trainer.checkpoint_folder import checkpoint_folder, latest_checkpoint, list_checkpoints
from swe_rl.trainer.errors import CheckpointError, TrainerDied
from swe_rl.trainer.group import TrainerGroup
from tests.trainer.conftest import make_config, make_samples

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp") as folder, ray_cluster(Config(), Path(folder)):
        yield


def weights(group: TrainerGroup, folder: Path) -> dict[str, torch.Tensor]:
    return load_file(group.export_hf(folder) / "model.safetensors")


@pytest.fixture(scope="module")
def one_and_two(tiny_model: Path, tmp_path_factory) -> dict[int, dict[str, object]]:
    """Three steps on one and on two processes, with checkpoints; one more step after each way of resuming."""
    root = tmp_path_factory.mktemp("groups")
    seen: dict[int, dict[str, object]] = {}
    for ranks in (1, 2):
        config = make_config(
            tiny_model,
            actor_num_gpus_per_node=ranks,
            kl_loss_coef=0.1,
            num_steps_per_rollout=2,
            loss_aggregation="trajectory_mean",
            save_keep=2,
        )
        with TrainerGroup(config) as group:
            metrics = [group.train(step, make_samples(seed=step)) for step in range(3)]
            group.save(checkpoint_folder(root / str(ranks), 3), {"cursor": 17})
            seen[ranks] = {"config": config, "metrics": metrics, "weights": weights(group, root / f"hf{ranks}")}
            seen[ranks]["next"] = group.train(3, make_samples(seed=3))
            seen[ranks]["next_weights"] = weights(group, root / f"hf{ranks}")
            seen[ranks]["checkpoint"] = latest_checkpoint(root / str(ranks))
    return seen


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=2e-4)


def test_two_processes_make_the_update_of_one(one_and_two):
    for one, two in zip(one_and_two[1]["metrics"], one_and_two[2]["metrics"], strict=True):
        for name in ("train/loss", "train/grad_norm", "train/kl", "train/entropy", "train/mean_abs_logprob_diff"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name
        assert two["train/trained_tokens"] == one["train/trained_tokens"]
    assert_close(one_and_two[1]["weights"], one_and_two[2]["weights"])


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(1, 2), (2, 1), (2, 2)])
def test_a_checkpoint_continues_on_any_number_of_processes(one_and_two, saved_on, loaded_on, tmp_path):
    with TrainerGroup(one_and_two[loaded_on]["config"]) as group:
        assert group.load(one_and_two[saved_on]["checkpoint"]) == {"cursor": 17}
        assert group.optimizer_steps == 6
        metrics = group.train(3, make_samples(seed=3))
        after = weights(group, tmp_path / "hf")
    expected = one_and_two[saved_on]["next"]
    if saved_on == loaded_on:
        assert metrics["train/loss"] == expected["train/loss"]
        assert all(torch.equal(after[n], t) for n, t in one_and_two[saved_on]["next_weights"].items())
    assert metrics["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-3)
    assert_close(after, one_and_two[saved_on]["next_weights"])


def test_more_processes_than_sequences(tiny_model):
    """A rank without a sequence takes part in every collective and adds nothing."""
    samples = make_samples(groups=1, attempts=2)
    assert len(samples) == 2
    norms = []
    for ranks in (1, 3):
        with TrainerGroup(make_config(tiny_model, actor_num_gpus_per_node=ranks)) as group:
            metrics = group.train(0, samples)
            norms.append(metrics["train/grad_norm"])
            assert metrics["train/trained_tokens"] == sum(sum(s.loss_mask) for s in samples)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def worker_pids() -> list[int]:
    children = psutil.Process().children(recursive=True)
    return sorted(p.pid for p in children if "TrainWorker" in " ".join(p.cmdline()))


def test_a_killed_process_is_an_error_at_once_and_the_others_end(tiny_model):
    config = make_config(tiny_model, actor_num_gpus_per_node=2, process_group_timeout=120.0)
    with TrainerGroup(config) as group:
        group.train(0, make_samples())
        pids = worker_pids()
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(TrainerDied, match="training process"):
            group.train(1, make_samples(seed=1))
        with pytest.raises(TrainerDied, match="have ended"):
            group.export_hf("/nonexistent")
    for _ in range(100):
        if not any(psutil.pid_exists(pid) for pid in pids):
            break
        time.sleep(0.1)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_bad_samples_and_bad_folders_leave_the_group_alive(tiny_model, tmp_path):
    with TrainerGroup(make_config(tiny_model)) as group:
        broken = make_samples()
        broken[3].loss_mask = [1]
        with pytest.raises(DataError, match="loss_mask has 1 entries"):
            group.train(0, broken)
        with pytest.raises(CheckpointError, match="no such folder"):
            group.load(tmp_path / "nowhere")
        assert group.train(0, make_samples())["train/optimizer_steps"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_leaves_the_old_checkpoint(tiny_model, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], check=True)
    try:
        with TrainerGroup(make_config(tiny_model, save_keep=3)) as group:
            needed = group._call("checkpoint_bytes")[0]
            group.train(0, make_samples())
            first = checkpoint_folder(disk, 1)
            group.save(first, {"step": 1})
            free = shutil.disk_usage(disk).free
            assert free > 8192
            # space for the announced bytes, and not for what the files need beside them
            (disk / "other").write_bytes(bytes(max(0, free - needed - 4096)))
            with pytest.raises(CheckpointError, match="older checkpoints are intact"):
                group.save(checkpoint_folder(disk, 2), {"step": 2})
            assert list_checkpoints(disk) == [first]
            assert sorted(p.name for p in disk.iterdir()) == ["other", "step_000001"]
            (disk / "other").unlink()
            assert group.load(first) == {"step": 1}
            group.train(1, make_samples(seed=1))  # the group is still in step
    finally:
        subprocess.run(["umount", str(disk)], check=True)

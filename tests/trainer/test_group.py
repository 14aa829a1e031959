"""Two real training processes over Ray: the same update as one process, and no hang when one dies."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest
import ray
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors.torch import load_file

from swe_rl.errors import DataError, EngineError
from swe_rl.trainer.checkpoint_folder import checkpoint_folder, latest_checkpoint, list_checkpoints
from swe_rl.trainer.errors import CheckpointError, TrainerDied
from swe_rl.trainer.group import TrainerGroup
from tests.private_ray import private_ray
from tests.processes import cmdline, gone
from tests.trainer.conftest import make_config, make_samples

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    with private_ray():
        yield


def test_train_save_load_export_on_two_processes(tiny_model, tmp_path):
    """What the numbers must be is tested on processes without Ray (`test_two_ranks.py`); here the calls of a driver."""
    config = make_config(tiny_model, actor_num_gpus_per_node=2, save_keep=1)
    with TrainerGroup(config) as group:
        metrics = group.train(0, make_samples())
        assert metrics["train/optimizer_steps"] == group.optimizer_steps == 1
        assert metrics["train/trained_tokens"] == sum(sum(s.loss_mask) for s in make_samples())
        group.save(checkpoint_folder(tmp_path / "c", 1), {"cursor": 17})
        trained = load_file(group.export_hf(tmp_path / "hf") / "model.safetensors")
        group.train(1, make_samples(seed=1))
        group.save(checkpoint_folder(tmp_path / "c", 2), {"cursor": 18})
        assert [p.name for p in (tmp_path / "c").iterdir()] == ["step_000002"]
        assert group.load(latest_checkpoint(tmp_path / "c")) == {"cursor": 18}
        assert group.optimizer_steps == 2
    start = load_file(tiny_model / "model.safetensors")
    assert trained.keys() == start.keys()
    assert any(not torch.equal(trained[name], start[name]) for name in start)


def worker_pids() -> list[int]:
    children = psutil.Process().children(recursive=True)
    return sorted(p.pid for p in children if "TrainWorker" in " ".join(cmdline(p)))


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
    assert all(gone(pid) for pid in pids)


def test_a_death_is_named_where_another_process_was_heard_first(tiny_model, monkeypatch):
    """The collective of a living process may break before Ray has noticed which process died."""

    class Rank:
        def fail(self) -> None:
            raise RuntimeError("Connection closed by peer")

        def end(self) -> None:
            time.sleep(0.5)
            os._exit(1)

    group = TrainerGroup.__new__(TrainerGroup)
    group.config = make_config(tiny_model)
    monkeypatch.setattr("swe_rl.trainer.group.DEATH_NOTICE", 120.0)  # it ends with the death
    living, dying = group._workers = [ray.remote(Rank).options(num_cpus=0).remote() for _ in range(2)]
    ray.get([worker.__ray_ready__.remote() for worker in group._workers], timeout=120)
    failed = living.fail.remote()
    ray.wait([failed], timeout=60)
    with pytest.raises(TrainerDied, match="training process 1 is gone"):
        group._gather([failed, dying.end.remote()], "train")
    assert group._workers == []


def test_a_silent_process_is_an_error_after_the_bound_and_ends(tiny_model):
    with TrainerGroup(make_config(tiny_model)) as group:
        (pid,) = worker_pids()
        group.config.train_timeout = 3.0  # now, for the start may take longer
        os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(TrainerDied, match=r"train: no answer within train_timeout \(3.0 s\)"):
            group.train(0, make_samples())
        assert 3.0 <= time.monotonic() - started < 30.0
    assert gone(pid)


def test_bad_samples_and_bad_folders_leave_the_group_alive(tiny_model, tmp_path):
    with TrainerGroup(make_config(tiny_model)) as group:
        broken = make_samples()
        broken[3].loss_mask = [1]
        with pytest.raises(DataError, match="loss_mask has 1 entries"):
            group.train(0, broken)
        with pytest.raises(CheckpointError, match="no such folder"):
            group.load(tmp_path / "nowhere")
        assert group.train(0, make_samples())["train/optimizer_steps"] == 1


async def test_an_engine_that_refuses_the_weights_is_quoted_and_the_group_goes_on(tiny_model):
    async def answer(request: web.Request) -> web.Response:
        if request.path != "/update_weights_from_tensor":
            return web.json_response({"success": True})
        return web.json_response({"success": False, "message": "the model has no tensor 'w'"}, status=400)

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{route}", answer)
    engine = TestServer(app)
    await engine.start_server()
    group = await asyncio.to_thread(TrainerGroup, make_config(tiny_model))
    try:
        with pytest.raises(EngineError, match=r"400.*the model has no tensor 'w'"):
            await asyncio.to_thread(group.push_weights, [str(engine.make_url("/"))], 1)
        assert (await asyncio.to_thread(group.train, 0, make_samples()))["train/optimizer_steps"] == 1
    finally:
        group.close()
        await engine.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_leaves_the_old_checkpoint(tiny_model, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    with TrainerGroup(make_config(tiny_model, save_keep=3)) as group:
        needed = group._call("checkpoint_bytes")[0]
        size = f"size={4 * needed + 400_000}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)], check=True)
        try:
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

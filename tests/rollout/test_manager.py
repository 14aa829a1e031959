"""The Ray actor: settings errors come out typed, steps and evaluations work, closing ends what runs."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import time

import pytest
import ray

from swe_rl.errors import ConfigError, InfraError, SweRlError
from swe_rl.rollout.manager import RolloutManager
from swe_rl.rollout.remote import RemoteRollouts, RolloutCall
from swe_rl.tasks.load import write_tasks
from tests.agent.repository import local_config
from tests.private_ray import private_ray
from tests.rollout.test_real_engine import checkpoint, engine_server  # noqa: F401
from tests.rollout.waiting import boxes, until


@pytest.fixture(scope="module")
def cluster():
    with private_ray():
        yield


@pytest.fixture
def config(engine_server, checkpoint, task, tmp_path):  # noqa: F811
    tasks = []
    for number in range(3):
        one = copy.deepcopy(task)
        one.instance_id, one.metadata = f"demo__clamp-{number}", {"level": number}
        tasks.append(one)
    unknown = dataclasses.replace(task, instance_id="demo__clamp-9", certified=None)
    write_tasks(tmp_path / "train.jsonl", [*tasks, unknown])
    write_tasks(tmp_path / "eval.jsonl", tasks[:2])
    return local_config(
        tmp_path,
        engine_urls=[str(engine_server.make_url("/"))],
        hf_checkpoint=str(checkpoint),
        prompt_data=str(tmp_path / "train.jsonl"),
        eval_prompt_data=str(tmp_path / "eval.jsonl"),
        swe_agent_config="quickstart",
        rollout_max_context_len=420,
        rollout_max_response_len=40,
        rollout_batch_size=1,
        n_samples_per_prompt=2,
        dynamic_sampling=False,
        step_limit=3,
    )


@pytest.mark.ray
async def test_steps_evaluations_and_positions(cluster, config):
    manager = RolloutManager.remote(config)
    said = "3 tasks; 1 left out (1 not certified)"
    info = await manager.start.remote()
    assert (info["sandbox"], info["tasks"], info["data"]) == (config.sandbox, 3, said)
    assert info["attempts_at_once"] == config.swe_max_concurrent
    assert ("does not isolate" in "".join(info["notes"])) is (config.sandbox == "process")
    batch = await manager.rollout.remote(0)
    # An untrained policy solves nothing: the group has no spread, so none of its tokens trains.
    assert len(batch.samples) >= 2 and batch.counts["segments"] == batch.metrics["groups_kept"] == 0
    progress = await manager.progress.remote()
    assert progress["finished"] == 2 and progress["verdicts"] == {"no_patch": 2}
    records = await manager.evaluate.remote(attempts=2, temperature=0.5)
    assert [(r["instance_id"], r["index"], r["task_metadata"]["level"]) for r in records] == [
        ("demo__clamp-0", 0, 0),
        ("demo__clamp-0", 1, 0),
        ("demo__clamp-1", 0, 1),
        ("demo__clamp-1", 1, 1),
    ]
    state = await manager.state_dict.remote()
    assert state == batch.data_state and state["groups"] == 1
    await manager.load_state_dict.remote({**state, "groups": 2})
    assert (await manager.rollout.remote(1)).samples[0].group_index == 2
    await manager.set_weight_version.remote(5)
    await manager.close.remote()
    ray.kill(manager)


@pytest.mark.ray
async def test_wrong_settings_come_out_typed(cluster, config):
    bad = config.model_copy(update={"prompt_data": "/no/such/file.jsonl"})
    manager = RolloutManager.remote(bad)
    with pytest.raises(SweRlError, match="/no/such/file"):
        await manager.start.remote()
    await manager.close.remote()
    ray.kill(manager)
    manager = RolloutManager.remote(config.model_copy(update={"custom_rm_path": "no.such.module"}))
    with pytest.raises(ConfigError, match="--custom-rm-path"):
        await manager.start.remote()
    ray.kill(manager)


@pytest.mark.ray
async def test_calls_are_bounded(cluster, config):
    """A manager whose attempts never end: waiting ends with the bound, and says which setting it was made from."""
    config = config.model_copy(update={"custom_generate_function_path": "tests.rollout.custom_functions.for_ever"})
    rollouts = await asyncio.to_thread(RemoteRollouts, config)
    try:
        call = RolloutCall(rollouts, rollouts._actor.rollout.remote(0), what="rollout 0", bound=1.0)
        started = time.monotonic()
        await asyncio.to_thread(call.wait)
        assert 1.0 <= time.monotonic() - started < 10.0
        with pytest.raises(InfraError, match=r"^rollout 0: not done after 1 s.*\(swe_rollout_timeout 120 s\)"):
            await asyncio.to_thread(call.result)
        assert time.monotonic() - started < 20.0
    finally:
        await asyncio.to_thread(rollouts.close)


async def test_closing_ends_running_calls(config, tmp_path):
    """The actor's class in this process: a step under way, and its sandboxes, end with `close`."""
    manager = RolloutManager.__ray_metadata__.modified_class(config.model_copy(update={"step_limit": 500}))
    assert (await manager.progress())["stages"] == {"start": 1}
    await manager.start()
    call = asyncio.ensure_future(manager.rollout(0))
    await until(lambda: boxes(tmp_path / "sandboxes"), seconds=60)
    await manager.close()
    assert call.cancelled() and not boxes(tmp_path / "sandboxes")

"""Attempts at once: no more than the settings say and the sandboxes can hold, whoever calls `generate`."""

from __future__ import annotations

import asyncio

import pytest

from swe_rl.config import Config
from swe_rl.config.sandbox import SandboxSettings
from swe_rl.errors import SandboxUnavailable
from swe_rl.generate_with_swe import generate, reward_func
from swe_rl.rollout import attempt as attempt_module
from swe_rl.rollout.data_source import TaskSource
from swe_rl.rollout.functions import load_functions
from swe_rl.rollout.places import Places
from swe_rl.rollout.remote import RemoteRollouts
from swe_rl.rollout.rollouts import Rollouts
from swe_rl.sandbox.hardening import HardenedProvider
from swe_rl.sandbox.pool_process import PoolProcess
from swe_rl.sandbox.provider import open_provider
from swe_rl.types import Sample
from tests.agent.repository import SUBMIT_COMMAND
from tests.agent.scripted import ScriptedEngine, bash


class Plane:
    """A provider before the real one that counts its sandboxes and refuses at once who finds no place."""

    name = "plane"

    def __init__(self, provider, places, *, told):
        self.provider, self.places = provider, places
        self.capacity = places if told else None
        self.held = self.most = 0

    async def open(self, task, *, deadline, purpose):
        self.held += 1
        self.most = max(self.most, self.held)
        try:
            if self.held > self.places:
                raise SandboxUnavailable("full")
            sandbox = await self.provider.open(task, deadline=deadline, purpose=purpose)
        except BaseException:
            self.held -= 1
            raise
        close = sandbox.close

        async def closed():
            await close()
            self.held -= sandbox.close is closed
            sandbox.close = close

        sandbox.close = closed
        return sandbox

    async def aclose(self):
        await self.provider.aclose()


@pytest.fixture
def make_plane(make_runtime, tokenizer, task):
    """make_plane(places, told, ...): a runtime over a plane of so many places, and the plane. Attempts submit at once."""
    task.eval_script, task.log_parser, task.fail_to_pass, task.pass_to_pass = "true", "exit_code", [], []
    task.flaky = None  # equal patches share no grading

    async def make(places, *, told, command="true", **settings):
        engine = ScriptedEngine(tokenizer, [bash(f"{command}; {SUBMIT_COMMAND}")])
        runtime = await make_runtime(engine, swe_infra_retries=0, **settings)
        plane = Plane(runtime.provider, places, told=told)
        runtime.provider = HardenedProvider(plane)
        runtime.places = Places(runtime.config.swe_max_concurrent, runtime.provider.capacity)
        return runtime, plane

    return make


def sample_of(task, index):
    return Sample(group_index=0, index=index, prompt=task.problem_statement, metadata={"task": task})


async def test_generate_keeps_to_the_bound_without_a_manager(make_plane, task):
    runtime, plane = await make_plane(8, told=False, swe_max_concurrent=2)
    made = await asyncio.gather(*(generate(runtime.config, sample_of(task, i), {}) for i in range(8)))
    assert [sample.metadata["exit_status"] for sample in made] == ["submitted"] * 8
    assert plane.most == 2 and plane.held == 0


async def test_another_trainers_attempts_find_their_places(make_plane, task):
    """Agents and gradings of a plane of two: neither is started before there is a place for it."""
    runtime, plane = await make_plane(2, told=True, command="echo '# x' >> solution.py")

    async def one(index):
        return await reward_func(runtime.config, await generate(runtime.config, sample_of(task, index), {}))

    assert await asyncio.gather(*map(one, range(4))) == [1.0] * 4
    made = await asyncio.gather(*(generate(runtime.config, sample_of(task, i), {}) for i in range(4)))
    assert await asyncio.gather(*(reward_func(runtime.config, sample) for sample in made)) == [1.0] * 4
    assert plane.most == 2 and plane.held == 0


async def test_samples_that_wait_for_one_grading_take_no_places(make_plane, task, monkeypatch):
    """With two places for gradings, the samples of one attempt do not keep another attempt out."""
    runtime, _ = await make_plane(6, told=True, command="echo '# x' >> solution.py")
    first, second = [await generate(runtime.config, sample_of(task, i), {}) for i in range(2)]
    begun, both_begun, grade = [], asyncio.Event(), attempt_module._grade

    async def both(runtime, attempt):
        begun.append(attempt.attempt_id)
        if len(begun) == 2:
            both_begun.set()
        await both_begun.wait()
        await grade(runtime, attempt)

    monkeypatch.setattr(attempt_module, "_grade", both)
    rewards = asyncio.gather(*(reward_func(runtime.config, sample) for sample in (first, first, first, second)))
    assert await asyncio.wait_for(rewards, 60) == [1.0] * 4
    assert len(begun) == 2


async def test_an_attempt_is_written_before_it_is_let_go(make_plane, task, monkeypatch, tmp_path):
    runtime, _ = await make_plane(6, told=True, command="echo '# x' >> solution.py")
    sample = await generate(runtime.config, sample_of(task, 0), {})
    attempt = runtime.recall(sample.metadata["attempt_id"])
    written, begun, go, save = [], asyncio.Event(), asyncio.Event(), attempt_module.save_attempt

    async def late(runtime, attempt):
        begun.set()
        await go.wait()
        written.append(attempt.trajectory.patch)
        await save(runtime, attempt)

    monkeypatch.setattr(attempt_module, "save_attempt", late)
    first = asyncio.create_task(reward_func(runtime.config, sample))
    await asyncio.wait_for(begun.wait(), 60)
    second = asyncio.create_task(reward_func(runtime.config, sample))
    await asyncio.sleep(0.1)  # time enough for the second to let it go, if it did
    go.set()
    assert await asyncio.gather(first, second) == [1.0, 1.0]
    assert b"# x" in written[0] and len(written) == 1
    assert attempt.trajectory.patch == b"", "afterwards it is let go"


async def test_a_managers_attempts_find_their_places(make_plane, task):
    """Far more attempts at once than places: each holds its place from its first sandbox to its verdict."""
    runtime, plane = await make_plane(2, told=True, swe_max_concurrent=16, command="echo '# x' >> solution.py")
    rollouts = Rollouts(runtime, load_functions(runtime.config), TaskSource([task], seed=1, shuffle=False))
    results = await rollouts.evaluate([task], attempts=16)
    assert [result.verdict for result in results] == ["resolved"] * 16
    assert runtime.places.at_once == 2
    assert plane.most == 2 and plane.held == 0


@pytest.mark.parametrize(
    ("at_once", "capacity", "attempts", "agents", "gradings"),
    [(128, None, 128, 128, 128), (128, 15, 15, 10, 5), (4, 15, 4, 4, 4), (8, 2, 2, 1, 1), (8, 1, 1, 1, 1)],
)
def test_the_places_of_a_plane_are_shared(at_once, capacity, attempts, agents, gradings):
    places = Places(at_once, capacity)
    assert (places._attempts._value, places._agents._value, places._gradings._value) == (attempts, agents, gradings)


async def test_a_pool_of_the_runs_own_says_what_it_can_hold(monkeypatch):
    """Its exec servers are this run's; what a shared pool can hold for it nobody knows."""

    class Started(PoolProcess):
        url = "http://127.0.0.1:9"

        async def start(self):
            self.url = type(self).url

    monkeypatch.setattr("swe_rl.sandbox.pool.PoolProcess", Started)
    own = {"swe_exec_server_urls": ["http://a:5000", "http://b:5000"], "swe_max_containers_per_node": 3}
    for settings, capacity in ((own, 6), ({"swe_env_server_url": "http://127.0.0.1:9"}, None)):
        provider = await open_provider(SandboxSettings(sandbox="pool", **settings))
        assert provider.capacity == capacity
        await provider.aclose()


def test_a_step_has_time_for_every_wave_of_attempts():
    """The driver waits as long as the attempts that find a place may take, not as long as those that were asked for."""
    rollouts = RemoteRollouts.__new__(RemoteRollouts)
    rollouts._config, rollouts.info = Config(swe_max_concurrent=64, swe_rollout_timeout=100.0), {"attempts_at_once": 2}
    assert rollouts._time_for(64) >= 32 * 100.0

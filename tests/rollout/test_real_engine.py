"""The whole attempt with the real embedded engine over HTTP and a tiny random model, whose bytes are often no text at all."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import dataclasses
import enum
import json
import threading

import pytest
import torch
from aiohttp.test_utils import TestServer
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from swe_rl.agent.loop import run_agent
from swe_rl.config import Config
from swe_rl.deadline import Deadline
from swe_rl.engine.embedded import server
from swe_rl.engine.embedded.app import make_app
from swe_rl.errors import ConfigError, InfraError, SandboxUnavailable
from swe_rl.generate_with_swe import generate, reward_func
from swe_rl.rollout import runtime as runtime_module
from swe_rl.rollout.data_source import TaskSource
from swe_rl.rollout.functions import load_functions
from swe_rl.rollout.rollouts import Rollouts
from swe_rl.rollout.runtime import MAX_OPENED, Runtime, open_runtime, runtime_for, set_runtime
from tests.agent.build_tokenizers import build_tokenizer
from tests.agent.repository import local_config

CONTEXT, RESPONSE = 420, 40


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextlib.asynccontextmanager
async def serving(checkpoint):
    arguments = ["--model-path", str(checkpoint), "--context-length", "1024", "--max-total-tokens", "16384"]
    service = server.build(server.parser().parse_args(arguments))
    service.scheduler.start()
    http = TestServer(make_app(service, max_body_bytes=64 << 20), handler_cancellation=True)
    await http.start_server()
    try:
        yield http
    finally:
        await http.close()
        service.scheduler.stop()


@pytest.fixture
async def engine_server(checkpoint):
    async with serving(checkpoint) as http:
        yield http


@pytest.fixture
def engine_port(checkpoint):
    """The port of an engine in a thread of its own: it outlives the event loops of a test."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports = []

    async def serve():
        async with serving(checkpoint) as http:
            ports.append(http.port)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    assert ready.wait(60)
    yield ports[0]
    loop.call_soon_threadsafe(done.set)
    thread.join()
    loop.close()


@pytest.fixture
async def rollouts(engine_server, checkpoint, task, tmp_path):
    config = local_config(
        tmp_path,
        engine_urls=[str(engine_server.make_url("/"))],
        hf_checkpoint=str(checkpoint),
        swe_agent_config="quickstart",
        rollout_max_context_len=CONTEXT,
        rollout_max_response_len=RESPONSE,
        rollout_batch_size=2,
        n_samples_per_prompt=3,
        dynamic_sampling=False,
        swe_infra_retries=0,
        step_limit=8,
    )
    runtime = await open_runtime(config)
    set_runtime(runtime)
    other = copy.deepcopy(task)
    other.instance_id = "demo__clamp-2"
    source = TaskSource([task, other], seed=1, shuffle=False)
    yield Rollouts(runtime, load_functions(config), source)
    set_runtime(None)
    await runtime.aclose()


async def test_trained_tokens_are_the_sampled_ones_with_their_log_probs(rollouts, checkpoint):
    """The audit against the engine's own records, and every log-prob recomputed by transformers in one forward pass."""
    by_index = load_functions(
        Config(custom_rm_path="tests.whole_run.rewards.by_index")
    )  # groups with spread: they train
    batch = await Rollouts(rollouts.runtime, by_index, rollouts.source).rollout(0)
    assert batch.metrics["sampled_fraction"] == 1.0 and batch.counts["dropped_tokens"] == 0
    assert batch.counts["attempts"] == 6 and set(batch.counts["exit_statuses"]) <= {"step_limit", "format_errors"}
    assert batch.counts["trained_tokens"] == sum(sum(sample.loss_mask) for sample in batch.samples) > 0
    assert batch.counts["forks"]["context_dropped"] > 0 and batch.metrics["cached_share"] > 0.3
    assert batch.metrics["weight_version_max"] == 0
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    decoded_differs = 0
    for sample in batch.samples:
        sample.validate()
        assert len(sample.tokens) <= CONTEXT
        ids = torch.tensor([sample.tokens])
        with torch.no_grad():
            log_probs = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
        start = len(sample.tokens) - sample.response_length
        for i, (mask, log_prob) in enumerate(zip(sample.loss_mask, sample.rollout_log_probs, strict=True)):
            if mask:
                position = start + i
                assert abs(log_probs[position - 1, sample.tokens[position]].item() - log_prob) < 1e-3
        tokenizer = rollouts.runtime.tokenizer
        decoded_differs += (
            tokenizer(tokenizer.decode(sample.tokens), add_special_tokens=False)["input_ids"] != sample.tokens
        )
    assert decoded_differs  # decoding and encoding again would have trained other tokens


async def test_the_same_seed_samples_the_same_attempts(rollouts):
    first = await rollouts.evaluate(rollouts.source._tasks, attempts=2)
    again = await rollouts.evaluate(rollouts.source._tasks, attempts=2)
    other = await rollouts.evaluate(rollouts.source._tasks, attempts=2, label="other")
    key = [(result.sampled_tokens, result.turns) for result in first]
    assert key == [(result.sampled_tokens, result.turns) for result in again]
    assert key != [(result.sampled_tokens, result.turns) for result in other]


async def test_an_engine_that_is_gone_ends_the_step_with_its_name(rollouts, engine_server, monkeypatch):
    await engine_server.close()
    rollouts.runtime.client.connect_attempts = 2
    with pytest.raises(InfraError, match="counts; the first failed with: EngineUnreachable"):
        await rollouts.rollout(0)


async def test_a_missing_tokenizer_or_engine_is_one_clear_error(tmp_path, checkpoint):
    with pytest.raises(ConfigError, match="--engine-urls"):
        await open_runtime(local_config(tmp_path, hf_checkpoint=str(checkpoint)))
    urls = {"engine_urls": ["http://127.0.0.1:9"]}
    with pytest.raises(ConfigError, match="--hf-checkpoint: no tokenizer"):
        await open_runtime(local_config(tmp_path, hf_checkpoint=str(tmp_path), **urls))


class SlimeSample:
    """The attributes that slime's Sample has, and nothing of ours."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    def __init__(self, index, prompt, metadata):
        self.group_index, self.index, self.prompt, self.metadata = 0, index, prompt, metadata
        self.tokens, self.response, self.response_length, self.label = [], "", 0, None
        self.reward = self.loss_mask = self.rollout_log_probs = None
        self.weight_versions, self.remove_sample, self.status = [], False, self.Status.PENDING


@pytest.fixture
def slime_args(checkpoint, tmp_path, monkeypatch):
    """slime_args(port): a Namespace with a router's address; some settings come from the environment."""
    monkeypatch.setenv("SWE_SAVE_TRAJ_DIR", str(tmp_path / "attempts"))
    monkeypatch.setenv("STEP_LIMIT", "2")
    settings = local_config(tmp_path)
    return lambda port: argparse.Namespace(
        sglang_router_ip="127.0.0.1",
        sglang_router_port=port,
        hf_checkpoint=str(checkpoint),
        sandbox=settings.sandbox,
        sandbox_root=settings.sandbox_root,
        swe_agent_config="quickstart",
        rollout_max_context_len=CONTEXT,
        rollout_max_response_len=RESPONSE,
        use_wandb=True,
        lr=None,
    )


SLIME_PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 4096}  # as its rollouts build them
SLIME_PARAMS |= {"stop": None, "stop_token_ids": None, "skip_special_tokens": False, "no_stop_trim": True}
SLIME_PARAMS |= {"spaces_between_special_tokens": False}


async def test_plugged_into_another_trainer(engine_server, slime_args, task, tmp_path):
    """slime's calls: samples of another class, the runtime built at the first call."""
    args = slime_args(engine_server.port)
    samples = [SlimeSample(i, task.problem_statement, {"instance": dataclasses.asdict(task)}) for i in range(2)]
    made = await asyncio.gather(*(generate(args, sample, dict(SLIME_PARAMS)) for sample in samples))
    for index, one in enumerate(made):
        assert isinstance(one, SlimeSample) and one.status is SlimeSample.Status.TRUNCATED
        assert one.rollout_id == index and len(one.loss_mask) == one.response_length == len(one.rollout_log_probs)
        assert one.tokens and await reward_func(args, one) == 0.0 and one.metadata["verdict"] == "no_patch"
    written = [json.loads(path.read_text()) for path in (tmp_path / "attempts").glob("*/traj.json")]
    assert [len(one["steps"]) for one in written] == [2, 2]


def test_every_event_loop_gets_connections_of_its_own(engine_port, slime_args, task, monkeypatch):
    """As scripts and tests call: `asyncio.run` again and again, with other settings in between."""
    closed = []
    real = Runtime.aclose

    async def counted(self):
        await real(self)
        closed.append(self)

    monkeypatch.setattr(Runtime, "aclose", counted)
    args = slime_args(engine_port)
    samples = [SlimeSample(i, task.problem_statement, {"instance": dataclasses.asdict(task)}) for i in range(3)]
    first, second = (asyncio.run(generate(args, sample, dict(SLIME_PARAMS))) for sample in samples[:2])
    assert [first.status, second.status] == [SlimeSample.Status.TRUNCATED] * 2
    assert asyncio.run(reward_func(args, first)) == 0.0 and first.metadata["verdict"] == "no_patch"
    args.dynamic_history = True
    assert len(asyncio.run(generate(args, samples[2], dict(SLIME_PARAMS)))) == 2  # one sample a step
    assert len(closed) == 4  # each with its loop


async def test_other_settings_are_not_ignored(monkeypatch):
    """In one event loop: equal settings share a runtime, others get another; only so many stay open beside those in use."""
    made, closed = [], []

    class Opened:
        def __init__(self, config):
            self.config = config
            made.append(self)

        async def aclose(self):
            closed.append(self)

    async def open_one(config):
        return Opened(config)

    monkeypatch.setattr(runtime_module, "open_runtime", open_one)
    args = argparse.Namespace(step_limit=3)
    async with runtime_for(args) as first, runtime_for(argparse.Namespace(step_limit=3)) as again:
        assert first is again and first.config.step_limit == 3
        args.step_limit = 4
        async with runtime_for(args) as other:
            assert other is not first and other.config.step_limit == 4
        for limit in range(5, 5 + MAX_OPENED):
            async with runtime_for(Config(step_limit=limit)) as further:
                assert further.config.step_limit == limit
        assert closed == [made[1], made[2]]  # the first is in use
    async with runtime_for(argparse.Namespace(step_limit=3)) as later:
        assert later is first


async def test_an_outage_at_the_first_call_is_not_for_ever(monkeypatch):
    """Plugged into another trainer: the pool was down when the first attempt came; the next one finds it."""
    outages = [SandboxUnavailable("the pool does not answer")]
    opened = contextlib.AsyncExitStack()  # something that can be closed

    async def open_once(_config):
        if outages:
            raise outages.pop()
        return opened

    monkeypatch.setattr(runtime_module, "open_runtime", open_once)
    with pytest.raises(SandboxUnavailable):
        async with runtime_for(Config()):
            pass
    async with runtime_for(Config()) as runtime:
        assert runtime is opened


async def test_run_agent_alone(rollouts, task):
    """As demonstrations and evaluations call it: no manager around it."""
    runtime = rollouts.runtime
    sandbox = await runtime.provider.open(task, deadline=Deadline(30), purpose="agent")
    params = {"temperature": 0.7, "max_new_tokens": 10}
    trajectory = await run_agent(task, sandbox, runtime.client, runtime.tokenizer, runtime.config, params, Deadline(60))
    assert trajectory.exit_status == "step_limit", trajectory.verdict_detail
    assert len(trajectory.turns) == 8
    assert all(len(turn.output_ids) <= 10 for turn in trajectory.turns)

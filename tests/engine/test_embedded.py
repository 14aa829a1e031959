"""The embedded engine's own promises: batching changes nothing, caches never lie, faults end requests and not the engine."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import random
from collections import deque
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp.test_utils import TestServer
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from swe_rl.config import Config
from swe_rl.engine.client import EngineClient
from swe_rl.engine.embedded.admission import next_admissible
from swe_rl.engine.embedded.app import make_app
from swe_rl.engine.embedded.kv_rows import KVRows
from swe_rl.engine.embedded.prefix_cache import PrefixCache
from swe_rl.engine.embedded.sampling_params import SamplingParams
from swe_rl.engine.embedded.sequence import Sequence
from swe_rl.engine.embedded.service import EngineBusy, EngineService, RequestFailed
from swe_rl.errors import DataError, EngineError, UsageError
from tests.engine import models
from tests.engine.conftest import build, until_running

PROMPT = [(5 * i * i + i) % 500 for i in range(60)]


async def run(service: EngineService, prompt: list[int], **params: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True} | params
    body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
    answer: dict[str, Any] = await service.generate(service.parse(body))
    return answer


def greedy(model: PreTrainedModel, prompt: list[int], count: int = 10) -> list[int]:
    """Greedy tokens by full forward passes, without any cache."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def sliding() -> Qwen3ForCausalLM:
    torch.manual_seed(5)
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    return Qwen3ForCausalLM(Qwen3Config(**models.SIZES, **window, head_dim=32, initializer_range=0.15)).eval()


@pytest.mark.parametrize("make", [models.llama, sliding])
async def test_other_architectures(make: Any, tmp_path: Path) -> None:
    """Untied Llama, and Qwen3 whose later layers see a window only; the prompt is computed in chunks of 16."""
    model = make()
    service = build(models.save(model, tmp_path), "--chunked-prefill-size", "16")
    service.scheduler.start()
    try:
        prompts = [PROMPT, PROMPT[:7], PROMPT[3:50]]
        results = await asyncio.gather(*(run(service, prompt) for prompt in prompts))
        assert [r["output_ids"] for r in results] == [greedy(model, prompt) for prompt in prompts]
    finally:
        service.scheduler.stop()


async def test_more_requests_than_rows_all_end_right(checkpoint: Path) -> None:
    service = build(
        checkpoint, "--max-running-requests", "3", "--max-total-tokens", "300", "--chunked-prefill-size", "32"
    )
    service.scheduler.start()
    try:
        prompts = [PROMPT[i : 20 + 4 * i] for i in range(10)]
        results = await asyncio.gather(*(run(service, p, max_new_tokens=3 + i) for i, p in enumerate(prompts)))
        model = models.qwen3()
        assert [r["output_ids"] for r in results] == [greedy(model, p, 3 + i) for i, p in enumerate(prompts)]
        assert service.scheduler.cache.stored_tokens <= 300
        assert service.scheduler.batch.running == [] and service.open == 0
    finally:
        service.scheduler.stop()


async def test_kv_memory_stays_within_its_bound_whatever_comes_when(checkpoint: Path) -> None:
    """Many short sequences, then long ones: a tensor of as many rows of that length would be 8 x 500 cells."""
    service = build(checkpoint, "--max-running-requests", "8", "--max-total-tokens", "1000")
    service.scheduler.start()
    cells: list[int] = []
    reserve = service.scheduler.rows.reserve

    def watched(rows: int, tokens: int) -> None:
        reserve(rows, tokens)
        cells.append(service.scheduler.rows.data.shape[1] * service.scheduler.rows.data.shape[3])

    service.scheduler.rows.reserve = watched  # type: ignore[method-assign]
    try:
        prompts = [PROMPT[i : i + 20] for i in range(8)] + [PROMPT, PROMPT[1:]]
        counts = [10] * 8 + [440, 440]
        results = await asyncio.gather(
            *(run(service, p, max_new_tokens=n) for p, n in zip(prompts, counts, strict=True))
        )
        model = models.qwen3()
        assert [r["output_ids"][:10] for r in results] == [greedy(model, p) for p in prompts]
        assert len(results[-1]["output_ids"]) == 440
        assert 500 <= max(cells) <= 1000
    finally:
        service.scheduler.stop()


@pytest.mark.parametrize(("longest", "admitted"), [(1024, 64), (4096, 64), (4097, 63), (16384, 16), (262144, 1)])
def test_the_default_bound_admits_the_usual_batches(longest: int, admitted: int) -> None:
    """The quickstart has 1,024 tokens of context and the settings' defaults 16,384; short ones come along with a long one."""
    settings = Config()
    params = SamplingParams(max_new_tokens=1)
    waiting = deque(
        Sequence("r", [1] * length, params, seed=0, on_progress=print) for length in [longest - 1] + [15] * 99
    )
    bounds = {"max_batch": settings.engine_max_batch, "max_tokens": settings.engine_cache_tokens}
    running: list[Sequence] = []
    while sequence := next_admissible(waiting, running, PrefixCache(0), **bounds):
        running.append(sequence)
    assert len(running) == admitted


def test_growing_rows_keeps_what_is_in_use_and_the_bound() -> None:
    rng = random.Random(4)
    for _ in range(300):
        bound = rng.randint(64, 3000)
        rows = KVRows(1, 1, 1, torch.float32, max_length=1024, max_tokens=bound)
        used = (0, 0)
        for _ in range(40):
            count = rng.randint(1, min(16, bound))
            length = rng.randint(1, min(1024, bound // count))
            kept = (min(count, used[0]), min(length, used[1]))
            content = rows.data[:, : kept[0], :, : kept[1]].clone()
            rows.reserve(count, length)
            assert count <= rows.data.shape[1] and length <= rows.data.shape[3]
            assert rows.data.shape[1] * rows.data.shape[3] <= bound
            assert torch.equal(rows.data[:, : kept[0], :, : kept[1]], content)
            rows.data[:, :count, :, :length] = torch.rand(2, count, 1, length, 1)
            used = (count, length)


async def test_without_memory_for_a_row_every_request_is_answered(service: EngineService) -> None:
    reserve = service.scheduler.rows.reserve

    def no_memory(rows: int, tokens: int) -> None:
        if rows > 1:
            raise RuntimeError("can't allocate memory")
        reserve(rows, tokens)

    service.scheduler.rows.reserve = no_memory  # type: ignore[method-assign]
    calls = [asyncio.create_task(run(service, PROMPT, max_new_tokens=900))]
    await until_running(service)
    calls.append(asyncio.create_task(run(service, PROMPT[1:])))
    answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), timeout=20)
    assert all(isinstance(a, RequestFailed) and a.status == 500 and "allocate" in str(a) for a in answers)


async def test_a_group_computes_its_prompt_once(service: EngineService) -> None:
    long = [(i * i) % 500 for i in range(200)]
    results = await asyncio.gather(*(run(service, long) for _ in range(6)))
    cached = sorted(r["meta_info"]["cached_tokens"] for r in results)
    assert cached == [0, 199, 199, 199, 199, 199]
    assert len({tuple(r["output_ids"]) for r in results}) == 1


async def test_seeds_decide_samples_whatever_else_runs(service: EngineService) -> None:
    sampled = {"temperature": 1.0, "max_new_tokens": 20}
    alone = await run(service, PROMPT, **sampled, sampling_seed=7)
    others = [run(service, PROMPT[i:], **sampled, sampling_seed=i) for i in range(8)]
    crowd = await asyncio.gather(run(service, PROMPT, **sampled, sampling_seed=7), *others)
    assert crowd[0]["output_ids"] == alone["output_ids"]
    several: Any = await run(service, PROMPT, **sampled, sampling_seed=7, n=3)
    assert several[0]["output_ids"] == alone["output_ids"] and len({tuple(r["output_ids"]) for r in several}) == 3


async def test_nan_weights_end_requests_and_good_weights_heal(client: EngineClient, service: EngineService) -> None:
    good = models.qwen3().state_dict()
    bad = {name: tensor.clone() for name, tensor in good.items()}
    bad["model.layers.1.self_attn.v_proj.weight"][0, 0] = float("nan")
    await client.update_weights_from_tensor(bad.items(), 1)
    params = {"temperature": 1.0, "max_new_tokens": 5}
    broken = await asyncio.gather(
        *(client.generate(PROMPT[i:], params, rid=f"bad{i}") for i in range(3)), return_exceptions=True
    )
    assert all(isinstance(error, EngineError) and "NaN" in str(error) for error in broken)
    await client.update_weights_from_tensor(good.items(), 2)
    result = await client.generate(PROMPT, {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True}, rid="good")
    assert result.output_ids == greedy(models.qwen3(), PROMPT) and result.cached_tokens == 0


async def test_updating_without_a_pause_recomputes_what_runs(service: EngineService) -> None:
    new = models.qwen3(seed=6)
    task = asyncio.create_task(run(service, PROMPT, max_new_tokens=900))
    await until_running(service)
    await service.command(lambda: service.scheduler.update(list(new.state_dict().items()), "4"))
    answer = await task
    spans = answer["meta_info"]["weight_versions"]
    start = spans[-1]["start"]
    assert spans[-1]["version"] == "4" and spans[-1]["end"] == 900
    ids = answer["output_ids"]
    assert ids[start : start + 5] == greedy(new, PROMPT + ids[:start], 5)


async def test_kv_held_in_place_over_an_update_is_not_kept(service: EngineService) -> None:
    task = asyncio.create_task(run(service, PROMPT, max_new_tokens=900))
    await until_running(service)
    await service.command(lambda: service.scheduler.pause("in_place"))
    await service.command(lambda: service.scheduler.update(list(models.qwen3(seed=6).state_dict().items()), "4"))
    await service.command(service.scheduler.resume)
    await task
    assert len(service.scheduler.cache) == 0
    assert (await run(service, PROMPT))["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ([("model.norm.weight", torch.zeros(64)), ("model.nothing", torch.zeros(1))], "no tensor"),
        ([("model.norm.weight", torch.zeros(64)), ("lm_head.weight", torch.zeros(2, 2))], "lm_head"),
        ([("model.norm.weight", torch.zeros(64, dtype=torch.int64))], "floating"),
    ],
)
async def test_a_refused_update_changes_nothing(
    client: EngineClient, service: EngineService, named: Any, reason: str
) -> None:
    with pytest.raises(EngineError, match=reason):
        await client.update_weights_from_tensor(named, 9)
    assert service.scheduler.version == "0" and not service.scheduler.paused and not service.scheduler.updating
    result = await client.generate(PROMPT, {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True}, rid="r")
    assert result.output_ids == greedy(models.qwen3(), PROMPT)


async def test_a_hostile_update_runs_nothing(client: EngineClient, tmp_path: Path) -> None:
    class Shell:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    text = base64.b64encode(pickle.dumps([("model.norm.weight", Shell())])).decode()
    with pytest.raises(EngineError, match=r"400.*only tensors"):
        await client._everywhere("update_weights_from_tensor", {"serialized_named_tensors": [text]})
    assert not (tmp_path / "ran").exists()


async def test_an_open_update_session_holds_sampling(service: EngineService, client: EngineClient) -> None:
    await client._everywhere("begin_weight_update", {})
    with pytest.raises(EngineError, match="already open"):
        await client._everywhere("begin_weight_update", {})
    held = asyncio.create_task(run(service, PROMPT))
    await asyncio.sleep(0.2)
    assert not held.done()
    await client._everywhere("end_weight_update", {})
    assert len((await held)["output_ids"]) == 10


async def test_a_full_queue_says_so(checkpoint: Path) -> None:
    service = build(checkpoint, "--max-queued-requests", "2")
    with pytest.raises(EngineBusy):
        await run(service, PROMPT, n=3)
    assert service.open == 0


async def test_a_failing_step_fails_requests_with_500_and_health(service: EngineService, client: EngineClient) -> None:
    def explode(*_args: Any) -> None:
        raise RuntimeError("out of memory")

    service.scheduler.runner.forward = explode  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(RequestFailed, match="out of memory"):
            await run(service, PROMPT)
    assert list((await client.health()).values()) == [False]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([], "object"),
        ({}, "input_ids or text"),
        ({"input_ids": [1], "text": "a"}, "either"),
        ({"input_ids": []}, "at least one"),
        ({"input_ids": [1, "a"]}, "integers"),
        ({"input_ids": [-1]}, "integers"),
        ({"input_ids": [512]}, "from 0 to 511"),
        ({"input_ids": [True]}, "integers"),
        ({"input_ids": "abc"}, "list"),
        ({"text": 3}, "text must be"),
        ({"input_ids": [1] * 1024}, "context"),
        ({"input_ids": [1], "rid": 4}, "rid"),
        ({"input_ids": [1], "sampling_params": 4}, "sampling_params"),
        ({"input_ids": [1], "return_logprob": 1}, "return_logprob must be bool"),
        ({"input_ids": [[1], [2]], "return_logprob": [True]}, "return_logprob: 1 entries for 2 prompts"),
        ({"input_ids": [[1], [2]], "rid": ["a", "b", "c"]}, "rid: 3 entries for 2 prompts"),
        ({"input_ids": [1], "stream": "yes"}, "stream must be"),
        ({"input_ids": [1], "top_logprobs_num": 2}, "top_logprobs_num"),
        ({"input_ids": [[1], [2]], "top_logprobs_num": [0, 2]}, "top_logprobs_num"),
        ({"input_ids": [1], "return_text_in_logprobs": True}, "return_text_in_logprobs"),
        ({"input_ids": [1], "token_ids_logprob": [5]}, "token_ids_logprob"),
        ({"input_ids": [1], "return_hidden_states": True}, "return_hidden_states"),
        ({"input_ids": [1], "lora_path": "adapter"}, "lora_path"),
        ({"input_ids": [1], "temperature": 0.5}, "temperature"),  # of sampling_params
    ],
)
def test_bad_bodies_get_one_clear_line(service: EngineService, body: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        service.parse(body)


def test_fields_that_ask_for_nothing_are_taken(service: EngineService) -> None:
    """What SGLang's clients send beside the request: features that are off, and routing, whatever it says."""
    off = {"top_logprobs_num": 0, "token_ids_logprob": None, "return_hidden_states": False, "image_data": None}
    off |= {"return_text_in_logprobs": False, "session_params": {}, "lora_path": [None, None], "stream": False}
    routing = {"rid": ["a", "b"], "priority": 3, "routing_key": "k", "data_parallel_rank": 1, "log_metrics": True}
    parsed = service.parse({"input_ids": [[1], [2]], "logprob_start_len": -1, **off, **routing})
    assert [prompt.rid for prompt in parsed.prompts] == ["a", "b"] and not parsed.stream


async def test_each_prompt_of_a_list_has_its_own_settings(service: EngineService) -> None:
    body = {"input_ids": [[1, 2], [3, 4]], "return_logprob": [False, True], "sampling_params": {"max_new_tokens": 2}}
    first, second = await service.generate(service.parse(body))
    assert "output_token_logprobs" not in first["meta_info"]
    assert len(second["meta_info"]["output_token_logprobs"]) == 2


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json"):
        build(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError):
        build(tmp_path)


async def test_an_update_whose_trainer_is_gone_ends_the_engine_and_not_the_callers(service: EngineService) -> None:
    """Between begin and end nobody may be served, and nobody may wait for ever."""
    async with TestServer(make_app(service, max_body_bytes=1 << 20, update_seconds=0.3)) as http:
        client = EngineClient([str(http.make_url("/")).rstrip("/")], request_timeout=60)
        async with aiohttp.ClientSession(str(http.make_url("/"))) as session:
            for _ in range(2):  # an update that ends in time leaves no limit behind
                assert (await session.post("/begin_weight_update", json={})).status == 200
                assert (await session.post("/end_weight_update", json={})).status == 200
            await asyncio.sleep(0.5)
            assert (await client.generate(PROMPT, {"max_new_tokens": 2}, rid="before")).output_ids
            assert (await session.post("/begin_weight_update", json={})).status == 200
            with pytest.raises(EngineError, match="a weight update was begun, then nothing came"):
                await client.generate(PROMPT, {"max_new_tokens": 2}, rid="held")
        assert await client.health() == {client.urls[0]: False}
        await client.aclose()


async def test_a_half_sent_update_ends_the_engine_not_the_trust(service: EngineService, client: EngineClient) -> None:
    """The first buckets are in, a later one is refused: nobody may sample from the mixture under the old version."""
    state = dict(models.qwen3(seed=1).state_dict())
    state["no.such.tensor"] = torch.zeros(3)  # the last bucket
    client.bucket_bytes = 1
    with pytest.raises(EngineError):
        await client.update_weights_from_tensor(state.items(), 7)
    assert await client.health() == {client.urls[0]: False}
    with pytest.raises(EngineError, match="mixture of two versions"):
        await client.generate(PROMPT, {"max_new_tokens": 2}, rid="after")


async def test_prompt_log_probs_are_those_of_one_computation(checkpoint: Path) -> None:
    """An update in the middle of a long prompt begins its computation again."""
    service = build(checkpoint, "--chunked-prefill-size", "16")
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = asyncio.ensure_future(service.generate(service.parse(body)))
    await asyncio.sleep(0)
    scheduler = service.scheduler
    for command in scheduler._commands:
        command()
    scheduler._commands.clear()
    scheduler.step()
    sequence = scheduler.batch.running[0]
    assert 0 < len(sequence.prompt_log_probs) < len(PROMPT) - 1
    scheduler.update([], "1")
    scheduler.start()
    try:
        interrupted = (await answer)["meta_info"]["input_token_logprobs"]
        whole = (await service.generate(service.parse(body)))["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in interrupted] == [entry[1] for entry in whole]
        assert [entry[0] for entry in interrupted][1:] == pytest.approx([entry[0] for entry in whole][1:], abs=1e-4)
    finally:
        scheduler.stop()

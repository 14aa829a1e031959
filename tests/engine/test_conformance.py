"""One set of tests, two real servers: the embedded engine must behave as SGLang does on the same tiny checkpoint.

Both run as child processes through the launcher that training uses; the reference for tokens and log-probs is
transformers in this process. The SGLang half needs scripts/setup_sglang_cpu.sh.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from swe_rl.config import Config
from swe_rl.engine.client import EngineClient
from swe_rl.engine.launch import EngineFleet, launch_engines
from swe_rl.engine.result import GenerateResult
from swe_rl.engine.sglang.command import interpreter
from swe_rl.errors import ConfigError, EngineError
from swe_rl.types import FinishReason
from tests.engine import models

PROMPT = [(7 * i * i + 3 * i) % 500 for i in range(70)]
GREEDY = {"temperature": 0.0, "max_new_tokens": 16, "ignore_eos": True}


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("sglang", marks=[pytest.mark.sglang, pytest.mark.slow])]
)
def fleet(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineFleet]:
    config = Config(engine=request.param, engine_cache_tokens=32768, engine_start_timeout=900)
    if (
        request.param == "sglang" and "SWE_RL_TEST_SGLANG_URL" in os.environ
    ):  # a server that already runs: saves its start
        config = Config(engine_urls=[os.environ["SWE_RL_TEST_SGLANG_URL"]])
    elif request.param == "sglang":
        try:
            interpreter(config)
        except ConfigError as error:
            pytest.skip(str(error))
    engines = launch_engines(config, str(checkpoint), log_dir=tmp_path_factory.mktemp("engine"))
    yield engines
    engines.stop()


@pytest.fixture
async def engine(fleet: EngineFleet, checkpoint: Path) -> AsyncIterator[EngineClient]:
    """A client of a server that serves the first weights with an empty cache, whatever the test before it did."""
    client = EngineClient(fleet.urls, request_timeout=120)
    await client.update_weights_from_disk(str(checkpoint), 0)
    await client.flush_cache()
    yield client
    await client.resume()
    await client.aclose()


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    return models.qwen3()


def scored(model: torch.nn.Module, prompt: list[int], result: GenerateResult, temperature: float = 1.0) -> float:
    """The largest difference between the engine's log-probs and those of the model over the same tokens."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + result.output_ids])).logits[0, len(prompt) - 1 : -1]
    table = torch.log_softmax(logits / temperature, -1)
    expected = table.gather(-1, torch.tensor(result.output_ids)[:, None])[:, 0]
    return float((expected - torch.tensor(result.log_probs)).abs().max())


def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    config = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **config)[
        0, len(prompt) :
    ].tolist()


async def post(engine: EngineClient, route: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(f"{engine.urls[0]}/{route}", json=body) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_greedy_tokens_and_log_probs_equal_transformers(engine: EngineClient, reference: torch.nn.Module) -> None:
    result = await engine.generate(PROMPT, GREEDY, rid="greedy")
    assert result.output_ids == greedy(reference, PROMPT, 16)
    assert scored(reference, PROMPT, result) < 1e-4
    assert result.finish_reason is FinishReason.LENGTH
    assert result.weight_versions == [0] * 16


async def test_log_probs_are_temperature_scaled_and_ignore_filters(
    engine: EngineClient, reference: torch.nn.Module
) -> None:
    params = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "max_new_tokens": 24, "ignore_eos": True}
    result = await engine.generate(PROMPT, params, rid="scaled")
    assert scored(reference, PROMPT, result, temperature=0.7) < 1e-4


async def test_seeds(engine: EngineClient, request: pytest.FixtureRequest) -> None:
    """The embedded engine honours seeds; SGLang, outside its deterministic mode, takes them and ignores them (docs/engine.md)."""
    params = {"temperature": 1.0, "max_new_tokens": 24, "ignore_eos": True, "sampling_seed": 7}
    first, again = [(await engine.generate(PROMPT, params, rid=rid)).output_ids for rid in ("first", "again")]
    assert len(first) == 24 and (first == again) is (request.node.callspec.params["fleet"] == "embedded")


async def test_concurrent_requests_do_not_mix(engine: EngineClient, reference: torch.nn.Module) -> None:
    """32 prompts of many lengths at once: each gets its own continuation."""
    prompts = [[(i * 31 + j * j) % 500 for j in range(5 + 9 * i)] for i in range(32)]
    params = [GREEDY | {"max_new_tokens": 4 + i % 13} for i in range(32)]
    calls = (engine.generate(p, q, rid=f"many{i}") for i, (p, q) in enumerate(zip(prompts, params, strict=True)))
    for prompt, wanted, result in zip(prompts, params, await asyncio.gather(*calls), strict=True):
        assert result.output_ids == greedy(reference, prompt, wanted["max_new_tokens"])
        assert scored(reference, prompt, result) < 1e-4


async def test_stop_token(engine: EngineClient, reference: torch.nn.Module) -> None:
    expected = greedy(reference, PROMPT, 16)
    stop = next(token for i, token in enumerate(expected) if i > 3 and token not in expected[:i])
    params = GREEDY | {"stop_token_ids": [stop], "ignore_eos": False}
    result = await engine.generate(PROMPT, params, rid="stop")
    assert result.output_ids == expected[: expected.index(stop) + 1]
    assert (result.finish_reason, result.matched) == (FinishReason.STOP, stop)
    assert len(result.log_probs) == len(result.output_ids)
    ignoring = await engine.generate(PROMPT, params | {"ignore_eos": True}, rid="on")
    assert ignoring.output_ids == expected, "SGLang's ignore_eos covers stop_token_ids too"
    last = await engine.generate(PROMPT, params | {"max_new_tokens": expected.index(stop) + 1}, rid="last")
    assert last.finish_reason is FinishReason.STOP, "a stop on the last allowed token is a stop"


async def test_stop_string(engine: EngineClient, reference: torch.nn.Module) -> None:
    prompt, text = (
        PROMPT[:20],
        (await engine.generate(PROMPT[:20], GREEDY | {"skip_special_tokens": False}, rid="t")).text,
    )
    stop = text[4:7]
    result = await engine.generate(prompt, GREEDY | {"stop": [stop]}, rid="string")
    assert (result.finish_reason, result.matched) == (FinishReason.STOP, stop)
    assert result.text == text[: text.index(stop)]
    kept = await engine.generate(prompt, GREEDY | {"stop": [stop], "no_stop_trim": True}, rid="kept")
    assert kept.text.startswith(text[: text.index(stop)] + stop) and kept.output_ids == result.output_ids


async def test_end_of_sequence_ends_unless_ignored(engine: EngineClient, reference: torch.nn.Module) -> None:
    """The checkpoint's end-of-sequence id is made likely by new weights: its embedding is tied to its logit."""
    state = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    favourite = greedy(reference, PROMPT, 1)[0]
    embedding = state["model.embed_tokens.weight"]
    embedding[models.EOS] = embedding[favourite] * 1.5
    state["lm_head.weight"] = embedding
    await engine.update_weights_from_tensor([("model.embed_tokens.weight", embedding)], 1)
    ended = await engine.generate(PROMPT, {"temperature": 0, "max_new_tokens": 8}, rid="eos")
    assert (ended.output_ids, ended.finish_reason, ended.matched) == ([models.EOS], FinishReason.STOP, models.EOS)
    on = await engine.generate(PROMPT, {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}, rid="on")
    assert len(on.output_ids) == 8 and on.finish_reason is FinishReason.LENGTH


async def test_prefix_cache_changes_the_cost_not_the_result(engine: EngineClient, reference: torch.nn.Module) -> None:
    """Three turns of a conversation, each prompt extending the last one's tokens."""
    prompt, reused = list(PROMPT), []
    for turn in range(3):
        result = await engine.generate(prompt, GREEDY, rid=f"turn{turn}")
        assert result.output_ids == greedy(reference, prompt, 16)
        assert scored(reference, prompt, result) < 1e-4
        reused.append(result.cached_tokens)
        prompt = prompt + result.output_ids + [11 * turn + k for k in range(9)]
    assert reused == [0, 70 + 15, 70 + 16 + 9 + 15], "all but the last sampled token of the turn before has KV"


async def test_a_diverging_prompt_reuses_only_what_is_equal(engine: EngineClient, reference: torch.nn.Module) -> None:
    await engine.generate(PROMPT, GREEDY, rid="first")
    other = [*PROMPT[:40], 499, *PROMPT[41:]]
    result = await engine.generate(other, GREEDY, rid="second")
    assert 0 < result.cached_tokens <= 40
    assert result.output_ids == greedy(reference, other, 16) and scored(reference, other, result) < 1e-4


async def test_weights_from_tensor_are_visible_at_once(engine: EngineClient) -> None:
    await engine.generate(PROMPT, GREEDY, rid="old")
    new = models.qwen3(seed=1)
    await engine.update_weights_from_tensor(new.state_dict().items(), 7)
    result = await engine.generate(PROMPT, GREEDY, rid="new")
    assert result.cached_tokens == 0, "KV of old weights served a new attempt"
    assert result.output_ids == greedy(new, PROMPT, 16) and scored(new, PROMPT, result) < 1e-4
    assert result.weight_versions == [7] * 16


async def test_weights_in_small_buckets(engine: EngineClient) -> None:
    new = models.qwen3(seed=2)
    engine.bucket_bytes = 50_000
    await engine.update_weights_from_tensor(new.state_dict().items(), 8)
    result = await engine.generate(PROMPT, GREEDY, rid="buckets")
    assert scored(new, PROMPT, result) < 1e-4 and result.weight_versions == [8] * 16


async def test_weights_from_disk_are_visible_at_once(engine: EngineClient, tmp_path: Path) -> None:
    await engine.generate(PROMPT, GREEDY, rid="old")
    new = models.qwen3(seed=3)
    await engine.update_weights_from_disk(str(models.save(new, tmp_path)), 9)
    result = await engine.generate(PROMPT, GREEDY, rid="new")
    assert result.cached_tokens == 0
    assert scored(new, PROMPT, result) < 1e-4 and result.weight_versions == [9] * 16


async def test_a_refused_update_is_an_error_and_the_engine_goes_on(engine: EngineClient, tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        await engine.update_weights_from_disk(str(tmp_path / "nothing"), 3)
    assert len((await engine.generate(PROMPT, GREEDY, rid="after")).output_ids) == 16


LONG = {"temperature": 1.0, "max_new_tokens": 1900, "ignore_eos": True}  # outlives what is done to it, on any machine


async def until_running(engine: EngineClient, count: int = 1) -> None:
    """Wait until each of `count` requests has sampled tokens: one that came after them has ended."""
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            async with session.get(f"{engine.urls[0]}/server_info") as answer:
                running = (await answer.json()).get("running")
            if running is None:  # SGLang does not say
                await asyncio.sleep(0.7)
                break
            if running >= count:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(f"no {count} requests were running at one time")
    await engine.generate([499, *PROMPT[:4]], GREEDY, rid="witness")


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_update_with_requests_in_flight(engine: EngineClient, reference: torch.nn.Module, mode: Any) -> None:
    """Each token carries the version that sampled it; log-probs after the change are those of the new weights."""
    new = models.qwen3(seed=4)
    running = [asyncio.create_task(engine.generate([*PROMPT[:20], i], LONG, rid=f"long{i}")) for i in range(3)]
    await until_running(engine, 3)
    await engine.update_weights_from_tensor(new.state_dict().items(), 5, mode=mode)
    for i, result in enumerate(await asyncio.gather(*running)):
        versions = result.weight_versions
        change = versions.index(5)
        assert 0 < change < 1900 and versions == [0] * change + [5] * (1900 - change)
        prompt = [*PROMPT[:20], i]
        before = GenerateResult(result.output_ids[:change], result.log_probs[:change], result.finish_reason, [], 0, 0)
        assert scored(reference, prompt, before) < 1e-4
        if mode == "retract":  # the whole KV was recomputed, so the tail is scored by the new weights alone
            after = GenerateResult(
                result.output_ids[change:], result.log_probs[change:], result.finish_reason, [], 0, 0
            )
            assert scored(new, prompt + result.output_ids[:change], after) < 1e-4
    await engine.flush_cache()
    fresh = await engine.generate([*PROMPT[:20], 0], GREEDY, rid="fresh")
    assert scored(new, [*PROMPT[:20], 0], fresh) < 1e-4


async def test_pause_holds_and_resume_goes_on(engine: EngineClient, reference: torch.nn.Module) -> None:
    await engine.pause("in_place")
    waiting = asyncio.create_task(engine.generate(PROMPT, GREEDY, rid="held"))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await engine.resume()
    assert (await waiting).output_ids == greedy(reference, PROMPT, 16)


async def test_pause_with_abort_returns_what_was_sampled(engine: EngineClient) -> None:
    running = asyncio.create_task(engine.generate(PROMPT, LONG, rid="cut"))
    await until_running(engine)
    await engine.pause("abort")
    result = await running
    assert result.finish_reason is FinishReason.ABORT and 0 < len(result.output_ids) < 1900
    await engine.resume()


async def test_abort_ends_one_request_and_spares_the_others(engine: EngineClient, reference: torch.nn.Module) -> None:
    long = LONG | {"temperature": 0.0}
    first = asyncio.create_task(engine.generate(PROMPT, long, rid="one"))
    other = asyncio.create_task(engine.generate(PROMPT[:30], long, rid="two"))
    await until_running(engine, 2)
    await engine.abort("one")
    result = await first
    assert result.finish_reason is FinishReason.ABORT and 0 < len(result.output_ids) < 1900
    assert scored(reference, PROMPT, result) < 1e-4
    spared = (await other).output_ids
    assert len(spared) == 1900 and spared[:200] == greedy(reference, PROMPT[:30], 200)


async def test_too_long_is_one_clear_error(engine: EngineClient) -> None:
    with pytest.raises(EngineError, match=r"400.*context"):
        await engine.generate(PROMPT, {"max_new_tokens": 10_000}, rid="long")


async def test_samples_batches_and_prompt_log_probs(engine: EngineClient, reference: torch.nn.Module) -> None:
    body: dict[str, Any] = {
        "input_ids": PROMPT,
        "sampling_params": GREEDY | {"n": 3},
        "return_logprob": True,
        "logprob_start_len": 10,
    }
    status, answers = await post(engine, "generate", body)
    assert status == 200 and [a["output_ids"] for a in answers] == [greedy(reference, PROMPT, 16)] * 3
    with torch.no_grad():
        table = reference(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    for entries in (a["meta_info"]["input_token_logprobs"] for a in answers):
        assert entries[0][0] is None and [entry[1] for entry in entries] == PROMPT[10:]
        for position, (score, token, _) in enumerate(entries[1:], start=11):
            assert abs(score - float(table[position - 1, token])) < 1e-4
    status, answers = await post(engine, "generate", {"input_ids": [PROMPT, PROMPT[:9]], "sampling_params": GREEDY})
    assert status == 200 and [a["output_ids"] for a in answers] == [
        greedy(reference, p, 16) for p in (PROMPT, PROMPT[:9])
    ]


async def test_stream_ends_with_the_whole_answer(engine: EngineClient, reference: torch.nn.Module) -> None:
    body = {
        "input_ids": PROMPT,
        "sampling_params": GREEDY | {"max_new_tokens": 128},
        "stream": True,
        "return_logprob": True,
    }
    async with aiohttp.ClientSession() as session, session.post(f"{engine.urls[0]}/generate", json=body) as answer:
        lines = [line.decode()[6:].strip() async for line in answer.content if line.startswith(b"data: ")]
    assert lines[-1] == "[DONE]" and len(lines) > 3
    parts = [json.loads(line) for line in lines[:-1]]
    assert parts[-1]["output_ids"] == greedy(reference, PROMPT, 128)
    assert parts[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 128}
    assert len(parts[0]["output_ids"]) < 128 and parts[0]["meta_info"]["finish_reason"] is None


async def test_text_in_text_out(engine: EngineClient) -> None:
    status, answer = await post(engine, "generate", {"text": "def f(x):", "sampling_params": GREEDY})
    assert status == 200 and answer["meta_info"]["prompt_tokens"] == 9 and isinstance(answer["text"], str)


async def test_control_routes(engine: EngineClient) -> None:
    assert await engine.health() == {engine.urls[0]: True}
    async with aiohttp.ClientSession() as session:
        for route, key in (("model_info", "model_path"), ("get_model_info", "weight_version"), ("server_info", None)):
            async with session.get(f"{engine.urls[0]}/{route}") as answer:
                body = await answer.json()
                assert answer.status == 200 and (key is None or key in body)
        async with session.get(f"{engine.urls[0]}/health_generate") as answer:
            assert answer.status == 200

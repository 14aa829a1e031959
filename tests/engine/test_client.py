"""The client against engines that are slow, dead, busy, old or wrong; the well-behaved case is test_conformance.py."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from swe_rl.deadline import Deadline
from swe_rl.engine.client import EngineClient
from swe_rl.engine.embedded.service import EngineService
from swe_rl.engine.result import parse_generation
from swe_rl.engine.routing import rank_engines
from swe_rl.engine.wire import decode_tensors
from swe_rl.errors import DeadlineExceeded, EngineError
from swe_rl.types import FinishReason
from tests.engine.conftest import until_running

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
META = {
    "finish_reason": {"type": "length", "length": 2},
    "weight_version": "3",
    "output_token_logprobs": [[-1.0, 4, None], [-2.0, 5, None]],
}
UPDATE_ROUTES = (
    "/pause_generation",
    "/begin_weight_update",
    "/update_weights_from_tensor",
    "/end_weight_update",
    "/continue_generation",
)
ANSWER = {"output_ids": [4, 5], "meta_info": META}


@asynccontextmanager
async def serving(handlers: dict[str, Handler], getters: dict[str, Handler] | None = None) -> AsyncIterator[str]:
    app = web.Application()
    for path, handler in (getters or {}).items():
        app.router.add_get(path, handler)
    for path, handler in handlers.items():
        app.router.add_post(path, handler)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/")).rstrip("/")
    await server.close()


def dead_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def answers(_request: web.Request) -> web.Response:
    return web.json_response(ANSWER)


def test_routing_is_stable_even_and_moves_only_what_must_move() -> None:
    urls = [f"http://e{i}" for i in range(4)]
    home = {str(key): rank_engines(urls, str(key))[0] for key in range(2000)}
    assert all(400 < count < 600 for count in Counter(home.values()).values())
    fewer = urls[:3]
    for key, url in home.items():
        assert rank_engines(list(reversed(urls)), key)[0] == url
        if url in fewer:
            assert rank_engines(fewer, key)[0] == url


async def test_a_dead_engine_is_passed_over() -> None:
    dead = dead_url()
    async with serving({"/generate": answers}) as alive:
        client = EngineClient([dead, alive], request_timeout=10)
        key = next(str(i) for i in range(100) if rank_engines(client.urls, str(i))[0] == dead)
        result = await client.generate([1], {}, rid="r", routing_key=key)
        await client.aclose()
    assert (result.output_ids, result.log_probs) == ([4, 5], [-1.0, -2.0])


async def test_only_dead_engines_end_in_a_typed_error() -> None:
    client = EngineClient([dead_url()], request_timeout=10, connect_attempts=3)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1"):
        await client.generate([1], {}, rid="r")
    assert list((await client.health()).values()) == [False]
    with pytest.raises(EngineError):
        await client.pause()
    await client.aclose()


async def test_a_busy_engine_is_tried_again() -> None:
    calls: list[str] = []

    async def busy_once(request: web.Request) -> web.Response:
        calls.append((await request.json())["rid"])
        return web.Response(status=503, text="full") if len(calls) == 1 else web.json_response(ANSWER)

    async with serving({"/generate": busy_once}) as url:
        client = EngineClient([url], request_timeout=10)
        assert (await client.generate([1], {}, rid="r")).output_ids == [4, 5]
        await client.aclose()
    assert len(set(calls)) == 2, "a retry needs an id of its own: the first may still run"


async def test_a_refusal_is_not_tried_again() -> None:
    calls: list[int] = []

    async def refuse(_request: web.Request) -> web.Response:
        calls.append(1)
        return web.json_response({"error": {"message": "bad temperature"}}, status=400)

    async with serving({"/generate": refuse}) as url:
        client = EngineClient([url], request_timeout=10)
        with pytest.raises(EngineError, match=r"400.*bad temperature"):
            await client.generate([1], {}, rid="r")
        await client.aclose()
    assert calls == [1]


async def test_an_engine_that_is_silent_during_an_update_is_named() -> None:
    async def silent(_request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with serving({"/pause_generation": silent}) as url:
        client = EngineClient([url], request_timeout=60, control_timeout=0.3)
        update = client.update_weights_from_tensor([("w", torch.zeros(2))], 1)
        with pytest.raises(EngineError, match=rf"{url}/pause_generation: no answer within 0.3 s \(control_timeout;"):
            await asyncio.wait_for(update, timeout=20)
        assert client.version != 1
        await client.aclose()


async def test_a_silent_engine_costs_the_deadline_and_no_more() -> None:
    aborted: list[str] = []

    async def silent(_request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async def abort(request: web.Request) -> web.Response:
        aborted.append((await request.json())["rid"])
        return web.Response()

    async with serving({"/generate": silent, "/abort_request": abort}) as url:
        client = EngineClient([url], request_timeout=60)
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(client.generate([1], {}, rid="r", deadline=Deadline(0.3)), timeout=20)
        impatient = EngineClient([url], request_timeout=0.3)
        with pytest.raises(EngineError, match="took over"):
            await asyncio.wait_for(impatient.generate([1], {}, rid="s"), timeout=20)
        await client.aclose()
        await impatient.aclose()
    assert aborted == ["r", "s"]


async def test_cancelling_a_call_frees_the_engine(client: EngineClient, service: EngineService) -> None:
    call = asyncio.create_task(client.generate([1, 2, 3], {"max_new_tokens": 900, "ignore_eos": True}, rid="gone"))
    await until_running(service)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await service.command(lambda: [s.rid for s in service.scheduler.batch.running]) == []


async def test_an_old_server_without_update_sessions() -> None:
    """SGLang 0.5.15 has no /begin_weight_update (404), and one version per answer: the one at departure is the safe one."""
    seen: list[str] = []
    release = asyncio.Event()
    release.set()

    async def record(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.json_response({"success": True})

    async def slow(_request: web.Request) -> web.Response:
        await release.wait()
        return web.json_response(ANSWER)

    async def info(_request: web.Request) -> web.Response:
        return web.json_response({"weight_version": "2"})

    paths = ("/pause_generation", "/update_weights_from_tensor", "/continue_generation")
    async with serving(dict.fromkeys(paths, record) | {"/generate": slow}, {"/get_model_info": info}) as url:
        client = EngineClient([url], request_timeout=10)
        assert (await client.generate([1], {}, rid="first")).weight_versions == [3, 3]
        release.clear()
        call = asyncio.create_task(client.generate([1], {}, rid="r"))
        await asyncio.sleep(0.2)
        await client.update_weights_from_tensor([("w", torch.zeros(2))], 3)
        release.set()
        assert (await call).weight_versions == [2, 2]
        await client.aclose()
    assert seen == list(paths)


async def test_a_failed_update_still_resumes_and_names_the_engine() -> None:
    seen: list[str] = []

    async def record(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.json_response(
            {"success": request.path != "/update_weights_from_tensor", "message": "no such tensor"}
        )

    async with serving(dict.fromkeys(UPDATE_ROUTES, record)) as url:
        client = EngineClient([url], request_timeout=10)
        with pytest.raises(EngineError, match=r"127\.0\.0\.1.*no such tensor"):
            await client.update_weights_from_tensor([("w", torch.zeros(2))], 3)
        await client.aclose()
        assert client.version == 0
    assert seen == list(UPDATE_ROUTES)


async def test_every_process_of_a_tensor_parallel_engine_gets_its_copy() -> None:
    """SGLang's process i reads entry i of the list; one copy each, and bodies no larger for it."""
    lists: list[list[str]] = []

    async def record(request: web.Request) -> web.Response:
        if request.path == "/update_weights_from_tensor":
            lists.append((await request.json())["serialized_named_tensors"])
        return web.json_response({"success": True})

    async with serving(dict.fromkeys(UPDATE_ROUTES, record)) as url:
        client = EngineClient([url], request_timeout=10, tensor_parallel=4, bucket_bytes=4 * 800)
        await client.update_weights_from_tensor([(name, torch.ones(100)) for name in "abcd"], 1)
        await client.aclose()
    assert [[len(entries), len(set(entries))] for entries in lists] == [[4, 1], [4, 1]]
    names = [name for entries in lists for name, _ in decode_tensors(entries[3])]
    assert names == ["a", "b", "c", "d"]


async def test_an_engine_that_cannot_be_paused_leaves_no_other_paused(
    client: EngineClient, service: EngineService
) -> None:
    both = EngineClient([*client.urls, dead_url()], request_timeout=60)
    with pytest.raises(EngineError, match="Cannot connect"):
        await both.update_weights_from_tensor([("w", torch.zeros(2))], 3)
    await both.aclose()
    assert not service.scheduler.paused
    assert (await client.generate([1], {"max_new_tokens": 1}, rid="r")).output_ids


@pytest.mark.parametrize("status", [500, 400])
async def test_an_engine_that_refuses_an_update_session_leaves_no_other_inside_one(
    client: EngineClient, service: EngineService, status: int
) -> None:
    """400 says that a session is open there already, somebody else's: it is not ended."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=status if request.path == "/begin_weight_update" else 200, text="not now")

    async with serving(dict.fromkeys(UPDATE_ROUTES, answer)) as url:
        both = EngineClient([*client.urls, url], request_timeout=60)
        with pytest.raises(EngineError, match=f"{status}: not now"):
            await both.update_weights_from_tensor([("w", torch.zeros(2))], 3)
        await both.aclose()
    assert (service.scheduler.updating, service.scheduler.paused) == (False, False)
    assert seen == ["/pause_generation", "/begin_weight_update", "/continue_generation"]


def test_spans_become_versions_per_token() -> None:
    spans = [{"version": "default", "start": 0, "end": 1}, {"version": "7", "start": 1, "end": 2}]
    body = {"output_ids": [4, 5], "meta_info": META | {"weight_versions": spans, "cached_tokens": 9}}
    result = parse_generation(body, version_at_departure=0, seconds=0.1)
    assert (result.weight_versions, result.cached_tokens, result.finish_reason) == ([0, 7], 9, FinishReason.LENGTH)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"output_ids": [4, 5]},
        {"output_ids": [4], "meta_info": META},
        {"output_ids": [4, 5], "meta_info": META | {"finish_reason": {"type": "tired"}}},
        {"output_ids": [4, 5], "meta_info": META | {"output_token_logprobs": [[None, 4, None], [-1.0, 5, None]]}},
        {
            "output_ids": [4, 5],
            "meta_info": META | {"output_token_logprobs": [[float("nan"), 4, None], [-1.0, 5, None]]},
        },
        {"output_ids": [4, 5], "meta_info": META | {"weight_versions": [{"version": "1", "start": 0, "end": 1}]}},
        {"output_ids": [4, 5], "meta_info": META | {"weight_version": "summer"}},
        {"output_ids": [4, 5], "meta_info": META | {"finish_reason": {"type": "stop", "matched": "NaN happened"}}},
        {
            "output_ids": [],
            "meta_info": META | {"finish_reason": {"type": "abort", "message": "NaN", "status_code": 500}},
        },
    ],
)
def test_nonsense_is_an_engine_error(body: Any) -> None:
    with pytest.raises(EngineError):
        parse_generation(body, version_at_departure=0, seconds=0.0)

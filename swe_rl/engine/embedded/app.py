"""The HTTP routes of the embedded engine: those of SGLang that rollouts, weight updates and operators use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version as package_version
from typing import Any

from aiohttp import web

from swe_rl.engine.embedded.service import EngineBusy, EngineService, RequestFailed
from swe_rl.engine.wire import NamedTensors, decode_tensors
from swe_rl.errors import DataError, EngineError, UsageError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
UPDATE_SECONDS = 300.0
PAUSE_MODES = ("abort", "retract", "in_place")


class Routes:
    """One method per route. Errors become JSON by the middleware `answer_errors`."""

    def __init__(self, service: EngineService, *, update_seconds: float) -> None:
        self.service = service
        self.scheduler = service.scheduler
        self.update_seconds = update_seconds
        self._update_limit: asyncio.TimerHandle | None = None

    async def generate(self, http: web.Request) -> web.StreamResponse:
        request = self.service.parse(await _body(http))
        if not request.stream:
            return web.json_response(await self.service.generate(request))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(http)
        try:
            async for part in self.service.stream(request):
                await response.write(b"data: " + json.dumps(part).encode() + b"\n\n")
        except (
            RequestFailed,
            EngineBusy,
        ) as error:  # the status line is already out: say it in the stream, as SGLang does
            await response.write(b"data: " + json.dumps({"error": {"message": str(error)}}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def abort_request(self, http: web.Request) -> web.Response:
        body = await _body(http)
        rid, everything = body.get("rid") or "", bool(body.get("abort_all"))
        if not isinstance(rid, str) or not (rid or everything):
            raise UsageError("give rid (a string) or abort_all")
        await self.service.command(
            lambda: self.scheduler.abort(lambda s: everything or s.rid == rid or s.rid.startswith(f"{rid}_"))
        )
        return web.Response()

    async def pause_generation(self, http: web.Request) -> web.Response:
        mode = (await _body(http)).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise UsageError(f"mode must be one of {', '.join(PAUSE_MODES)}, got {mode!r}")
        await self.service.command(lambda: self.scheduler.pause(mode))
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, _http: web.Request) -> web.Response:
        await self.service.command(self.scheduler.resume)
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def begin_weight_update(self, _http: web.Request) -> web.Response:
        """Hold the engine until `end_weight_update`: buckets of one update must not serve tokens between them.

        An update that neither goes on nor ends for `update_seconds` has lost its trainer; the weights may be mixed, so
        the engine fails then.
        """
        if self.scheduler.updating:
            raise UsageError("a weight-update session is already open; call end_weight_update() first")
        await self.service.command(lambda: setattr(self.scheduler, "updating", True))
        self._limit_update()
        return _success()

    async def end_weight_update(self, _http: web.Request) -> web.Response:
        if not self.scheduler.updating:
            raise UsageError("no weight-update session is open; call begin_weight_update() first")
        self._limit_update(ended=True)
        await self.service.command(self.scheduler.end_update)
        return _success()

    def _limit_update(self, *, ended: bool = False) -> None:
        """Start the time limit of an open update session again, or drop it."""
        if self._update_limit is not None:
            self._update_limit.cancel()
            self._update_limit = None
        if not ended:
            message = f"a weight update was begun, then nothing came for {self.update_seconds:.0f} s"
            give_up = partial(self.scheduler.call, partial(self.scheduler.fail, message))
            self._update_limit = asyncio.get_running_loop().call_later(self.update_seconds, give_up)

    async def update_weights_from_tensor(self, http: web.Request) -> web.Response:
        body = await _body(http)
        parts = body.get("serialized_named_tensors")
        if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], str):
            raise UsageError("serialized_named_tensors must be a list of one base64 string: this engine is one process")
        if body.get("load_format") is not None:
            raise UsageError(f"load_format {body['load_format']!r} is not supported; send plain named tensors")
        return await self._update(body, await asyncio.to_thread(decode_tensors, parts[0]))

    async def update_weights_from_disk(self, http: web.Request) -> web.Response:
        body = await _body(http)
        path = body.get("model_path")
        if not isinstance(path, str) or not path:
            raise UsageError("model_path must name a Hugging Face folder")
        return await self._update(body, await asyncio.to_thread(self.scheduler.runner.read_weights, path))

    async def _update(self, body: dict[str, Any], named: NamedTensors) -> web.Response:
        version = body.get("weight_version")
        if version is not None and not isinstance(version, str):
            raise UsageError(f"weight_version must be a string, got {version!r}")
        if body.get("abort_all_requests"):
            await self.service.command(lambda: self.scheduler.abort(lambda _sequence: True))
        await self.service.command(lambda: self.scheduler.update(named, version))
        if self.scheduler.updating:
            self._limit_update()
        return _success()

    async def flush_cache(self, _http: web.Request) -> web.Response:
        await self.service.command(self.scheduler.flush_cache)
        return web.Response(text="Cache flushed.\n")

    async def health(self, _http: web.Request) -> web.Response:
        if self.scheduler.failure is not None or not self.scheduler.is_alive():
            return web.Response(status=503, text=f"engine failed: {self.scheduler.failure}")
        return web.Response()

    async def health_generate(self, http: web.Request) -> web.Response:
        """Healthy means that one token can be sampled now; a paused engine says so instead of hanging."""
        if self.scheduler.paused or self.scheduler.updating:
            return web.Response(status=503, text="engine is paused")
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        await self.service.generate(self.service.parse(body))
        return await self.health(http)

    async def model_info(self, _http: web.Request) -> web.Response:
        runner = self.scheduler.runner
        return web.json_response(
            {
                "model_path": runner.path,
                "is_generation": True,
                "weight_version": self.scheduler.version,
                "model_type": runner.config.model_type,
                "architectures": runner.config.architectures,
            }
        )

    async def server_info(self, _http: web.Request) -> web.Response:
        scheduler = self.scheduler
        return web.json_response(
            {
                "engine": "swe-rl embedded",
                "version": package_version("swe-rl"),
                "context_length": scheduler.runner.context_length,
                "max_running_requests": scheduler.max_batch,
                "running": len(scheduler.batch.running),
                "waiting": len(scheduler.waiting),
                "steps": scheduler.steps,
                "cached_tokens": scheduler.cache.stored_tokens,
                "cache_tokens": scheduler.cache_tokens,
                "weight_version": scheduler.version,
                "paused": scheduler.paused,
            }
        )


def _success() -> web.Response:
    return web.json_response({"success": True, "message": "Success"})


async def _body(http: web.Request) -> dict[str, Any]:
    if not http.can_read_body:
        return {}
    try:
        body = await http.json()
    except (ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Typed errors to statuses: 400 for what the caller must change, 503 for busy, 500 for what the engine did wrong."""
    try:
        return await handler(request)
    except (UsageError, DataError) as error:
        status, message = 400, str(error)
    except EngineBusy as error:
        status, message = 503, str(error)
    except RequestFailed as error:
        status, message = error.status, str(error)
    except EngineError as error:
        status, message = 503, str(error)
    return web.json_response({"success": False, "message": message, "error": {"message": message}}, status=status)


def make_app(service: EngineService, *, max_body_bytes: int, update_seconds: float = UPDATE_SECONDS) -> web.Application:
    """The application with all routes; those that only report also answer GET.

    update_seconds: the longest silence inside a weight-update session.
    """
    app = web.Application(middlewares=[answer_errors], client_max_size=max_body_bytes)
    routes = Routes(service, update_seconds=update_seconds)
    for act in (
        routes.generate,
        routes.abort_request,
        routes.pause_generation,
        routes.continue_generation,
        routes.begin_weight_update,
        routes.end_weight_update,
        routes.update_weights_from_tensor,
        routes.update_weights_from_disk,
        routes.flush_cache,
    ):
        app.router.add_post(f"/{act.__name__}", act)
    for path, handler in {
        "/health": routes.health,
        "/health_generate": routes.health_generate,
        "/flush_cache": routes.flush_cache,
        "/model_info": routes.model_info,
        "/get_model_info": routes.model_info,
        "/server_info": routes.server_info,
        "/get_server_info": routes.server_info,
    }.items():
        app.router.add_get(path, handler)
    return app

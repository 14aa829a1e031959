"""An exec server without containers, for the fast tests of what the pool decides; it can lose answers and break.

The same behaviour is tested against real exec servers and engines in the tests marked `docker`.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from swe_rl.sandbox.exec_server.faults import ExecFault
from swe_rl.sandbox.exec_server.requests import Body, CreateBody, ExecBody
from swe_rl.sandbox.server.bodies import parse
from swe_rl.sandbox.server.guard import guard


class FakeNode:
    """Containers are dictionaries; answers are kept by idempotency key as the real server does."""

    def __init__(self, images: list[str] | None = None) -> None:
        self.images = images or []
        self.containers: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Any] = {}
        self.making: dict[str, asyncio.Task[None]] = {}
        self.runs: list[str] = []  # commands that ran, in order
        self.creates = 0
        self.downloads = 0
        self.lose_answers = 0  # so many next answers are lost after the effect
        self.refuse_destroys = 0
        self.broken = False  # its engine is down: /status and /healthz say so with an error
        self.mute = False  # /status is cut off without an answer
        self.create_gate = asyncio.Event()
        self.create_gate.set()
        self.exec_gate = asyncio.Event()
        self.exec_gate.set()
        self.create_error: tuple[int, str] | None = None
        app = web.Application(middlewares=[guard(ExecFault, "", lambda *_: None)])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/status", self._status)
        app.router.add_post("/container/create", self._create)
        app.router.add_post("/container/exec", self._exec)
        app.router.add_post("/container/destroy", self._destroy)
        app.router.add_post("/container/download", self._download)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/")).rstrip("/")

    async def start(self) -> FakeNode:
        await self.server.start_server()
        return self

    async def stop(self) -> None:
        await self.server.close()

    async def kill(self) -> None:
        """What a kill -9 looks like from outside: connections are cut, nobody listens."""
        assert self.server.runner is not None and self.server.runner.server is not None
        for site in list(self.server.runner.sites):
            await site.stop()
        for connection in list(self.server.runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": not self.broken}, status=503 if self.broken else 200)

    async def _status(self, request: web.Request) -> web.Response:
        if self.broken:
            return web.json_response({"error": {"kind": "internal", "message": "broken"}}, status=500)
        if self.mute:
            assert request.transport is not None
            request.transport.abort()
        listed = [{"container_id": key, **value} for key, value in self.containers.items()]
        return web.json_response({"containers": listed, "images": self.images})

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await _checked(request, CreateBody)
        if self.create_error is not None:
            status, kind = self.create_error
            return web.json_response({"error": {"kind": kind, "message": f"{kind} here"}}, status=status)
        key = body["idempotency_key"]
        if key not in self.answers:
            if key not in self.making:
                self.making[key] = asyncio.create_task(self._make(body))
            await asyncio.shield(self.making[key])  # it is made to its end, whether or not its caller still listens
        return self._answer(request, self.answers[key])

    async def _make(self, body: dict[str, Any]) -> None:
        self.creates += 1
        await self.create_gate.wait()
        container = uuid.uuid4().hex
        self.containers[container] = {"labels": body["labels"], "name": body["name"]}
        self.answers[body["idempotency_key"]] = {"container_id": container}

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        body = await _checked(request, ExecBody)
        if body["container_id"] not in self.containers:
            gone = {"error": {"kind": "container_gone", "message": "no such container"}}
            return web.json_response(gone, status=404)
        key = body["idempotency_key"]
        if key not in self.answers:
            self.runs.append(body["command"])
            await self.exec_gate.wait()
            self.answers[key] = {"returncode": 0, "output": body["command"], "timed_out": False, "truncated": False}
        return self._answer(request, self.answers[key])

    async def _download(self, request: web.Request) -> web.Response:
        self.downloads += 1
        return web.Response(body=bytes(int(request.query["max_bytes"])))  # a file as large as may be

    async def _destroy(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.refuse_destroys:
            self.refuse_destroys -= 1
            return web.json_response({"error": {"kind": "engine_error", "message": "device busy"}}, status=500)
        key = body["idempotency_key"]
        if key not in self.answers:
            named = [key for key, value in self.containers.items() if body["container_id"] in (key, value["name"])]
            for container in named:
                del self.containers[container]
            self.answers[key] = {"destroyed": bool(named)}
        return web.json_response(self.answers[key])

    def _answer(self, request: web.Request, value: Any) -> web.Response:
        if self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(value)


async def _checked(request: web.Request, kind: type[Body]) -> dict[str, Any]:
    """The body as it was sent. Raises ServerFault where the real server would not take it."""
    parse(kind, await request.read())
    return dict(await request.json())

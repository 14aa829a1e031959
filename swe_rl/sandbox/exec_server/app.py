"""HTTP routes of the exec server."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from aiohttp import web

from swe_rl.deadline import Deadline
from swe_rl.sandbox.container.container import Container
from swe_rl.sandbox.container.engine import Engine
from swe_rl.sandbox.container.errors import EngineRefused
from swe_rl.sandbox.container.files import clean_path, read_file, unpack, write_file
from swe_rl.sandbox.container.image_names import normalized
from swe_rl.sandbox.exec_server import grade
from swe_rl.sandbox.exec_server.answers import Answers
from swe_rl.sandbox.exec_server.faults import ExecFault
from swe_rl.sandbox.exec_server.metrics import ExecMetrics
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.exec_server.requests import (
    LONGEST,
    NAME,
    Body,
    ContainerBody,
    CreateBody,
    DiffBody,
    EvaluateBody,
    ExecBody,
    PullBody,
)
from swe_rl.sandbox.exec_server.status import page, snapshot
from swe_rl.sandbox.server.bodies import parse
from swe_rl.sandbox.server.guard import guard
from swe_rl.sandbox.server.pages import status_answer

MAX_BODY = 128 * 1024 * 1024
MAX_FILE = 512 * 1024 * 1024
PROGRESS_SECONDS = 0.5
BROKEN_TAR = ("archive/tar:", "unexpected EOF")  # in what an engine says of it
JSON = "application/json"
B = TypeVar("B", bound=Body)


def make_app(node: Node, answers: Answers) -> web.Application:
    """The application; the caller starts and stops `node` around it."""
    metrics = ExecMetrics(node, answers)
    routes = ExecRoutes(node, answers)
    app = web.Application(
        middlewares=[guard(ExecFault, node.settings.token, metrics.observe)], client_max_size=MAX_BODY
    )
    app.router.add_get("/healthz", routes.healthz)
    app.router.add_get("/status", routes.status)
    app.router.add_get("/metrics", metrics.answer)
    app.router.add_get("/images", routes.images)
    app.router.add_post("/image/pull", routes.pull)
    app.router.add_post("/container/create", routes.create)
    app.router.add_post("/container/exec", routes.exec)
    app.router.add_post("/container/diff", routes.diff)
    app.router.add_post("/container/evaluate", routes.evaluate)
    app.router.add_post("/container/destroy", routes.destroy)
    app.router.add_post("/container/upload", routes.upload)
    app.router.add_post("/container/download", routes.download)
    app.router.add_get("/container/download", routes.download)
    return app


class ExecRoutes:
    """One method a route; typed errors are turned into answers by the middleware."""

    def __init__(self, node: Node, answers: Answers) -> None:
        self._node, self._answers = node, answers

    async def healthz(self, request: web.Request) -> web.Response:
        error = self._node.engine_error
        body = {"ok": not error, "status": "unhealthy" if error else "healthy", "node": self._node.name}
        return web.json_response({**body, "error": error}, status=503 if error else 200)

    async def status(self, request: web.Request) -> web.Response:
        status = await snapshot(self._node, self._answers)
        return status_answer(request, status, page)

    async def images(self, request: web.Request) -> web.Response:
        rows = await self._node.images.listed()
        names = [name for row in rows for name in row["tags"] or row["digests"]]
        return web.json_response({"ok": True, "images": names, "count": len(names), "details": rows})

    async def create(self, request: web.Request) -> web.Response:
        body, key, raw = await _read(CreateBody, request)

        async def work() -> dict[str, Any]:
            container = await self._node.create(body, key)
            return {
                "container_id": container.id,
                "image": container.image,
                "cwd": container.cwd,
                "name": container.name,
                "node": self._node.name,
            }

        return _json(await self._answers.once(key, raw, work, repeatable=True))

    async def exec(self, request: web.Request) -> web.Response:
        body, key, raw = await _read(ExecBody, request)

        async def work() -> dict[str, Any]:
            container = await self._node.get(body.container_id)
            self._node.worked_in(container.id)
            result = await container.exec(
                body.command, timeout=body.timeout, cwd=body.cwd, env=body.env, output_limit=body.output_limit
            )
            return {
                "returncode": result.returncode,
                "output": result.output,
                "timed_out": result.timed_out,
                "truncated": result.truncated,
                "dropped_bytes": result.dropped_bytes,
                "seconds": round(result.seconds, 4),
            }

        return _json(await self._answers.once(key, raw, work))

    async def diff(self, request: web.Request) -> web.Response:
        body, key, raw = await _read(DiffBody, request)
        return _json(await self._answers.once(key, raw, lambda: grade.diff(self._node, body), repeatable=True))

    async def evaluate(self, request: web.Request) -> web.Response:
        body, key, raw = await _read(EvaluateBody, request)
        return _json(await self._answers.once(key, raw, lambda: grade.evaluate(self._node, body)))

    async def destroy(self, request: web.Request) -> web.Response:
        body, key, raw = await _read(ContainerBody, request)

        async def work() -> dict[str, Any]:
            return {"destroyed": await self._node.destroy(body.container_id)}

        return _json(await self._answers.once(key, raw, work, repeatable=True))

    async def upload(self, request: web.Request) -> web.Response:
        """The body is the file `path`, or, as application/x-tar, a tar stream unpacked below the folder `path`."""
        container, path = await self._named_file(request)
        if request.content_type == "application/x-tar":
            return await self._unpack(container, path, request)
        mode = _number(request, "mode", "644", base=8, most=0o7777)
        data = await _raw_body(request, MAX_FILE)

        async def work() -> dict[str, Any]:
            await write_file(container, path, data, mode)
            return {"path": path, "bytes": len(data)}

        key = _key(request, "")
        what = f"{container.id} {path} {mode} ".encode() + data
        return _json(await self._answers.once(key, what, work, repeatable=True))

    async def _unpack(self, container: Container, path: str, request: web.Request) -> web.Response:
        async def work() -> dict[str, Any]:
            try:
                await unpack(self._node.engine, container.id, path, request.content.iter_any())
            except EngineRefused as error:
                if error.status == 400 or any(sign in str(error) for sign in BROKEN_TAR):
                    raise ExecFault("bad_request", str(error)) from error
                raise
            return {"path": path}

        # A stream is not kept to be compared: its key stands for where it goes and how long it is.
        what = f"{container.id} {path} tar {request.content_length}".encode()
        return _json(await self._answers.once(_key(request, ""), what, work, repeatable=True))

    async def download(self, request: web.Request) -> web.StreamResponse:
        """The bytes of the file `path`; with `format=tar` a tar stream of the file or folder."""
        container, path = await self._named_file(request)
        if request.query.get("format") == "tar":
            return await _stream_tar(self._node.engine, container, path, request)
        most = _number(request, "max_bytes", str(64 * 1024 * 1024), base=10, most=MAX_FILE)
        data = await read_file(container, path, most)
        return web.Response(body=data, content_type="application/octet-stream")

    async def pull(self, request: web.Request) -> web.StreamResponse:
        """Join or start the pull. `stream`: lines of progress as NDJSON; else its state now (ask again).

        The stream lasts to the pull's end, or for the request's `timeout` seconds; the pull itself goes on.
        """
        body, _, _ = await _read(PullBody, request)
        image, puller = normalized(body.image), self._node.images.puller
        known = puller.jobs.get(image)
        if await self._node.images.present(image) and (known is None or known.state != "pulling"):
            self._node.images.used(image)
            return web.json_response({"image": image, "state": "done", "note": "already here"})
        if known is not None and known.state == "failed" and not body.stream and request.query.get("poll"):
            return web.json_response(known.progress())
        job, deadline = puller.join(image), Deadline(body.timeout or LONGEST)
        if not body.stream:
            return web.json_response(job.progress())
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        while not await puller.wait(job, deadline.bound(PROGRESS_SECONDS)) and not deadline.expired():
            await response.write(json.dumps(job.progress()).encode() + b"\n")
        await response.write(json.dumps(job.progress()).encode() + b"\n")
        return response

    async def _named_file(self, request: web.Request) -> tuple[Container, str]:
        name, path = request.query.get("container_id", ""), request.query.get("path", "")
        if not re.fullmatch(NAME, name) or not path:
            raise ExecFault("bad_request", "the query needs container_id (an id or a name) and path")
        container = await self._node.get(name)
        return container, clean_path(path if path.startswith("/") else f"{container.cwd}/{path}")


async def _stream_tar(engine: Engine, container: Container, path: str, request: web.Request) -> web.StreamResponse:
    async with engine.get_archive(container.id, path) as (_, stream):
        response = web.StreamResponse(headers={"Content-Type": "application/x-tar"})
        await response.prepare(request)
        async for chunk in stream.iter_any():
            await response.write(chunk)
    return response


async def _read(kind: type[B], request: web.Request) -> tuple[B, str, bytes]:
    """(checked body, idempotency key, what the key stands for)."""
    raw = await request.read()
    body = parse(kind, raw)
    return body, _key(request, body.idempotency_key), request.path.encode() + b"\n" + raw


def _key(request: web.Request, from_body: str) -> str:
    key = from_body or request.headers.get("Idempotency-Key", "") or request.query.get("idempotency_key", "")
    if len(key) > 200:
        raise ExecFault("bad_request", "the idempotency key is longer than 200 characters")
    return key


def _number(request: web.Request, name: str, default: str, *, base: int, most: int) -> int:
    text = request.query.get(name, default)
    try:
        value = int(text, base)
    except ValueError:
        raise ExecFault("bad_request", f"{name}: {text[:50]!r} is not a number") from None
    if not 0 <= value <= most:
        raise ExecFault("bad_request", f"{name}: must be from 0 to {most}")
    return value


async def _raw_body(request: web.Request, most: int) -> bytes:
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > most:
            raise ExecFault("too_large", f"the file is larger than {most} bytes")
    return bytes(data)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type=JSON)

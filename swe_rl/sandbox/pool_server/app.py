"""HTTP routes of the pool server. What a lease's commands say passes through untouched; the node's address does not leak."""

from __future__ import annotations

import json
import uuid
from typing import Any

from aiohttp import web

from swe_rl.sandbox.exec_server.requests import LONGEST, Body, DiffBody, EvaluateBody, ExecBody
from swe_rl.sandbox.pool_server.faults import PoolFault
from swe_rl.sandbox.pool_server.lease import Lease
from swe_rl.sandbox.pool_server.metrics import PoolMetrics
from swe_rl.sandbox.pool_server.node_api import NodeRefused, NodeUnreachable
from swe_rl.sandbox.pool_server.pool import Pool
from swe_rl.sandbox.pool_server.requests import AllocateBody, CloseBody, HeartbeatBody, NodeBody
from swe_rl.sandbox.pool_server.status import page, snapshot
from swe_rl.sandbox.protocol import ANSWER_GRACE, HOP_GRACE
from swe_rl.sandbox.server.bodies import parse
from swe_rl.sandbox.server.guard import Handler, guard
from swe_rl.sandbox.server.pages import status_answer

MAX_BODY = 512 * 1024 * 1024  # an uploaded repository
TRANSFER_TIMEOUT = 300.0

FORWARDED: dict[str, type[Body]] = {"exec": ExecBody, "diff": DiffBody, "evaluate": EvaluateBody}


def make_app(pool: Pool) -> web.Application:
    """The application; the caller starts and stops `pool` around it."""
    metrics = PoolMetrics(pool)
    routes = PoolRoutes(pool)
    app = web.Application(
        middlewares=[guard(PoolFault, pool.settings.token, metrics.observe)], client_max_size=MAX_BODY
    )
    app.router.add_get("/healthz", routes.healthz)
    app.router.add_get("/status", routes.status)
    app.router.add_get("/metrics", metrics.answer)
    app.router.add_get("/nodes", routes.nodes)
    app.router.add_post("/nodes", routes.join)
    app.router.add_post("/nodes/drain", routes.drain)
    app.router.add_post("/nodes/leave", routes.leave)
    app.router.add_post("/allocate", routes.allocate)
    app.router.add_post("/heartbeat", routes.heartbeat)
    app.router.add_post("/close", routes.close)
    for name, body in FORWARDED.items():
        app.router.add_post(f"/{name}", routes.forward_json(f"/container/{name}", body))
    for name in ("upload", "download"):
        app.router.add_post(f"/{name}", routes.forward_raw(f"/container/{name}"))
    return app


class PoolRoutes:
    """One method a route; errors are `PoolFault`s, which the middleware turns into answers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": True, "pool_id": self._pool.store.pool_id})

    async def status(self, request: web.Request) -> web.Response:
        return status_answer(request, snapshot(self._pool), page)

    async def nodes(self, request: web.Request) -> web.Response:
        return web.json_response({"nodes": snapshot(self._pool)["nodes"]})

    async def join(self, request: web.Request) -> web.Response:
        body = parse(NodeBody, await request.read())
        node = await self._pool.fleet.join(body.url, body.capacity)
        return web.json_response({"url": node.url, "state": node.state, "capacity": node.capacity})

    async def drain(self, request: web.Request) -> web.Response:
        node = await self._pool.fleet.drain(parse(NodeBody, await request.read()).url)
        return web.json_response({"url": node.url, "state": node.state, "used": self._pool.book.used(node.url)})

    async def leave(self, request: web.Request) -> web.Response:
        body = parse(NodeBody, await request.read())
        if body.idempotency_key is None or self._pool.fleet.has(body.url):
            await self._pool.leave(body.url, force=body.force)
        return web.json_response({"url": body.url, "state": "gone"})

    async def allocate(self, request: web.Request) -> web.Response:
        body = _object(await request.read())
        body["idempotency_key"] = body.get("idempotency_key") or _key(request)
        lease = await self._pool.allocator.allocate(parse(AllocateBody, json.dumps(body).encode()))
        return web.json_response(
            {
                "ok": True,
                "lease_id": lease.id,
                "node": lease.node,
                "container_id": lease.container_id,
                "ttl_s": lease.ttl,
                "direct": self._pool.nodes_share_token,
            }
        )

    async def heartbeat(self, request: web.Request) -> web.Response:
        return web.json_response(self._pool.heartbeat(parse(HeartbeatBody, await request.read())))

    async def close(self, request: web.Request) -> web.Response:
        return web.json_response(await self._pool.close(parse(CloseBody, await request.read())))

    def forward_json(self, path: str, kind: type[Body]) -> Handler:
        """A route whose JSON body names a lease; the node gets the same body with the container in its place."""
        default = float(kind.model_fields["timeout"].default)

        async def handler(request: web.Request) -> web.Response:
            body = _object(await request.read())
            lease = self._pool.lease(str(body.pop("lease_id", "")))
            body["container_id"] = lease.container_id
            body["timeout"] = timeout = _timeout(body.get("timeout"), default)
            body["idempotency_key"] = body.get("idempotency_key") or _key(request)
            return await self._forward(lease, path, json.dumps(body).encode(), timeout, None, "application/json")

        return handler

    def forward_raw(self, path: str) -> Handler:
        """A route whose query names a lease and whose body is data."""

        async def handler(request: web.Request) -> web.Response:
            params = dict(request.query)
            lease = self._pool.lease(params.pop("lease_id", ""))
            params["container_id"] = lease.container_id
            params.setdefault("idempotency_key", _key(request))
            timeout = _timeout(params.get("timeout"), TRANSFER_TIMEOUT)
            return await self._forward(lease, path, await request.read(), timeout, params, request.content_type)

        return handler

    async def _forward(
        self, lease: Lease, path: str, body: bytes, timeout: float, params: dict[str, str] | None, content_type: str
    ) -> web.Response:
        try:
            with self._pool.book.in_use(lease):
                answer = await self._pool.api.send(
                    lease.node,
                    path,
                    timeout=timeout + ANSWER_GRACE + HOP_GRACE,
                    body=body,
                    params=params,
                    content_type=content_type,
                )
        except NodeRefused as error:
            raise PoolFault(error.kind, str(error)) from error
        except NodeUnreachable as error:
            self._pool.fleet.failed(lease.node, str(error))
            raise PoolFault("node_unreachable", f"the node of lease {lease.id} does not answer: {error}") from error
        return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PoolFault("bad_request", f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise PoolFault("bad_request", "the body must be a JSON object")
    return value


def _key(request: web.Request) -> str:
    """The header's key, or one made here: a request that is sent to the node again must not take effect again."""
    return request.headers.get("Idempotency-Key", "") or uuid.uuid4().hex


def _timeout(value: Any, default: float) -> float:
    """A caller's timeout as a positive, finite bound: -1 or infinity must not mean for ever."""
    try:
        seconds = float(default if value is None else value)
    except (TypeError, ValueError, OverflowError):
        raise PoolFault("bad_request", f"timeout: {value!r:.100} is no number of seconds") from None
    if not 0 < seconds <= LONGEST:
        raise PoolFault("bad_request", f"timeout: {value!r:.100} must be above 0 and at most {LONGEST:.0f} s")
    return seconds

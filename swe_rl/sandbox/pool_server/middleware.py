"""Around every route: the bearer token, faults as JSON, one access-log line in JSON, one metric."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from swe_rl.sandbox.pool_server.faults import PoolFault

access = logging.getLogger("swe_rl.pool.access")
log = logging.getLogger(__name__)
Observe = Callable[[str, int, float], None]
OPEN_PATHS = {"/healthz"}


def guard(token: str, observe: Observe) -> Callable:
    """Middleware of all routes. An empty token asks for none: the command then binds to loopback only."""

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        started = time.monotonic()
        status = 499  # the caller went away
        try:
            response = await _answer(request, handler, token)
            status = response.status
            return response
        except web.HTTPException as refusal:
            status = refusal.status
            raise
        finally:
            route = request.match_info.route.resource
            name = route.canonical if route is not None else "unknown"  # an unknown path must not make a new metric
            seconds = time.monotonic() - started
            observe(name, status, seconds)
            if access.isEnabledFor(logging.INFO):
                line = {"method": request.method, "path": name, "status": status, "seconds": round(seconds, 4)}
                access.info(json.dumps({**line, "peer": request.remote}))

    return middleware


async def _answer(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], token: str
) -> web.StreamResponse:
    try:
        if token and request.path not in OPEN_PATHS and not authorized(request.headers.get("Authorization", ""), token):
            raise PoolFault("unauthorized", "a bearer token is needed: set SWE_SERVER_TOKEN to the pool server's")
        return await handler(request)
    except PoolFault as fault:
        return web.json_response(fault.body(), status=fault.status)
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:  # one request's bug must not end the connection without an answer
        log.exception("%s %s failed", request.method, request.path)
        body = {"error": {"kind": "internal", "message": f"{type(error).__name__}: {error}", "retry": True}}
        return web.json_response(body, status=500)


def authorized(header: str, token: str) -> bool:
    """Whether the header carries the token; compared in constant time."""
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())

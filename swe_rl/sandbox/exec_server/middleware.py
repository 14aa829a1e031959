"""Around every route: the bearer token, faults as JSON, one access-log line in JSON, one metric."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from swe_rl.sandbox.exec_server.faults import ExecFault, fault_of

access = logging.getLogger("swe_rl.exec.access")
log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Observe = Callable[[str, int, float], None]
OPEN_PATHS = {"/healthz"}


def guard(token: str, observe: Observe) -> Callable:
    """Middleware of all routes. An empty token asks for none: the command then binds to loopback only."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        status = 499  # the caller went away
        try:
            response = await _answer(request, handler, token)
            status = response.status
            return response
        except web.HTTPException as refusal:
            status = refusal.status
            raise
        finally:
            resource = request.match_info.route.resource
            name = resource.canonical if resource is not None else "unknown"  # no new metric for any path one may ask
            seconds = time.perf_counter() - started
            observe(name, status, seconds)
            if access.isEnabledFor(logging.INFO):
                line = {"at": time.time(), "peer": request.remote, "method": request.method, "path": name}
                access.info(json.dumps({**line, "status": status, "seconds": round(seconds, 4)}))

    return middleware


async def _answer(request: web.Request, handler: Handler, token: str) -> web.StreamResponse:
    try:
        if token and request.path not in OPEN_PATHS and not authorized(request.headers.get("Authorization", ""), token):
            raise ExecFault("unauthorized", "a bearer token is needed: set SWE_SERVER_TOKEN to the exec server's")
        return await handler(request)
    except web.HTTPRequestEntityTooLarge as error:
        raise_too_large = ExecFault("too_large", f"the body has {error.text or 'too many bytes'}")
        return web.json_response(raise_too_large.body(), status=413)
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:
        fault = fault_of(error)
        if fault is not None:
            return web.json_response(fault.body(), status=fault.status)
        # One request's bug must not end the connection without an answer.
        log.exception("%s %s failed", request.method, request.path)
        body = {"error": {"kind": "internal", "message": f"{type(error).__name__}: {error}", "retry": False}}
        return web.json_response(body, status=500)


def authorized(header: str, token: str) -> bool:
    """Whether the header carries the token; compared in constant time."""
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())

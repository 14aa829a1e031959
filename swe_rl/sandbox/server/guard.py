"""Around every route: the bearer token, faults as JSON, one access-log line in JSON, one metric."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from swe_rl.sandbox.server.faults import ServerFault

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Observe = Callable[[str, int, float], None]
OPEN_PATHS = {"/healthz"}


def access_log(server: str) -> logging.Logger:
    """The logger of one JSON line per request; `server` is a `ServerFault.SERVER`."""
    return logging.getLogger(f"swe_rl.{server}.access")


def guard(fault: type[ServerFault], token: str, observe: Observe) -> Callable:
    """Middleware of all routes. An empty token asks for none: the server then binds to loopback only."""
    access = access_log(fault.SERVER)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.monotonic()
        status = 499  # the caller went away
        try:
            response = await _answer(request, handler, fault, token)
            status = response.status
            return response
        except web.HTTPException as refusal:
            status = refusal.status
            raise
        finally:
            resource = request.match_info.route.resource
            name = resource.canonical if resource is not None else "unknown"  # no new metric for any path one may ask
            seconds = time.monotonic() - started
            observe(name, status, seconds)
            if access.isEnabledFor(logging.INFO):
                line = {"at": time.time(), "peer": request.remote, "method": request.method, "path": name}
                access.info(json.dumps({**line, "status": status, "seconds": round(seconds, 4)}))

    return middleware


async def _answer(request: web.Request, handler: Handler, fault: type[ServerFault], token: str) -> web.StreamResponse:
    try:
        if token and request.path not in OPEN_PATHS and not authorized(request.headers.get("Authorization", ""), token):
            needs = f"a bearer token is needed: set SWE_SERVER_TOKEN to the {fault.SERVER} server's"
            raise fault("unauthorized", needs)
        return await handler(request)
    except web.HTTPRequestEntityTooLarge as error:
        return _refused(fault("too_large", f"the body has {error.text or 'too many bytes'}"))
    except web.HTTPNotFound:
        return _refused(fault("not_found", f"the {fault.SERVER} server has no {request.path[:200]}"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        refused = fault("method_not_allowed", f"{request.path} takes {allowed}, not {error.method[:20]}")
        return _refused(refused, {"Allow": allowed})
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:
        known = fault.of(error)
        if known is None:  # one request's bug must not end the connection without an answer
            log.exception("%s %s failed", request.method, request.path)
            known = fault("internal", f"{type(error).__name__}: {error}")
        return _refused(known)


def _refused(fault: ServerFault, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(fault.body(), status=fault.status, headers=headers)


def authorized(header: str, token: str) -> bool:
    """Whether the header carries the token; compared in constant time."""
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode("utf-8", "surrogateescape"), token.encode()
    )

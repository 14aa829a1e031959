"""One HTTP caller for pool and exec servers: the same request with the same key until it is answered or time is up.

Every request that changes something carries an idempotency key, so asking again after a lost answer fetches the first
answer; nothing runs twice.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from typing import Any

import aiohttp

from swe_rl.deadline import Deadline
from swe_rl.errors import InfraError, SandboxError, SandboxUnavailable, UsageError

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
CONNECT_SECONDS = 5.0
MAX_JSON_BYTES = 64 * 1024 * 1024
UNAVAILABLE = {"unavailable", "image_missing", "image_unusable", "engine_unavailable"}
TOKEN_REFUSED = {401, 403}  # 403: of a proxy in between
PROXY_BUSY = {429, 502, 503, 504}  # of a proxy in between, which knows no kinds


class ServerRefusal(SandboxError):
    """The server answered with an error; `kind` is its word for it, `status` the HTTP status."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def refusal(status: int, body: bytes) -> tuple[InfraError | UsageError, bool]:
    """(typed error, whether asking again may help).

    Only a refused token is a UsageError, which ends the run: no request of it can succeed. A bad request is about one
    row or one command (a network that the nodes do not allow, an odd name), so it costs the one attempt that made it.
    """
    kind, again, message = "", status in PROXY_BUSY, f"HTTP {status}: {body[:300].decode(errors='replace')}"
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        kind, message = str(error.get("kind", "")), str(error.get("message", message))
        again = bool(error.get("retry"))
    elif isinstance(error, str):
        kind, message = str(value.get("kind", "")), error
    if status in TOKEN_REFUSED:
        return UsageError(f"the sandbox server refused the token (SWE_SERVER_TOKEN): {message}"), False
    if kind in UNAVAILABLE:
        return SandboxUnavailable(message), again
    return ServerRefusal(status, kind, message), again


class KeyedCaller:
    """Sends requests through one kept-alive session. `aclose()` ends it."""

    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(
        self,
        url: str,
        *,
        body: bytes,
        deadline: Deadline,
        params: dict[str, str] | None = None,
        content_type: str = "application/json",
        max_bytes: int = MAX_JSON_BYTES,
        patience: float = math.inf,
    ) -> bytes:
        """The body of the 2xx answer. Retries what may succeed, with jitter, until `deadline`.

        patience: seconds without any answer after which the other side counts as lost, however long the deadline is.

        Raises SandboxError (its kinds) for a refusal or when no answer came in time, UsageError for a token or a
        certificate that is refused.
        """
        pause = FIRST_PAUSE
        failure: Exception = SandboxError(f"{url}: no time left to ask")
        failing_since = time.monotonic()
        while not deadline.expired():
            asked_at = time.monotonic()
            try:
                status, answer = await self._once(url, body, deadline, params, content_type, max_bytes)
            except aiohttp.ClientConnectorCertificateError as error:
                why = f"{url}: its certificate is not trusted ({error.certificate_error})"
                raise UsageError(f"{why}; for an authority of your own set SSL_CERT_FILE to its certificate") from error
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                failure = SandboxError(f"{url} does not answer: {error or type(error).__name__}")
                failure.__cause__ = error
            else:
                if 200 <= status < 300:
                    return answer
                failure, again = refusal(status, answer)
                if not again:
                    raise failure
            if time.monotonic() - asked_at > LONGEST_PAUSE + CONNECT_SECONDS:
                failing_since = time.monotonic()  # it was connected for a while: the silence starts only now
            if time.monotonic() - failing_since > patience:
                raise failure
            await asyncio.sleep(deadline.bound(pause * random.uniform(0.5, 1.0)))
            pause = min(LONGEST_PAUSE, pause * 2)
        raise failure

    async def json(
        self, url: str, payload: dict[str, Any], *, deadline: Deadline, patience: float = math.inf
    ) -> dict[str, Any]:
        """POST JSON and read a JSON object. Raises as `post`."""
        answer = await self.post(url, body=json.dumps(payload).encode(), deadline=deadline, patience=patience)
        try:
            value = json.loads(answer)
        except ValueError as error:
            raise SandboxError(f"{url}: the answer is not JSON") from error
        if not isinstance(value, dict):
            raise SandboxError(f"{url}: the answer is no JSON object")
        return value

    async def status_of(self, url: str, *, within: float) -> int | None:
        """The HTTP status of a GET; None where no answer came in time."""
        try:
            async with self._open().get(url, timeout=aiohttp.ClientTimeout(total=within)) as response:
                return response.status
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._session

    async def _once(
        self,
        url: str,
        body: bytes,
        deadline: Deadline,
        params: dict[str, str] | None,
        content_type: str,
        max_bytes: int,
    ) -> tuple[int, bytes]:
        bounds = aiohttp.ClientTimeout(total=deadline.remaining(), sock_connect=CONNECT_SECONDS)
        async with self._open().post(
            url,
            data=body,
            params=params,
            headers={"Content-Type": content_type},
            timeout=bounds,
            allow_redirects=False,
        ) as response:
            chunks, size = [], 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > max_bytes:
                    raise SandboxError(f"{url}: the answer is larger than {max_bytes} bytes")
                chunks.append(chunk)
            return response.status, b"".join(chunks)

"""HTTP to the exec servers: kept-alive connections, one bearer token, and two kinds of failure told apart."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

CREATE_PATH = "/container/create"
DESTROY_PATH = "/container/destroy"
CONNECT_SECONDS = 5.0
MAX_ANSWER_BYTES = 256 * 1024 * 1024


class NodeUnreachable(Exception):
    """No answer came. Whether the request took effect is unknown: ask again with the same key."""


class NodeRefused(Exception):
    """The node answered with an error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class Answer:
    """What a node said, untouched, so that it can be passed on as it is."""

    status: int
    body: bytes
    content_type: str


class NodeApi:
    """One client session for all nodes. `aclose()` ends it."""

    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None
        self._unanswered: dict[str, tuple[float, float]] = {}  # node: first and last lost answer since it answered

    def unanswered(self, node: str) -> float:
        """Seconds over which requests to the node went without any answer, an error too. Not asking is no silence."""
        first, last = self._unanswered.get(node, (0.0, 0.0))
        return last - first

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._session

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(
        self,
        node: str,
        path: str,
        *,
        timeout: float,
        body: bytes | None = None,
        params: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """POST `body` (GET without one) and return the answer whatever its status.

        Raises NodeUnreachable, and NodeRefused `too_large` for an answer of more than MAX_ANSWER_BYTES.

        A kept-alive connection that the node has closed meanwhile is replaced once; every request carries a key.
        """
        bounds = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        headers = {"Content-Type": content_type} if body is not None else {}
        for last in (False, True):
            try:
                async with self.session.request(
                    "GET" if body is None else "POST",
                    node + path,
                    data=body,
                    params=params,
                    headers=headers,
                    timeout=bounds,
                    allow_redirects=False,
                ) as response:
                    self._unanswered.pop(node, None)
                    return Answer(response.status, await _bounded(response), response.content_type)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError) as error:
                if last:
                    raise self._unreachable(node, path, error) from error
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                raise self._unreachable(node, path, error) from error
        raise AssertionError("unreachable")

    def _unreachable(self, node: str, path: str, error: BaseException) -> NodeUnreachable:
        now = time.monotonic()
        self._unanswered[node] = (self._unanswered.get(node, (now, now))[0], now)
        return NodeUnreachable(f"{node}{path}: {str(error) or type(error).__name__}")

    async def call(self, node: str, path: str, payload: dict[str, Any] | None, *, timeout: float) -> dict[str, Any]:
        """JSON in, JSON out. Raises NodeUnreachable, or NodeRefused for an error status or an answer that is no JSON."""
        body = None if payload is None else json.dumps(payload).encode()
        answer = await self.send(node, path, timeout=timeout, body=body)
        try:
            value = json.loads(answer.body)
        except ValueError:
            value = None
        if answer.status >= 400:
            kind, message = error_of(value, answer)
            raise NodeRefused(answer.status, kind, f"{node}{path}: {message}")
        if not isinstance(value, dict):
            raise NodeRefused(502, "node_error", f"{node}{path}: answered something that is no JSON object")
        return value


def error_of(value: Any, answer: Answer) -> tuple[str, str]:
    """(kind, message) of an error body, whichever server wrote it."""
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        return str(error.get("kind", "")), str(error.get("message", ""))
    if isinstance(error, str):
        return str(value.get("kind", "")), error
    return "", f"HTTP {answer.status}: {answer.body[:300].decode(errors='replace')}"


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if max(size, response.content_length or 0) > MAX_ANSWER_BYTES:
            what = f"the answer is larger than the {MAX_ANSWER_BYTES} bytes that a pool server passes on"
            raise NodeRefused(413, "too_large", f"{what}: fetch it in parts, or from the exec server itself")
        chunks.append(chunk)
    return b"".join(chunks)

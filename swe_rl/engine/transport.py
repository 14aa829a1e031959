"""HTTP to one engine: bounded calls, typed errors. What may be tried again is the caller's decision."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from swe_rl.errors import EngineError


class EngineUnreachable(EngineError):
    """No connection, a lost connection, or an engine that is too busy to accept: another try can succeed."""


class EngineRefused(EngineError):
    """The engine answered with an error status. `status` is HTTP's; trying again would give the same answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class EngineTransport:
    """One `aiohttp` session for all engines, opened in the running loop at first use."""

    def __init__(self, *, api_key: str = "", connect_timeout: float = 5.0) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connect_timeout = connect_timeout

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # limit=0: concurrency is bounded by the attempts in flight; a pool limit here would only hide waits
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=False)
        return self._session

    async def call(self, method: str, url: str, body: Any = None, *, timeout: float) -> Any:
        """One request, one answer: parsed JSON, or text where the answer is not JSON.

        Raises EngineUnreachable, EngineRefused, or asyncio.TimeoutError after `timeout` seconds.
        """
        limits = aiohttp.ClientTimeout(total=max(timeout, 0.001), connect=self._connect_timeout)
        try:
            async with self._open().request(method, url, json=body, timeout=limits) as answer:
                if answer.status == 200:
                    is_json = "json" in answer.headers.get("Content-Type", "")
                    return await answer.json() if is_json else await answer.text()
                reason = await _reason(answer)
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnreachable(f"engine {url}: no connection within {self._connect_timeout} s") from error
        except asyncio.TimeoutError:
            raise
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise EngineUnreachable(f"engine {url}: {error or type(error).__name__}") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineError(f"engine {url} answered something that is not HTTP with JSON: {error}") from error
        if answer.status in (429, 503):
            raise EngineUnreachable(f"engine {url} is busy: {reason}")
        raise EngineRefused(f"engine {url} answered {answer.status}: {reason}", answer.status)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _reason(answer: aiohttp.ClientResponse) -> str:
    """The message inside an error answer, at most 500 characters of it."""
    text = (await answer.content.read(4096)).decode("utf-8", "replace")
    return text[:500].strip() or answer.reason or "no reason given"

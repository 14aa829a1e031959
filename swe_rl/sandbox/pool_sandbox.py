"""A sandbox held by a lease of the pool: the `Sandbox` protocol over HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from swe_rl.deadline import Deadline
from swe_rl.errors import InfraError, SandboxError
from swe_rl.sandbox.pool_http import KeyedCaller, ServerRefusal
from swe_rl.sandbox.pool_routes import Route
from swe_rl.sandbox.protocol import ANSWER_GRACE, DEFAULT_OUTPUT_LIMIT, HOP_GRACE
from swe_rl.types import ExecResult

log = logging.getLogger(__name__)
NODE_LOST_SECONDS = 25.0  # silence after which a node counts as lost; an exec server restarts in less
PROBE_SECONDS = 5.0  # for a node that may be silent
TRANSFER_SECONDS = 300.0
CLOSE_SECONDS = 60.0
LONGEST_SECONDS = 86400.0
MAX_COMMAND = 8_000_000  # bytes
TIMED_OUT, CANNOT_RUN = 124, 126  # return codes, as timeout(1) and bash use them
T = TypeVar("T")


class PoolSandbox:
    """One lease. Every call carries a fresh idempotency key, so whatever is retried below takes effect once."""

    def __init__(
        self,
        lease_id: str,
        workdir: str,
        route: Route,
        caller: KeyedCaller,
        deadline: Deadline,
        close_lease: Callable[[str, Deadline], Awaitable[None]],
    ) -> None:
        self.lease_id = lease_id
        self.workdir = workdir
        self.deadline = deadline  # of the attempt; heartbeats tell the pool what is left of it
        self._route, self._caller, self._close_lease = route, caller, close_lease
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._closing: asyncio.Task[None] | None = None
        self._calls: dict[
            asyncio.Future[str], float
        ] = {}  # one for each call under way: set, it ends; since when it waits

    def lost(self, reason: str) -> None:
        """The pool says that the lease has ended: commands under way and later ones fail with this reason."""
        if not self._lost.done():
            self._lost.set_result(reason)

    async def node_silent(self, reason: str) -> None:
        """The pool hears nothing from the node: calls that have waited long fail with this reason, later ones try anew.

        Without it they would wait for their whole timeout: a machine that lost power or its network cuts no connection.
        """
        since = time.monotonic() - NODE_LOST_SECONDS
        waiting = [call for call, began in self._calls.items() if began < since]
        probe = (
            self._route.probe
        )  # it may be the pool that is cut off, not we; an error (its engine is down) is an answer
        if waiting and (not probe or await self._caller.status_of(probe, within=PROBE_SECONDS) is None):
            for call in waiting:
                if not call.done():
                    call.set_result(reason)

    async def exec(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:
        """See `Sandbox.exec`. Raises SandboxError where the sandbox is gone or the command's outcome is unknown."""
        if timeout <= 0:
            return ExecResult(TIMED_OUT, "", timed_out=True)
        if refusal := unrunnable(command):
            return ExecResult(CANNOT_RUN, refusal)
        payload = {
            "command": command,
            "cwd": cwd or self.workdir,
            "timeout": min(timeout, LONGEST_SECONDS),
            "env": env or {},
            "output_limit": output_limit,
        }
        answer = await self._json("exec", payload, timeout)
        try:
            return ExecResult(
                returncode=int(answer["returncode"]),
                output=str(answer["output"]),
                timed_out=bool(answer.get("timed_out", False)),
                truncated=bool(answer.get("truncated", False)),
                seconds=float(answer.get("seconds", 0.0)),
                dropped_bytes=int(answer.get("dropped_bytes", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SandboxError(f"the exec answer lacks {error}") from error

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.upload`."""
        params = {"path": self._absolute(path), "mode": f"{mode:o}", "idempotency_key": new_key()}
        await self._raw("upload", params, data, max_bytes=1_000_000)

    async def download(self, path: str, *, max_bytes: int) -> bytes:
        """See `Sandbox.download`."""
        params = {"path": self._absolute(path), "max_bytes": str(max_bytes)}
        return await self._raw("download", params, b"", max_bytes=max_bytes)

    async def evaluate(self, payload: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Grade on the node (`/container/evaluate`): patch, eval script and policy go in, verdict and details come out."""
        return await self._json("evaluate", {**payload, "timeout": timeout}, timeout)

    async def close(self) -> None:
        """End the lease; idempotent. An unreachable pool is logged, not raised: without heartbeats the lease expires."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self.lease_id}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.lost("it was closed by its owner")
        try:
            await self._close_lease(self.lease_id, Deadline(CLOSE_SECONDS))
        except InfraError as error:
            log.warning("lease %s could not be closed, it will expire: %s", self.lease_id, error)

    async def _json(self, name: str, payload: dict[str, Any], timeout: float) -> dict[str, Any]:
        body = {**payload, **self._route.identity, "idempotency_key": new_key()}
        deadline = Deadline(timeout + ANSWER_GRACE + 2 * HOP_GRACE)
        return await self._unless_lost(
            self._caller.json(self._route.url(name), body, deadline=deadline, patience=NODE_LOST_SECONDS)
        )

    async def _raw(self, name: str, params: dict[str, str], data: bytes, *, max_bytes: int) -> bytes:
        request = self._caller.post(
            self._route.url(name),
            body=data,
            params={**params, **self._route.identity},
            content_type="application/octet-stream",
            deadline=Deadline(TRANSFER_SECONDS),
            max_bytes=max_bytes,
            patience=NODE_LOST_SECONDS,
        )
        return await self._unless_lost(request)

    async def _unless_lost(self, request: Awaitable[T]) -> T:
        """The request's result, or SandboxError as soon as the lease is known to be gone or the node to be silent."""
        task = asyncio.ensure_future(request)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._calls[ended] = time.monotonic()
        try:
            waiting: set[asyncio.Future[Any]] = {task, self._lost, ended}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                reason = (self._lost if self._lost.done() else ended).result()
                raise SandboxError(f"sandbox of lease {self.lease_id} is gone: {reason}")
            return task.result()
        except ServerRefusal as refused:
            if refused.status == 410:
                self.lost(str(refused))
            raise
        finally:
            del self._calls[ended]
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.workdir.rstrip('/')}/{path}"


def unrunnable(command: str) -> str:
    """Why no shell can be given this command; "" where it can. Commands are a model's output: they may be anything."""
    if "\0" in command:
        return "the command contains a NUL character, which bash cannot run\n"
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        return "the command is not valid Unicode\n"
    return f"the command is longer than {MAX_COMMAND} bytes\n" if size > MAX_COMMAND else ""


def new_key() -> str:
    return uuid.uuid4().hex

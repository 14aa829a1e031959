"""One heartbeat for all leases of a provider: a thousand leases cost one request every few seconds."""

from __future__ import annotations

import asyncio
import logging

from swe_rl.deadline import Deadline
from swe_rl.errors import InfraError, UsageError
from swe_rl.sandbox.pool_http import KeyedCaller
from swe_rl.sandbox.pool_sandbox import PoolSandbox
from swe_rl.sandbox.protocol import LONGEST_LEASE

log = logging.getLogger(__name__)
INTERVAL = 5.0  # seconds; also how soon a lost sandbox is noticed while a command runs in it


class Heartbeat:
    """Owns the task that renews leases. Started with the first sandbox, ended by `aclose`."""

    def __init__(self, url: str, caller: KeyedCaller, *, interval: float = INTERVAL) -> None:
        self._url, self._caller, self._interval = f"{url}/heartbeat", caller, interval
        self._sandboxes: dict[str, PoolSandbox] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, sandbox: PoolSandbox) -> None:
        self._sandboxes[sandbox.lease_id] = sandbox
        if self._task is None:
            self._task = asyncio.create_task(self._beat(), name="pool heartbeat")

    def remove(self, lease_id: str) -> None:
        self._sandboxes.pop(lease_id, None)

    def held(self) -> list[PoolSandbox]:
        return list(self._sandboxes.values())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if self._sandboxes:
                try:
                    await self._renew()
                except (InfraError, UsageError) as error:  # the pool is away: its restart keeps the leases
                    log.warning("no heartbeat reached the pool: %s", error)

    async def _renew(self) -> None:
        left = {lease_id: sandbox.deadline.bound(LONGEST_LEASE) for lease_id, sandbox in self._sandboxes.items()}
        answer = await self._caller.json(self._url, {"leases": left}, deadline=Deadline(3 * self._interval))
        for lease_id, reason in (answer.get("gone") or {}).items():
            sandbox = self._sandboxes.pop(lease_id, None)
            if sandbox is not None:
                sandbox.lost(str(reason))
        silent = (answer.get("silent") or {}).items()
        known = [(self._sandboxes[lease_id], str(reason)) for lease_id, reason in silent if lease_id in self._sandboxes]
        await asyncio.gather(*(sandbox.node_silent(reason) for sandbox, reason in known))

"""Closing a lease: its slot is free only after its container is gone, however often that must be tried."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from swe_rl.sandbox.pool_server.book import Book
from swe_rl.sandbox.pool_server.lease import Lease, LeaseState
from swe_rl.sandbox.pool_server.node_api import DESTROY_PATH, NodeApi, NodeRefused, NodeUnreachable

log = logging.getLogger(__name__)
DESTROY_SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0


@dataclass
class Closing:
    """One lease on its way out."""

    task: asyncio.Task[None]
    failures: int = 0


class Closer:
    """One owned task per closing lease; it ends when the container is gone or the node's own list says so."""

    def __init__(self, book: Book, api: NodeApi) -> None:
        self._book, self._api = book, api
        self._closing: dict[str, Closing] = {}
        self.on_capacity: Callable[[], None] = lambda: None

    def begin(self, lease: Lease, reason: str) -> asyncio.Task[None]:
        """Start to close (or join the closing of) a lease; the task ends when it is closed."""
        known = self._closing.get(lease.id)
        if known is None:
            # One that an earlier server was closing keeps its time: servers that restart often must still come to its end.
            written = lease.state is LeaseState.CLOSING
            if lease.state is LeaseState.OPEN:
                lease.state = LeaseState.CLOSING  # at once: no heartbeat or command may slip in before the disk knows
            task = asyncio.create_task(self._close(lease, reason, written=written), name=f"close {lease.id}")
            known = self._closing[lease.id] = Closing(task)
            task.add_done_callback(lambda _: self._closing.pop(lease.id, None))
        return known.task

    async def gone(self, lease: Lease, reason: str) -> None:
        """The node's list proves that the container does not exist: the slot is free."""
        closing = self._closing.pop(lease.id, None)
        if closing is not None:
            closing.task.cancel()
        await self._closed(lease, reason)

    def failures(self, lease: Lease) -> int:
        closing = self._closing.get(lease.id)
        return closing.failures if closing else 0

    async def destroy(self, node: str, container: str) -> bool:
        """True when the node says that the container is gone. Raises NodeUnreachable or NodeRefused.

        Every try has a key of its own: an earlier one may have been answered before the container existed.
        """
        try:
            payload = {"container_id": container, "idempotency_key": f"destroy-{uuid.uuid4().hex}"}
            await self._api.call(node, DESTROY_PATH, payload, timeout=DESTROY_SECONDS)
        except NodeRefused as error:
            if error.status not in (404, 410):
                raise
        return True

    async def aclose(self) -> None:
        tasks = [closing.task for closing in self._closing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self, lease: Lease, reason: str, *, written: bool) -> None:
        if lease.state is LeaseState.CLOSED:  # its node was taken out of the pool meanwhile
            return
        created = bool(lease.container_id)
        pause = FIRST_PAUSE
        while True:
            try:
                if not written:
                    await self._book.change(lease, LeaseState.CLOSING, reason)
                    written = True
                await self.destroy(lease.node, lease.container_id or lease.container_name)
                if created:
                    await self._closed(lease)
                    return
                # The create was never answered: it may still be on its way. Only the node's list can prove the end.
            except (NodeUnreachable, NodeRefused, sqlite3.Error) as error:
                closing = self._closing.get(lease.id)
                if closing is not None:
                    closing.failures += 1
                log.warning("lease %s: destroy failed, its slot stays taken: %s", lease.id, error)
            await asyncio.sleep(pause * random.uniform(0.7, 1.0))
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _closed(self, lease: Lease, reason: str = "") -> None:
        await self._book.change(lease, LeaseState.CLOSED, reason)
        self.on_capacity()

"""The pool put together: book, nodes, line, closer and reaper, started and ended in the right order."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from swe_rl.deadline import Deadline
from swe_rl.owned_tasks import uninterrupted
from swe_rl.sandbox.pool_server.allocator import Allocator
from swe_rl.sandbox.pool_server.book import Book
from swe_rl.sandbox.pool_server.closer import Closer
from swe_rl.sandbox.pool_server.faults import PoolFault
from swe_rl.sandbox.pool_server.fleet import Fleet
from swe_rl.sandbox.pool_server.lease import Lease, LeaseState
from swe_rl.sandbox.pool_server.node import Node
from swe_rl.sandbox.pool_server.node_api import NodeApi
from swe_rl.sandbox.pool_server.reaper import Reaper
from swe_rl.sandbox.pool_server.requests import CloseBody, HeartbeatBody
from swe_rl.sandbox.pool_server.settings import PoolSettings
from swe_rl.sandbox.pool_server.store import NodeRow, Store

log = logging.getLogger(__name__)
NODE_LEFT = "lost: its node was taken out of the pool"
CLOSE_PAUSE = 0.05  # seconds between two looks at what is left to close


class Pool:
    """What the HTTP routes call. `start()` on the running loop, `stop()` before it ends."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.store = Store(settings.database, settings.pool_id)
        self.book = Book(self.store)
        self.api = NodeApi(settings.node_token or settings.token)
        self.closer = Closer(self.book, self.api)
        self.fleet = Fleet(self.store, self.book, self.api, settings)
        self.started_at = time.time()
        self._reaping: asyncio.Task[None] | None = None

    @property
    def nodes_share_token(self) -> bool:
        """Whether a caller's token opens the exec servers too, so that its commands may go there directly."""
        return not self.settings.node_token or self.settings.node_token == self.settings.token

    async def start(self, node_urls: list[str]) -> None:
        """Take over the book; leases that were being made are closed, open ones get a fresh ttl."""
        leases, nodes = self.store.open()
        self.book.load(leases)
        self.allocator = Allocator(self.store.pool_id, self.book, self.fleet, self.closer, self.api, self.settings)
        self.reaper = Reaper(self.store.pool_id, self.book, self.closer, self.settings)
        self.fleet.on_capacity = self.closer.on_capacity = self.allocator.serve
        self.fleet.on_list = self.reaper.reconcile
        self.book.renew_all()
        for lease in self.book.active(LeaseState.CREATING, LeaseState.CLOSING):
            self.book.forget_key(lease)
            self.closer.begin(lease, lease.reason or "the pool server restarted while it was being made")
        await self._take_in(nodes, [url.rstrip("/") for url in node_urls])
        self._reaping = asyncio.create_task(self.reaper.run(), name="reaper")
        log.info("pool %s: %d nodes, %d leases taken over", self.store.pool_id, len(self.fleet.nodes), len(leases))

    async def _take_in(self, rows: list[NodeRow], listed: list[str]) -> None:
        """The nodes that the book knows, and those on the server's own list that it does not know."""
        for row in rows:
            if self.store.was_version_1 and row.url in listed:
                row = row._replace(capacity=None)
                await self.store.save_node(row)
            if not row.gone:
                node = self.fleet.add(row.url, row.capacity, row.draining)
                if node.capacity != self.settings.capacity:
                    log.info("node %s keeps the capacity that it joined with: %d", row.url, node.capacity)
            elif row.url in listed:
                log.warning("node %s was taken out and stays out; POST /nodes brings it back", row.url)
            else:
                await self.store.delete_node(row.url)
        known = {row.url for row in rows}
        for url in listed:
            if url not in known:
                await self.fleet.join(url)
        for lease in self.book.active():
            if not self.fleet.has(lease.node):  # the server was killed while the node left
                await self.closer.gone(lease, NODE_LEFT)

    async def stop(self) -> None:
        """End every task and write what waits. Leases stay on the book: a restart goes on with them."""
        if self._reaping is not None:
            self._reaping.cancel()
            await asyncio.gather(self._reaping, return_exceptions=True)
            await self.allocator.aclose()
        await self.fleet.aclose()
        await self.closer.aclose()
        await self.book.flush()
        await self.api.aclose()
        self.store.close()

    async def close_all(self, reason: str, *, within: float) -> int:
        """Let nobody in any more and close every lease, also those that are being made; returns how many are not gone.

        It takes little more than `within` seconds.
        """
        deadline = Deadline(within)
        self.allocator.stopping = True
        await self.allocator.aclose()
        while (left := self.book.active()) and not deadline.expired():
            closing = [self.closer.begin(lease, reason) for lease in left]
            await asyncio.wait(closing, timeout=deadline.remaining())
            await asyncio.sleep(deadline.bound(CLOSE_PAUSE))
        return len(self.book.active())

    def lease(self, lease_id: str) -> Lease:
        """An open lease. Raises PoolFault: lease_unknown, lease_gone (with the reason)."""
        lease = self.book.leases.get(lease_id)
        if lease is None:
            raise PoolFault("lease_unknown", f"no lease {lease_id}")
        if lease.state is not LeaseState.OPEN:
            raise PoolFault("lease_gone", f"lease {lease_id} has ended: {lease.reason or lease.state.value}")
        return lease

    def heartbeat(self, body: HeartbeatBody) -> dict[str, Any]:
        """Renew leases; those that have ended come back under `gone` with the reason.

        Under `silent` are those that are held on although their node does not answer at all, with the reason.
        """
        now = time.time()
        alive: dict[str, float] = {}
        gone: dict[str, str] = {}
        silent: dict[str, str] = {}
        asked: dict[str, float | None] = {**body.leases, **({body.lease_id: None} if body.lease_id else {})}
        for lease_id, seconds_left in asked.items():
            try:
                lease = self.lease(lease_id)
            except PoolFault as fault:
                gone[lease_id] = str(fault)
                continue
            if seconds_left:  # 0: the deadline has passed, it stays where it was
                lease.deadline_at = now + seconds_left + self.settings.deadline_grace
            self.book.renew(lease)
            alive[lease_id] = round(lease.expires_at - now, 3)
            if silence := self.fleet.silence(lease.node):
                silent[lease_id] = f"its node has not answered for {silence:.0f} s"
        return {"ok": body.lease_id not in gone, "leases": alive, "gone": gone, "silent": silent}

    async def close(self, body: CloseBody) -> dict[str, Any]:
        """Close a lease and wait for its container to go; idempotent, also for leases that are long forgotten."""
        lease = self.book.leases.get(body.lease_id)
        if lease is None:
            return {"ok": True, "lease_id": body.lease_id, "state": "closed"}
        if lease.holds_slot:
            await asyncio.wait([self.closer.begin(lease, body.reason)], timeout=body.wait_s)
        return {"ok": True, "lease_id": lease.id, "state": lease.state.value, "reason": lease.reason}

    async def leave(self, url: str, *, force: bool) -> None:
        """Take a node out. With leases on it only by `force`: they are closed on the book, as if the machine were gone."""
        node = self.fleet.get(url)
        held = self._held(node)
        if held and not force:
            raise PoolFault("node_busy", f"{len(held)} leases on {node.url}: drain it and wait, or use force")
        await uninterrupted(self._leave(node))  # a caller that hangs up leaves no leases behind that nobody watches

    async def _leave(self, node: Node) -> None:
        if await self.fleet.leave(node):
            for lease in self._held(node):
                await self.closer.gone(lease, NODE_LEFT)

    def _held(self, node: Node) -> list[Lease]:
        return [lease for lease in self.book.active() if lease.node == node.url]

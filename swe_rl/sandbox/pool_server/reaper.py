"""Nothing is lost or leaked: leases that expired are closed, and the book is compared with each node's own list."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from typing import Any

from swe_rl.sandbox.container.engine import LEASE_LABEL
from swe_rl.sandbox.pool_server.allocator import LABEL_POOL
from swe_rl.sandbox.pool_server.book import Book
from swe_rl.sandbox.pool_server.closer import Closer
from swe_rl.sandbox.pool_server.lease import Lease, LeaseState
from swe_rl.sandbox.pool_server.node import Node
from swe_rl.sandbox.pool_server.node_api import NodeRefused, NodeUnreachable
from swe_rl.sandbox.pool_server.settings import PoolSettings

log = logging.getLogger(__name__)
MISSING_LISTS = 2  # lists in a row without the container of an open lease that prove it lost


class Reaper:
    """`tick` looks at the clock, `reconcile` at what a node says that it holds."""

    def __init__(self, pool_id: str, book: Book, closer: Closer, settings: PoolSettings) -> None:
        self._pool_id, self._book, self._closer, self._settings = pool_id, book, closer, settings
        self._last_tick = time.time()
        self.orphans_destroyed = 0
        self.leases_lost = 0
        self.leases_expired = 0

    async def run(self) -> None:
        """Tick until cancelled. A failing disk is logged and tried again, never the end of the reaper."""
        while True:
            await asyncio.sleep(self._settings.tick_interval)
            try:
                await self.tick()
            except sqlite3.Error:
                log.exception("the book could not be written")

    async def tick(self) -> None:
        """Close what expired. After a pause of this process or a jump of the clock, grant a fresh ttl first."""
        now = time.time()
        if abs(now - self._last_tick - self._settings.tick_interval) > 10.0 + 2 * self._settings.tick_interval:
            log.warning("the clock moved by %.0f s between two ticks: leases get a fresh ttl", now - self._last_tick)
            self._book.renew_all()
        self._last_tick = now
        for lease in self._book.active(LeaseState.OPEN):
            if self._book.expired(lease, now):
                self.leases_expired += 1
                why = "its deadline passed" if now > lease.deadline_at else f"no heartbeat for {lease.ttl:.0f} s"
                self._closer.begin(lease, f"expired: {why}")
        await self._book.flush()
        await self._book.prune(self._settings.keep_closed)

    async def reconcile(self, node: Node, status: dict[str, Any], asked_at: float) -> None:
        """Compare both directions: containers that no lease knows are destroyed, leases without container end."""
        containers = status.get("containers")
        if not isinstance(containers, list):
            return  # a node that could not list says nothing about what exists
        listed: dict[str, str] = {}
        for container in containers:
            labels = container.get("labels") or {}
            if labels.get(LABEL_POOL) == self._pool_id:
                listed[str(labels.get(LEASE_LABEL, ""))] = str(container.get("container_id") or container.get("id"))
        for lease_id, container_id in listed.items():
            await self._destroy_orphan(node, lease_id, container_id)
        for lease in self._book.active():
            if lease.node == node.url:
                await self._check_lease(node, lease, lease.id in listed, asked_at)

    async def _destroy_orphan(self, node: Node, lease_id: str, container_id: str) -> None:
        lease = self._book.leases.get(lease_id)
        if lease is not None and lease.holds_slot:
            return
        try:
            await self._closer.destroy(node.url, container_id)
            self.orphans_destroyed += 1
            log.warning("node %s: destroyed container %s, which no lease holds", node.url, container_id)
        except (NodeUnreachable, NodeRefused) as error:
            log.warning("node %s: container %s has no lease and would not go: %s", node.url, container_id, error)

    async def _check_lease(self, node: Node, lease: Lease, listed: bool, asked_at: float) -> None:
        if listed or lease.state is LeaseState.CREATING:
            node.missing.pop(lease.id, None)
            return
        if lease.state is LeaseState.CLOSING:
            settled = lease.changed_at + (0.0 if lease.container_id else self._settings.settle)
            if asked_at > settled:
                await self._closer.gone(lease, "")
        elif asked_at > lease.changed_at:
            node.missing[lease.id] = node.missing.get(lease.id, 0) + 1
            if node.missing[lease.id] >= MISSING_LISTS:
                del node.missing[lease.id]
                self.leases_lost += 1
                await self._closer.gone(lease, "lost: its container is no longer on the node")

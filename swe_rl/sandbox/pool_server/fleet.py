"""The nodes of the pool: who is in, how each is doing, and where the next container should go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from swe_rl.owned_tasks import within
from swe_rl.sandbox.container.image_names import normalized
from swe_rl.sandbox.pool_server.book import Book
from swe_rl.sandbox.pool_server.faults import PoolFault
from swe_rl.sandbox.pool_server.node import Node, new_node
from swe_rl.sandbox.pool_server.node_api import NodeApi, NodeRefused, NodeUnreachable
from swe_rl.sandbox.pool_server.settings import PoolSettings
from swe_rl.sandbox.pool_server.store import NodeRow, Store

log = logging.getLogger(__name__)
STOP_SECONDS = 10.0  # that cancelled watchers may take
KNOCK_SECONDS = 3.0  # that an exec server may take to say that it lives
Reconcile = Callable[[Node, dict[str, Any], float], Awaitable[None]]


class Fleet:
    """Joins, drains and removes nodes at run time and watches each with one task of its own."""

    def __init__(self, store: Store, book: Book, api: NodeApi, settings: PoolSettings) -> None:
        self.nodes: dict[str, Node] = {}
        self._store, self._book, self._api, self._settings = store, book, api, settings
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self.on_capacity: Callable[[], None] = lambda: None  # set by the allocator
        self.on_list: Reconcile | None = None  # set by the reaper

    def choose(self, image: str, avoid: set[str]) -> Node | None:
        """The usable node with a free slot that holds the image, among those the least loaded; None when all are full."""
        free = [
            node
            for node in self.nodes.values()
            if node.usable and node.url not in avoid and self._book.used(node.url) < node.capacity
        ]
        names = {image, normalized(image)}
        return min(free, key=lambda node: (not node.images & names, self._load(node), node.url), default=None)

    def free_slots(self) -> int:
        usable = [node for node in self.nodes.values() if node.usable]
        return sum(max(0, node.capacity - self._book.used(node.url)) for node in usable)

    async def join(self, url: str, capacity: int | None = None) -> Node:
        """Add a node, or bring back one that drains or has left, and remember it on disk. No capacity: that of the pool."""
        node = self.add(url, capacity, draining=False)
        node.draining = node.gone = False
        node.own_capacity = capacity or node.own_capacity
        await self._save(node)
        self.on_capacity()
        return node

    def add(self, url: str, capacity: int | None, draining: bool) -> Node:
        """Add without writing (at start); starts the watcher."""
        node = new_node(url, capacity, draining, self._settings)
        if node.url not in self.nodes:
            self.nodes[node.url] = node
            self._watchers[node.url] = asyncio.create_task(self._watch(node), name=f"watch {node.url}")
        return self.nodes[node.url]

    async def drain(self, url: str) -> Node:
        """No new lease goes there; those that are there go on."""
        node = self.get(url)
        node.draining = True
        await self._save(node)
        return node

    async def leave(self, node: Node) -> bool:
        """Take a node out, and say whether it is: False for one that has joined again meanwhile.

        No lease is placed on it from the first moment on. Those that it holds are the caller's to end once it is out.
        """
        node.draining = node.gone = True
        await self._save(node)
        if not node.gone or self.nodes.get(node.url) is not node:
            return False
        del self.nodes[node.url]
        self._watchers.pop(node.url).cancel()
        return True

    def has(self, url: str) -> bool:
        return url.rstrip("/") in self.nodes

    def get(self, url: str) -> Node:
        node = self.nodes.get(url.rstrip("/"))
        if node is None:
            raise PoolFault("node_unknown", f"no node {url} in this pool; it has {', '.join(self.nodes) or 'none'}")
        return node

    def silence(self, url: str) -> float:
        """Seconds for which a quarantined node has answered nothing; 0 for one that is only slow or sends errors."""
        node, unanswered = self.nodes.get(url), self._api.unanswered(url)
        silent = node is not None and not node.health.healthy and unanswered > self._settings.silent_after
        return unanswered if silent else 0.0

    def failed(self, url: str, error: str) -> None:
        """A request went without answer: look at the node now. A burst of lost requests is one failure, not many."""
        node = self.nodes.get(url)
        if node is not None and node.health.healthy:
            log.info("node %s: %s", url, error)
            node.look_now.set()

    async def aclose(self) -> None:
        for watcher in self._watchers.values():
            watcher.cancel()
        if self._watchers:
            await asyncio.wait(self._watchers.values(), timeout=STOP_SECONDS)

    async def _watch(self, node: Node) -> None:
        while True:
            node.look_now.clear()
            await self.probe(node)
            pause = node.health.pause(self._settings.probe_interval)
            if node.health.fails and node.health.healthy:
                pause = min(pause, 1.0)  # in doubt: decide soon
            with contextlib.suppress(asyncio.TimeoutError):
                await within(pause, node.look_now.wait())
            await asyncio.sleep(0.05)  # however often it is asked to look, it leaves the node some air

    async def probe(self, node: Node) -> None:
        """Ask one node how it is and what it holds, and compare that with the book."""
        asked_at = time.time()
        before = node.state
        try:
            status = await self._api.call(node.url, "/status", None, timeout=self._settings.probe_timeout)
            engine = status.get("engine") or {}
            if engine.get("ok") is False:
                raise NodeRefused(503, "engine_unavailable", f"its engine is down: {engine.get('error')}")
            node.images = set(image_names(status))
            node.saw(status)
            if self.on_list is not None:
                await self.on_list(node, status, asked_at)
        except NodeUnreachable as error:
            await self._knock(node)
            node.health.failed(str(error))
        except NodeRefused as error:
            node.health.failed(str(error))
        except Exception as error:  # a watcher that dies would leave its node unwatched for ever
            log.exception("node %s: its status could not be used", node.url)
            node.health.failed(f"{type(error).__name__}: {error}")
        if node.state != before:
            log.warning("node %s: %s -> %s %s", node.url, before, node.state, node.health.last_error)
        try:
            self.on_capacity()
        except Exception:
            log.exception("those who wait could not be served")

    async def _knock(self, node: Node) -> None:
        """Whether it lives: /status waits for a slow engine, and commands go on meanwhile. Any answer ends a silence."""
        with contextlib.suppress(NodeUnreachable, NodeRefused):
            seconds = min(self._settings.probe_timeout, KNOCK_SECONDS)
            await self._api.send(node.url, "/healthz", timeout=seconds)

    async def _save(self, node: Node) -> None:
        await self._store.save_node(NodeRow(node.url, node.own_capacity, node.draining, node.gone))

    def _load(self, node: Node) -> float:
        return self._book.used(node.url) / node.capacity


def image_names(status: dict[str, Any]) -> list[str]:
    """References of the images that a node's /status lists, as strings or as objects with tags and digests."""
    names: list[str] = []
    for image in status.get("images") or []:
        if isinstance(image, str):
            names.append(image)
        elif isinstance(image, dict):
            listed = [*(image.get("tags") or []), *(image.get("digests") or []), image.get("name")]
            names += [str(name) for name in listed if name]
    return names

"""A node as the pool sees it: capacity, images, and health with hysteresis."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

from swe_rl.sandbox.pool_server.settings import PoolSettings


@dataclass
class Health:
    """Several failures in a row quarantine, several successes bring back: one slow answer moves nothing.

    A new node is not usable before its first good answer.
    """

    fail_threshold: int
    ok_threshold: int
    max_backoff: float
    healthy: bool = False
    fails: int = 0
    oks: int = 0
    ever_ok: bool = False
    last_error: str = ""

    def succeeded(self) -> None:
        self.oks += 1
        self.fails = 0
        if not self.healthy and (self.oks >= self.ok_threshold or not self.ever_ok):
            self.healthy = True
            self.last_error = ""
        self.ever_ok = True

    def failed(self, error: str) -> None:
        self.fails += 1
        self.oks = 0
        self.last_error = error
        if self.fails >= self.fail_threshold:
            self.healthy = False

    def pause(self, interval: float) -> float:
        """Seconds until the next look: `interval`, doubling with each failure of a quarantined node, with jitter."""
        if self.healthy or self.fails == 0:
            return interval
        return min(self.max_backoff, interval * 2.0 ** min(self.fails - 1, 16)) * random.uniform(0.7, 1.0)


@dataclass
class Node:
    """One exec server. `status` is its own last answer, `images` the references it holds."""

    url: str
    own_capacity: int | None  # that it joined with; None: the pool's
    pool_capacity: int
    health: Health
    draining: bool = False
    gone: bool = False  # taken out; it may still be here for the moment in which that is written
    images: set[str] = field(default_factory=set)
    status: dict[str, Any] = field(default_factory=dict)
    seen_at: float = 0.0  # time.time() of the last good answer
    look_now: asyncio.Event = field(default_factory=asyncio.Event)
    missing: dict[str, int] = field(default_factory=dict)  # lease id: lists in a row that lacked its container

    @property
    def capacity(self) -> int:
        """Containers at once."""
        return self.own_capacity or self.pool_capacity

    @property
    def usable(self) -> bool:
        return self.health.healthy and not self.draining

    @property
    def state(self) -> str:
        if not self.health.ever_ok:
            return "unknown"
        if not self.health.healthy:
            return "quarantined"
        return "draining" if self.draining else "healthy"

    def saw(self, status: dict[str, Any]) -> None:
        """Take over a good answer of the node's /status."""
        self.health.succeeded()
        self.status = status
        self.seen_at = time.time()


def new_node(url: str, capacity: int | None, draining: bool, settings: PoolSettings) -> Node:
    return Node(
        url.rstrip("/"),
        capacity,
        settings.capacity,
        Health(settings.fail_threshold, settings.ok_threshold, settings.max_backoff),
        draining,
    )

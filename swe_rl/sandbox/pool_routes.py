"""Where a lease's requests go: through the pool server, or straight to its node where that can be reached.

The direct way saves one hop per command. It is taken only where the pool says that nodes share its token; the pool
still owns the lease.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Route:
    """The URL and the identity that a request needs: the lease for the pool, the container for its node."""

    base: str
    prefix: str
    identity: dict[str, str]
    probe: str = ""  # URL at which the node says that it lives; "" where only the pool reaches it

    def url(self, name: str) -> str:
        """`name`: exec, diff, evaluate, upload, download."""
        return f"{self.base}{self.prefix}/{name}"


def through_pool(pool_url: str, lease_id: str) -> Route:
    return Route(pool_url, "", {"lease_id": lease_id})


def direct(node_url: str, container_id: str) -> Route:
    return Route(node_url, "/container", {"container_id": container_id}, f"{node_url}/healthz")

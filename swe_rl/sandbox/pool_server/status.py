"""The state of the pool for people and programs: JSON, and a plain HTML page of the same facts."""

from __future__ import annotations

import time
from typing import Any

from swe_rl.sandbox.pool_server.lease import LeaseState
from swe_rl.sandbox.pool_server.pool import Pool
from swe_rl.sandbox.server.pages import html_page


def snapshot(pool: Pool) -> dict[str, Any]:
    """Everything `/status` tells. Ages in seconds."""
    now = time.time()
    nodes = [
        {
            "url": node.url,
            "state": node.state,
            "used": pool.book.used(node.url),
            "capacity": node.capacity,
            "images": len(node.images),
            "disk_fraction": node.status.get("disk_fraction"),
            "last_seen_s": round(now - node.seen_at, 1) if node.seen_at else None,
            "last_error": node.health.last_error,
        }
        for node in pool.fleet.nodes.values()
    ]
    leases = [
        {
            "lease_id": lease.id,
            "run": lease.run,
            "instance_id": lease.instance_id,
            "image": lease.image,
            "node": lease.node,
            "container_id": lease.container_id,
            "state": lease.state.value,
            "reason": lease.reason,
            "age_s": round(now - lease.created_at, 1),
            "expires_in_s": round(lease.expires_at - now, 1) if lease.state is LeaseState.OPEN else None,
            "failed_destroys": pool.closer.failures(lease),
        }
        for lease in pool.book.active()
    ]
    return {
        "pool_id": pool.store.pool_id,
        "uptime_s": round(now - pool.started_at, 1),
        "capacity": sum(node.capacity for node in pool.fleet.nodes.values()),
        "free": pool.fleet.free_slots(),
        "waiting": pool.allocator.line.lengths(),
        "leases_expired": pool.reaper.leases_expired,
        "leases_lost": pool.reaper.leases_lost,
        "orphans_destroyed": pool.reaper.orphans_destroyed,
        "nodes": nodes,
        "leases": leases,
    }


def page(status: dict[str, Any]) -> str:
    """The snapshot as one HTML page, oldest leases first."""
    facts = {key: value for key, value in status.items() if not isinstance(value, list)}
    nodes, leases = status["nodes"], sorted(status["leases"], key=lambda lease: -lease["age_s"])
    tables = {f"{len(nodes)} nodes": nodes, f"{len(leases)} leases, oldest first": leases}
    return html_page(f"Pool {status['pool_id']}", facts, tables)

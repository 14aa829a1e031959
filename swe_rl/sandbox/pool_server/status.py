"""The state of the pool for people and programs: JSON, and a plain HTML page of the same facts."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable
from typing import Any

from swe_rl.sandbox.pool_server.lease import LeaseState
from swe_rl.sandbox.pool_server.pool import Pool

STYLE = "body{font:14px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}"


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
    """The snapshot as one HTML page without scripts. Every value is escaped: names come from callers."""
    facts = {key: value for key, value in status.items() if not isinstance(value, list)}
    nodes, leases = status["nodes"], sorted(status["leases"], key=lambda lease: -lease["age_s"])
    return (
        f"<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=5><title>swe-rl pool</title>"
        f"<style>{STYLE}</style><h1>Pool {html.escape(status['pool_id'])}</h1>{_table(facts.items())}"
        f"<h2>{len(nodes)} nodes</h2>{_rows(nodes)}<h2>{len(leases)} leases, oldest first</h2>{_rows(leases)}"
    )


def _table(items: Iterable[tuple[str, Any]]) -> str:
    return f"<table>{''.join(f'<tr><th>{_cell(name)}<td>{_cell(value)}' for name, value in items)}</table>"


def _rows(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{_cell(name)}" for name in rows[0])
    lines = "".join("<tr>" + "".join(f"<td>{_cell(value)}" for value in row.values()) for row in rows)
    return f"<table><tr>{head}{lines}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return html.escape(", ".join(f"{key} {inner}" for key, inner in value.items()) or "none")
    return html.escape("" if value is None else str(value))

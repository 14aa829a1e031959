"""/status: the node for the pool server (JSON) and for people (plain HTML)."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable
from typing import Any

from swe_rl import __version__
from swe_rl.errors import InfraError
from swe_rl.sandbox.exec_server.answers import Answers
from swe_rl.sandbox.exec_server.node import Node

STARTED = time.time()
STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd}"
)


async def snapshot(node: Node, answers: Answers) -> dict[str, Any]:
    """Everything the pool needs: containers with labels, images, engine, disk. Without engine only its error."""
    body: dict[str, Any] = {
        "node": node.name,
        "version": __version__,
        "uptime_s": round(time.time() - STARTED, 1),
        "engine": {
            "ok": not node.engine_error,
            "error": node.engine_error,
            **{name: node.info.get(name) for name in ("ServerVersion", "Driver", "NCPU", "MemTotal", "CgroupVersion")},
        },
        "disk_fraction": round(node.disk_fraction, 4),
        "disk_quota": node.engine.disk_quota,
        "requests_running": answers.running,
        "pulls": [job.progress() for job in node.images.puller.jobs.values()],
    }
    try:
        body["containers"] = await node.listed()
        body["images"] = await node.image_rows()
    except InfraError as error:
        body["engine"] |= {"ok": False, "error": str(error)}
    return body


def page(status: dict[str, Any]) -> str:
    """The same as HTML that needs nothing but a browser."""
    engine = status["engine"]
    facts = {
        "engine": f"{engine['ServerVersion']} ({engine['Driver']})" if engine["ok"] else f"DOWN: {engine['error']}",
        "up": f"{status['uptime_s']:.0f} s",
        "disk": f"{status['disk_fraction']:.0%} full",
        "requests under way": status["requests_running"],
    }
    containers = (
        (c["container_id"][:12], c["name"], c["image"], c["state"], f"{c['age_s']:.0f} s", _labels(c["labels"]))
        for c in status.get("containers", [])
    )
    images = (
        (
            " ".join(i["tags"]) or i["id"][:19],
            f"{i['size_bytes'] / 1e6:.0f} MB",
            "pinned" if i["pinned"] else "",
            i["containers"],
        )
        for i in status.get("images", [])
    )
    pulls = ((p["image"], p["state"], f"{p['current_bytes']}/{p['total_bytes']}", p["note"]) for p in status["pulls"])
    return (
        f"<!doctype html><meta charset=utf-8><title>exec server {html.escape(status['node'])}</title><style>{STYLE}</style>"
        f"<h1>Exec server {html.escape(status['node'])}</h1>{_table((), facts.items())}"
        f"<h2>Containers</h2>{_table(('id', 'name', 'image', 'state', 'age', 'labels'), containers)}"
        f"<h2>Images</h2>{_table(('image', 'size', '', 'containers'), images)}"
        f"<h2>Pulls</h2>{_table(('image', 'state', 'bytes', 'note'), pulls)}"
    )


def _labels(labels: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = ["".join(f"<th>{html.escape(text)}" for text in head)] if head else []
    lines += ["".join(f"<td>{html.escape(str(cell))}" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"

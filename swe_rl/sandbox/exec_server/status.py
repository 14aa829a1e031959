"""/status: the node for the pool server (JSON) and for people (plain HTML)."""

from __future__ import annotations

import time
from typing import Any

from swe_rl import __version__
from swe_rl.errors import InfraError
from swe_rl.sandbox.exec_server.answers import Answers
from swe_rl.sandbox.exec_server.node import Node
from swe_rl.sandbox.server.pages import html_page

STARTED = time.time()


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
    """The same for people."""
    engine = status["engine"]
    facts = {
        "engine": f"{engine['ServerVersion']} ({engine['Driver']})" if engine["ok"] else f"DOWN: {engine['error']}",
        "up": f"{status['uptime_s']:.0f} s",
        "disk": f"{status['disk_fraction']:.0%} full",
        "requests under way": status["requests_running"],
    }
    containers = [
        {**container, "container_id": container["container_id"][:12], "age_s": f"{container['age_s']:.0f}"}
        for container in status.get("containers", [])
    ]
    images = [
        {
            "image": " ".join(image["tags"]) or image["id"][:19],
            "size": f"{image['size_bytes'] / 1e6:.0f} MB",
            "pinned": "pinned" if image["pinned"] else "",
            "containers": image["containers"],
        }
        for image in status.get("images", [])
    ]
    tables = {"Containers": containers, "Images": images, "Pulls": status["pulls"]}
    return html_page(f"Exec server {status['node']}", facts, tables)

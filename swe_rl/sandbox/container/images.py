"""The images of a node: which are here, when each was last used, and which go when the disk fills up."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from typing import Any

from swe_rl.sandbox.container.engine import Engine, typed_errors
from swe_rl.sandbox.container.errors import EngineRefused, ImageMissing, ImagePulling
from swe_rl.sandbox.container.image_names import familiar
from swe_rl.sandbox.container.local_image import PINNED_LABEL
from swe_rl.sandbox.container.pull import Puller

log = logging.getLogger(__name__)
TABLE = "CREATE TABLE IF NOT EXISTS images (name TEXT PRIMARY KEY, used_at REAL NOT NULL)"


class Images:
    """Only images that this server pulled or used are ever evicted; their last use is on disk."""

    def __init__(self, engine: Engine, puller: Puller, db: sqlite3.Connection, pinned: list[str], *, pull: bool):
        self._engine, self._db, self._pinned, self._pull = engine, db, set(pinned), pull
        self.puller = puller
        puller.pulled = self.used  # whoever asked for it, and whether or not he still waits
        self.evicted = 0
        db.execute(TABLE)

    def used(self, image: str) -> None:
        """Note that `image` is used now."""
        sql = "INSERT INTO images VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET used_at = excluded.used_at"
        with self._db:
            self._db.execute(sql, (image, time.time()))

    async def present(self, image: str) -> bool:
        return await self._engine.has_image(image)

    async def fetch(self, image: str, timeout: float) -> None:
        """Wait up to `timeout` seconds for the pull of `image`, which goes on by itself.

        Raises ImageMissing (no registry has it, or pulling is off) or ImagePulling (not finished, or failed for now).
        """
        if not self._pull:
            raise ImageMissing(f"image {image} is not on this node, and --no-pull is set")
        job = self.puller.join(image)
        ended = await self.puller.wait(job, timeout)
        if job.missing:
            raise ImageMissing(f"image {image} cannot be pulled: {job.note}")
        if job.state != "done":
            what = (
                "the pull failed"
                if ended
                else f"still being pulled ({job.progress()['current_bytes'] >> 20} MiB so far)"
            )
            raise ImagePulling(f"image {image}: {what}{': ' if job.note else ''}{job.note}")

    async def listed(self) -> list[dict[str, Any]]:
        """Every tagged image: tags, digests, id, size in bytes, last use, pinned, and how many containers use it."""
        with typed_errors("list images"):
            images = await self._engine.docker.images.list()
            async with self._engine.raw("GET", "containers/json", {"all": "1"}) as response:
                users = [container["ImageID"] for container in await response.json()]
        used = dict(self._db.execute("SELECT name, used_at FROM images").fetchall())
        rows = []
        for image in images:
            tags = [familiar(tag) for tag in image.get("RepoTags") or [] if tag != "<none>:<none>"]
            digests = [familiar(name) for name in image.get("RepoDigests") or []]
            names = [*tags, *digests]  # an image that was pulled by its digest has no tag
            labelled = (image.get("Labels") or {}).get(PINNED_LABEL) == "true"
            rows.append(
                {
                    "name": names[0] if names else image["Id"],
                    "tags": tags,
                    "digests": digests,
                    "id": image["Id"],
                    "size_bytes": image["Size"],
                    "used_at": max((used[name] for name in names if name in used), default=None),
                    "pinned": labelled or bool(self._pinned.intersection(names)),
                    "containers": users.count(image["Id"]),
                }
            )
        return rows

    async def evict(self, root: str, high: float, low: float) -> list[str]:
        """Where the disk of `root` is fuller than `high` (a fraction), remove images until it is below `low`.

        Least recently used first; never one that a container uses, that is pinned or that has a name which this server
        neither pulled nor used.
        """
        if disk_fraction(root) < high:
            return []
        ours = {name for (name,) in self._db.execute("SELECT name FROM images")}
        free = [row for row in await self.listed() if not row["pinned"] and not row["containers"]]
        rows = [row for row in free if row["used_at"] and ours.issuperset(row["tags"])]
        gone: list[str] = []
        for row in sorted(rows, key=lambda row: row["used_at"]):
            if disk_fraction(root) < low:
                break
            try:
                for name in row["tags"] or row["digests"]:
                    with typed_errors(f"evict {name}"):
                        await self._engine.docker.images.delete(name)
                    gone.append(name)
                    log.info("evicted image %s", name)
            except (EngineRefused, ImageMissing) as error:  # it got used meanwhile
                log.info("image %s stays: %s", row["name"], error)
            await asyncio.sleep(0)
        with self._db:
            self._db.executemany("DELETE FROM images WHERE name = ?", [(name,) for name in gone])
        self.evicted += len(gone)
        return gone


def disk_fraction(root: str) -> float:
    """How full the file system of `root` is, 0 to 1; 0 where it cannot be seen from here (a remote engine)."""
    try:
        disk = os.statvfs(root)
    except OSError:
        return 0.0
    return 1.0 - disk.f_bavail / max(1, disk.f_blocks - disk.f_bfree + disk.f_bavail)

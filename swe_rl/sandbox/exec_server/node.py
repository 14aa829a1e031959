"""The containers and images of this machine, and the watch that keeps them within their bounds."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from swe_rl.errors import InfraError
from swe_rl.owned_tasks import within
from swe_rl.sandbox.container import native
from swe_rl.sandbox.container.container import Container, Spec
from swe_rl.sandbox.container.engine import DISK_LABEL, LEASE_LABEL, Engine
from swe_rl.sandbox.container.errors import ContainerGone, ImageMissing
from swe_rl.sandbox.container.image_names import load_credentials, normalized
from swe_rl.sandbox.container.images import Images, disk_fraction
from swe_rl.sandbox.container.limits import MIB
from swe_rl.sandbox.container.pull import Puller
from swe_rl.sandbox.exec_server.put_back import ImageState
from swe_rl.sandbox.exec_server.requests import CreateBody
from swe_rl.sandbox.exec_server.settings import ExecSettings

log = logging.getLogger(__name__)
KEY_LABEL = "swe-rl.key"
OWNER_LABEL = "swe-rl.owner"  # which server made it
EVALUATION_LABEL = "swe-rl.evaluation"  # of which server, and which
LONGEST_LEASE = 8 * 86400.0  # seconds; a pool grants 7 days at most, so what is older has lost its pool
IMAGES_FRESH_SECONDS = 10.0
ENDED = "CREATE TABLE IF NOT EXISTS ended (container TEXT PRIMARY KEY, why TEXT NOT NULL) WITHOUT ROWID"
WORKED_IN = "CREATE TABLE IF NOT EXISTS worked_in (container TEXT PRIMARY KEY) WITHOUT ROWID"


class Node:
    """Use `start` and `stop` around it."""

    def __init__(self, settings: ExecSettings, db: sqlite3.Connection) -> None:
        self.settings = settings
        self.name = socket.gethostname()
        self.engine = Engine(settings.docker_host, parallel=settings.parallel)
        credentials = load_credentials(settings.registry_config)
        puller = Puller(
            self.engine, timeout=settings.pull_timeout, mirrors=list(settings.mirrors), credentials=credentials
        )
        pinned = [normalized(image) for image in settings.pinned]
        self.images = Images(self.engine, puller, db, pinned, pull=settings.pull)
        self.info: dict[str, Any] = {}  # the engine's own, refreshed by the watch
        self.engine_error = "not asked yet"
        self.created = self.removed_for_age = self.ended_for_disk = 0
        self.containers: set[str] = set()  # ids of the managed ones
        self.image_states: dict[tuple[str, str], ImageState] = {}  # by the image's id and the folder
        self._untouched: set[str] = set()  # ids of those that this server made and where no caller's command has run
        self._containers: dict[str, Container] = {}  # by id and by name
        self._first_seen: dict[str, float] = {}  # by id, monotonic: a clock that is set makes nothing old
        self._image_rows: tuple[float, list[dict[str, Any]]] = (0.0, [])
        self._watch: asyncio.Task[None] | None = None
        # Others may serve the same engine: a server knows its own by its database, which outlives a kill.
        self._owner = hashlib.sha256(str(Path(settings.database).resolve()).encode()).hexdigest()[:16]
        self._evaluations: set[str] = set()  # labels of those under way
        self._db = db  # containers that were ended for good, or worked in, stay so after a restart
        db.execute(ENDED)
        db.execute(WORKED_IN)

    async def start(self) -> None:
        """Look at the engine once and start the watch. An engine that does not answer is reported, not fatal."""
        await self._look()
        if self.settings.compiled:
            self.engine.program = await asyncio.to_thread(native.build)
        try:
            await self._lost_evaluations()
            await self.listed()
        except InfraError as error:
            log.warning("what an earlier server left cannot be removed yet: %s", error)
        self._watch = asyncio.create_task(self._run_watch(), name="exec server watch")

    async def stop(self) -> None:
        """End the watch and the connections; containers stay: leases outlive a restart of this server."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.images.puller.aclose()
        await asyncio.gather(*(c.detach() for c in set(self._containers.values())), return_exceptions=True)
        await self.engine.aclose()

    @property
    def disk_fraction(self) -> float:
        return disk_fraction(str(self.info.get("DockerRootDir", "")))

    async def create(self, body: CreateBody, key: str) -> Container:
        """A running container. A missing image is pulled within the request's time. Raises SandboxError kinds, UsageError."""
        deadline = time.monotonic() + body.timeout
        image = normalized(body.image)
        asked = {**body.limits, **({"network": True} if body.network else {})}
        labels = {**body.labels, OWNER_LABEL: self._owner, **({KEY_LABEL: key} if key else {})}
        spec = Spec(
            image,
            body.cwd,
            body.name or f"swe-rl-{uuid.uuid4().hex[:16]}",
            body.env,
            labels,
            self.settings.limits.narrowed(asked),
            self.settings.capabilities,
        )
        if key and (made := await self._made_before(key)):
            return made
        try:
            container = await within(
                deadline - time.monotonic(), Container.create(self.engine, spec), Container.destroy
            )
        except ImageMissing:
            await self.images.fetch(image, max(0.0, deadline - time.monotonic()))
            # The pull may have taken the whole time: creating has a bound of its own.
            container = await within(
                max(60.0, deadline - time.monotonic()), Container.create(self.engine, spec), Container.destroy
            )
        except asyncio.TimeoutError:
            raise InfraError(f"the engine made no container from {image} within {body.timeout:.0f} s") from None
        self.created += 1
        self.images.used(image)
        self.containers.add(container.id)
        self._untouched.add(container.id)
        self._containers[container.id] = self._containers[container.name] = container
        return container

    @contextlib.asynccontextmanager
    async def for_evaluation(self, body: CreateBody) -> AsyncIterator[Container]:
        """A container that is removed afterwards, by the watch where that fails or this process dies. Raises as `create`."""
        label = f"{self._owner}.{uuid.uuid4().hex}"
        self._evaluations.add(label)
        try:
            container = await self.create(body.model_copy(update={"labels": {EVALUATION_LABEL: label}}), "")
            try:
                yield container
            finally:
                try:
                    await self.destroy(container.id)
                except InfraError as error:
                    log.warning("container %s of an evaluation would not go: %s", container.id[:12], error)
        finally:
            self._evaluations.discard(label)

    async def get(self, name: str) -> Container:
        """The container with this id or name. Raises ContainerGone."""
        container = self._containers.get(name)
        if container is None:
            found = await Container.find(self.engine, name)
            row = self._db.execute("SELECT why FROM ended WHERE container = ?", (found.id,)).fetchone()
            found.ended_because = row[0] if row else ""
            container = self._containers.setdefault(found.id, found)
            mine = container is found and found.labels.get(OWNER_LABEL) == self._owner
            if mine and not self._db.execute("SELECT 1 FROM worked_in WHERE container = ?", (found.id,)).fetchone():
                self._untouched.add(found.id)
            self._containers[name] = container
        return container

    def worked_in(self, container_id: str) -> bool:
        """Note that a caller's command is about to run there; whether none has before."""
        if container_id not in self._untouched:
            return False
        self._untouched.discard(container_id)
        with contextlib.suppress(sqlite3.Error):  # a full disk must not keep commands from running
            self._db.execute("INSERT OR IGNORE INTO worked_in VALUES (?)", (container_id,))
        return True

    async def destroy(self, name: str) -> bool:
        """Remove it; False when there was none. Capacity is free only after this."""
        try:
            container = await self.get(name)
        except ContainerGone:
            return False
        try:
            existed = await container.destroy()
            self.containers.discard(container.id)
            return existed
        finally:
            self._forget(container)

    async def listed(self) -> list[dict[str, Any]]:
        """Every managed container that the engine has, running or not."""
        rows = []
        for row in await self.engine.listed():
            rows.append(
                {
                    "container_id": row["Id"],
                    "name": row["Names"][0].lstrip("/") if row["Names"] else "",
                    "image": row["Image"],
                    "labels": row["Labels"],
                    "state": row["State"],
                    "age_s": round(time.time() - row["Created"], 1),
                }
            )
        self.containers = {row["container_id"] for row in rows}
        return rows

    async def image_rows(self) -> list[dict[str, Any]]:
        """The images of the node, at most some seconds old."""
        at, rows = self._image_rows
        if time.monotonic() - at > IMAGES_FRESH_SECONDS or not rows:
            rows = await self.images.listed()
            self._image_rows = (time.monotonic(), rows)
        return rows

    def _forget(self, container: Container) -> None:
        self._untouched.discard(container.id)
        for name in [name for name, known in self._containers.items() if known is container]:
            del self._containers[name]

    async def _made_before(self, key: str) -> Container | None:
        """The container that an earlier server made for this key, before it could answer."""
        for row in await self.engine.listed(f"{KEY_LABEL}={key}"):
            if row["State"] == "running":
                return await self.get(row["Id"])
            await self.engine.remove(row["Id"])  # half made
        return None

    async def _run_watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.watch_interval)
            await self._look()
            for look in (self._ages, self._lost_evaluations, self._disk_of_containers, self._disk_of_images):
                try:
                    await look()
                except (InfraError, sqlite3.Error) as error:  # the book's disk may be full just when images should go
                    log.warning("%s: %s", look.__name__.strip("_"), error)

    async def _look(self) -> None:
        try:
            self.info = await self.engine.info()
            self.engine_error = ""
        except InfraError as error:
            self.engine_error = str(error)

    async def _ages(self) -> None:
        """Remove what is too old. Containers of a lease are their pool's to end, while there can be one."""
        now = time.monotonic()
        # Before the list is made: a container that comes meanwhile is not in it.
        known = {t: self._db.execute(f"SELECT container FROM {t}").fetchall() for t in ("ended", "worked_in")}
        rows = {row["container_id"]: row for row in await self.listed()}
        self._first_seen = {name: self._first_seen.get(name, now) for name in rows}
        for name, row in rows.items():
            age, most = now - self._first_seen[name], self.settings.max_age
            if age > (max(most, LONGEST_LEASE) if LEASE_LABEL in row["labels"] else most):
                log.warning("container %s is %.0f s old: removed", name[:12], age)
                await self.destroy(name)
                self.removed_for_age += 1
        for container in set(self._containers.values()):
            if container.id not in rows and time.monotonic() - container.used_at > self.settings.watch_interval:
                await container.detach()
                self._forget(container)
        for table, names in known.items():
            gone = [row for row in names if row[0] not in rows]
            self._db.executemany(f"DELETE FROM {table} WHERE container = ?", gone)

    async def _lost_evaluations(self) -> None:
        """Remove containers of this server's evaluations that are over, or that a kill has cut."""
        for row in await self.engine.listed(EVALUATION_LABEL):
            label = row["Labels"][EVALUATION_LABEL]
            if label.startswith(f"{self._owner}.") and label not in self._evaluations:
                log.warning("container %s of an evaluation that is over: removed", row["Id"][:12])
                await self.destroy(row["Id"])

    async def _disk_of_containers(self) -> None:
        """Where the storage driver has no quota: end containers whose writable layer has outgrown its bound."""
        if self.engine.disk_quota:
            return
        for row in await self.engine.listed(size=True):
            bound = int(row["Labels"].get(DISK_LABEL, self.settings.limits.disk_mb))
            if row.get("SizeRw", 0) > bound * MIB:
                with contextlib.suppress(ContainerGone):
                    container = await self.get(row["Id"])
                    if container.ended_because and row["State"] != "running":
                        continue
                    why = f"it wrote more than {bound} MiB"
                    with contextlib.suppress(sqlite3.Error):  # a full disk must not keep it alive
                        self._db.execute("INSERT OR REPLACE INTO ended VALUES (?, ?)", (container.id, why))
                    await container.kill(why)
                    self.ended_for_disk += 1

    async def _disk_of_images(self) -> None:
        root = str(self.info.get("DockerRootDir", ""))
        await self.images.evict(root, self.settings.disk_high, self.settings.disk_low)

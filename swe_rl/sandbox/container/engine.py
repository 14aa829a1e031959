"""The container engine's API (Docker, or Podman through its compatible socket), with its failures made typed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.stream import Stream
from yarl import URL

from swe_rl.owned_tasks import cancel_all
from swe_rl.sandbox.container.errors import ContainerGone, EngineRefused, EngineUnavailable, FileMissing, ImageMissing

MANAGED_LABEL = "swe-rl.managed"
DISK_LABEL = "swe-rl.disk_mb"  # the bound of its writable layer, for the watch
LEASE_LABEL = "swe-rl.lease"  # of a pool's container: its lease
MOST_FILES = 1048576  # what Podman itself would ask for
PARALLEL = 8  # calls at a time that make, start or remove a container: an engine is slow with more, and may give up
NO_CONTAINER = "no such container"  # how Docker's message begins and Podman's ends
CALL_SECONDS = 120.0  # bound of a single API call that has no bound of its own


@contextlib.contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """Turn the client's errors into ours: gone, missing, unavailable, refused."""
    try:
        yield
    except DockerError as error:
        message = f"{what}: {error.message}"
        if error.status == 900:
            raise EngineUnavailable(message) from error
        if error.status == 404 and _of_an_image(error.message):
            raise ImageMissing(message) from error
        if error.status == 404:
            raise ContainerGone(message) from error
        raise EngineRefused(error.status, message) from error
    except asyncio.TimeoutError as error:
        raise EngineUnavailable(f"{what}: the engine did not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineUnavailable(f"{what}: {error or type(error).__name__}") from error


def _of_an_image(message: str) -> bool:
    """Whether a 404 is an image's: Docker's words, then Podman's. Names in it may hold any word, "container" too."""
    return message.lower().startswith("no such image") or message.lower().endswith("image not known")


def podman_ulimits() -> list[dict[str, Any]]:
    """The most that a process here can hand on; Podman lowers its own processes to the kernel's number of pids."""
    files, processes = (resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    pids = int(Path("/proc/sys/kernel/pid_max").read_text())
    bounds = {
        "nofile": MOST_FILES if files == resource.RLIM_INFINITY else min(files, MOST_FILES),
        "nproc": pids if processes == resource.RLIM_INFINITY else min(processes, pids),
    }
    return [{"Name": name, "Soft": bound, "Hard": bound} for name, bound in bounds.items()]


class Engine:
    """One engine. `url` is a DOCKER_HOST (unix:///path or tcp://...). `aclose()` ends its connections."""

    def __init__(self, url: str, *, parallel: int = PARALLEL) -> None:
        self.url = url
        self.turns = asyncio.Semaphore(parallel)  # of create and start; others wait in line, before any timeout
        # Removals have turns of their own, and one for each container: those that the engine never answers must not keep a new
        # container from being made, nor ask again and again.
        self._removal_turns = asyncio.Semaphore(parallel)
        self._removals: dict[str, asyncio.Task[bool]] = {}
        self._docker: Docker | None = None
        self._connector: aiohttp.BaseConnector | None = None
        self.disk_quota: bool | None = None  # whether its storage driver has one; None until a container was made
        self.program = ""  # the compiled supervisor, a file that the engine can mount; "" = the script serves
        self.program_refused = 0  # containers in a row that it did not start in
        self._podman: bool | None = None  # None = not asked yet
        self._cpus = 0  # processors of its machine; 0 = not asked yet

    @property
    def docker(self) -> Docker:
        if self._docker is None:
            # No limit: every container holds one connection for its supervisor. `turns` bounds what is heavy.
            path = self.url.removeprefix("unix://")
            unix = self.url.startswith("unix://")
            self._connector = aiohttp.UnixConnector(path, limit=0) if unix else aiohttp.TCPConnector(limit=0)
            bounds = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=10)
            url = "http://engine" if unix else self.url
            self._docker = Docker(url=url, connector=self._connector, timeout=bounds)
        return self._docker

    async def aclose(self) -> None:
        await cancel_all(self._removals.values())
        if self._docker is not None and self._connector is not None:
            await self._docker.close()
            await self._connector.close()

    async def info(self) -> dict[str, Any]:
        """The engine's /info. Raises EngineUnavailable."""
        with typed_errors(f"engine {self.url}"):
            return dict(await self.docker.system.info())

    async def create(self, config: dict[str, Any], name: str | None) -> str:
        """Create a container and return its id. A storage driver without quota is remembered. Raises as `typed_errors`.

        More processors than the machine has are asked for as all of them: Docker refuses more.
        """
        what = f"create from {config['Image']}"
        with typed_errors(what):
            # Docker hands on its own limits. Podman asks for fixed ones, which the kernel refuses to a confined root.
            if await self.is_podman():
                config["HostConfig"]["Ulimits"] = podman_ulimits()
            config["HostConfig"]["NanoCpus"] = min(config["HostConfig"]["NanoCpus"], await self._processors() * 10**9)
            async with self.turns:
                try:
                    container = await self.docker.containers.create(config, name=name)
                    self.disk_quota = "StorageOpt" in config["HostConfig"]
                except DockerError as error:
                    if error.status == 404:  # nothing else that a container is made of can be missing
                        raise ImageMissing(f"{what}: {error.message}") from error
                    if "StorageOpt" not in config["HostConfig"] or "storage" not in error.message.lower():
                        raise
                    self.disk_quota = False
                    del config["HostConfig"]["StorageOpt"]
                    container = await self.docker.containers.create(config, name=name)
        return container.id

    async def is_podman(self) -> bool:
        """Whether it is Podman behind Docker's API. Raises as `typed_errors`."""
        if self._podman is None:
            with typed_errors(f"engine {self.url}"):
                parts = (await self.docker.version()).get("Components") or []
            self._podman = any(part.get("Name") == "Podman Engine" for part in parts)
        return self._podman

    async def _processors(self) -> int:
        """Of the engine's machine; more than any has where it does not say."""
        self._cpus = self._cpus or int((await self.docker.system.info()).get("NCPU") or 10**6)
        return self._cpus

    async def start(self, container_id: str) -> None:
        with typed_errors(f"start {container_id[:12]}"):
            async with self.turns:
                await self.docker.containers.container(container_id).start()

    async def kill(self, container_id: str) -> None:
        """SIGKILL its first process; a container that does not run is no error."""
        with typed_errors(f"kill {container_id[:12]}"):
            try:
                await self.docker.containers.container(container_id).kill()
            except DockerError as error:
                if error.status not in (409, 500):
                    raise

    async def remove(self, container_id: str) -> bool:
        """Remove it with everything in it; False when there was none. A removal that is under way is waited for."""
        removal = self._removals.get(container_id)
        if removal is None:
            removal = self._removals[container_id] = asyncio.create_task(self._remove(container_id))
            removal.add_done_callback(lambda done: self._removed(container_id, done))
        return await asyncio.shield(removal)

    def _removed(self, container_id: str, removal: asyncio.Task[bool]) -> None:
        self._removals.pop(container_id, None)
        if not removal.cancelled():
            removal.exception()  # who asked for it may have gone

    async def _remove(self, container_id: str) -> bool:
        with typed_errors(f"remove {container_id[:12]}"):
            for pause in (0.1, 0.3, 1.0, 3.0, None):
                try:
                    async with self._removal_turns:
                        await self.docker.containers.container(container_id).delete(force=True, v=True)
                    return True
                except DockerError as error:
                    if error.status == 404:
                        return False
                    if error.status != 409 or pause is None:
                        raise
                    await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def inspect(self, container_id: str) -> dict[str, Any]:
        with typed_errors(f"container {container_id[:64]}"):
            return dict(await self.docker.containers.container(container_id).show())

    async def listed(self, *labels: str, size: bool = False) -> list[dict[str, Any]]:
        """Managed containers, running or not, that carry all `labels` ("name" or "name=value")."""
        filters = json.dumps({"label": [MANAGED_LABEL, *labels]})
        with typed_errors("list containers"):
            async with self.raw(
                "GET", "containers/json", {"all": "1", "size": str(int(size)), "filters": filters}
            ) as r:
                return await r.json()

    async def has_image(self, image: str) -> bool:
        """Whether the engine holds `image`. Raises as `typed_errors`."""
        with typed_errors(f"image {image}"):
            try:
                await self.docker.images.inspect(image)
                return True
            except DockerError as error:
                if error.status == 404:
                    return False
                raise

    async def attach(self, container_id: str) -> Stream:
        """Its stdin and stdout, kept open; works before the start too, so that nothing is missed."""

        async def setup() -> tuple[URL, None, bool]:
            query = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 0, "logs": 0}
            return URL(f"containers/{container_id}/attach").with_query(query), None, False

        stream = Stream(self.docker, setup)
        with typed_errors(f"attach {container_id[:12]}"):
            return await stream.__aenter__()

    async def exec(self, container_id: str, command: list[str]) -> Stream:
        """Stdin and stdout, kept open, of a further process in a running container, as `docker exec -i` starts it."""
        with typed_errors(f"exec in {container_id[:12]}"):
            made = await self.docker.containers.container(container_id).exec(command, stdin=True, stderr=False)
            return await made.start(detach=False).__aenter__()

    async def exists(self, container_id: str, path: str) -> bool:
        """Whether the container's file system has `path`."""
        with typed_errors(f"container {container_id[:12]}"):
            try:
                async with self.raw("HEAD", f"containers/{container_id}/archive", {"path": path}):
                    return True
            except DockerError as error:
                if error.status == 404 and (await self.inspect(container_id)):
                    return False
                raise

    async def put_archive(self, container_id: str, folder: str, tar: bytes | AsyncIterator[bytes]) -> None:
        """Unpack a tar stream below `folder`, which must exist; owners and modes are those of the tar."""
        with typed_errors(f"upload to {container_id[:12]}:{folder}"):
            path = f"containers/{container_id}/archive"
            async with self.raw("PUT", path, {"path": folder}, data=tar, timeout=600.0):
                return

    @contextlib.asynccontextmanager
    async def get_archive(
        self, container_id: str, path: str
    ) -> AsyncIterator[tuple[dict[str, Any], aiohttp.StreamReader]]:
        """(stat of `path`, tar stream of it). The stat has name, size, mode and linkTarget. Raises FileMissing too."""
        what = f"download {container_id[:12]}:{path}"
        with typed_errors(what):
            where = f"containers/{container_id}/archive"
            try:
                async with self.raw("GET", where, {"path": path}, timeout=600.0) as response:
                    stat = json.loads(base64.b64decode(response.headers["X-Docker-Container-Path-Stat"]))
                    yield stat, response.content
            except DockerError as error:
                said = error.message.lower()
                if error.status == 404 and not (said.startswith(NO_CONTAINER) or said.endswith(NO_CONTAINER)):
                    raise FileMissing(f"{what}: no such file on disk") from error
                raise

    @contextlib.asynccontextmanager
    async def raw(
        self,
        method: str,
        path: str,
        params: dict[str, str] | list[tuple[str, str]],
        *,
        data: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = CALL_SECONDS,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A call with a streamed body or answer. Raises DockerError, which `typed_errors` around it translates."""
        docker = self.docker
        bounds = aiohttp.ClientTimeout(total=timeout, sock_connect=10)
        async with docker.session.request(
            method, f"{docker.docker_host}/{path}", params=params, data=data, headers=headers, timeout=bounds
        ) as response:
            if response.status >= 400:
                text = await response.text()
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    text = str(json.loads(text)["message"])
                raise DockerError(response.status, text)
            yield response

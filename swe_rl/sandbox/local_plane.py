"""The sandbox plane of one run on one machine: pool and exec server before the local engine, ended with the run.

One child process holds both servers. It has a random token, free loopback ports and a book in a private folder; it watches
its parent, so a killed driver leaves no container behind either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
from aiodocker import DockerError

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.deadline import Deadline
from swe_rl.errors import InfraError, SandboxError, SandboxUnavailable
from swe_rl.sandbox.container.engine import Engine
from swe_rl.sandbox.container.local_image import DEFAULT_TAG, build_local_image
from swe_rl.sandbox.owned_folder import private_folder
from swe_rl.sandbox.pool import PoolProvider
from swe_rl.sandbox.pool_process import PoolProcess
from swe_rl.types import Task

log = logging.getLogger(__name__)

ENGINE_SECONDS = 5.0
PROOF_SECONDS = 20.0
STOP_SECONDS = 10.0  # that the service of Podman may take after each signal
ENGINE_VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}


async def open_local_plane(config: SandboxSettings, name: str) -> PoolProvider:
    """Start the plane before the engine `name` ("docker" or "podman") and return a provider that owns it.

    Raises SandboxUnavailable, with the reason, where no such engine answers or the plane does not start.
    """
    folder = private_folder("plane")
    podman: PodmanService | None = None
    try:
        url = await find_engine(name)
        if url is None and name == "podman":
            podman = PodmanService(folder)
            url = await podman.start()
        if url is None:
            raise SandboxUnavailable(f"no {name} engine answers at {' or '.join(engine_urls(name))}")
        await ensure_default_image(url)
        flags = ["--local-engine", url, "--capacity", str(config.swe_max_containers_per_node), "--close-at-exit"]
        process = PoolProcess(folder, flags, token=secrets.token_hex(24))
        await process.start()
    except BaseException:
        if podman is not None:
            await podman.stop()
        shutil.rmtree(folder, ignore_errors=True)
        raise

    async def stop() -> None:
        await process.stop()
        if podman is not None:
            await podman.stop()
        shutil.rmtree(folder, ignore_errors=True)

    provider = PoolProvider(
        process.url,
        token=process.token,
        name=name,
        registry=config.swe_docker_registry,
        default_image=DEFAULT_TAG,
        capacity=config.swe_max_containers_per_node,
        on_close=stop,
    )
    try:
        await prove(provider)
    except BaseException:
        await provider.aclose()
        raise
    return provider


async def prove(provider: PoolProvider) -> None:
    """One container is made, answers and goes: an engine that answers need not be able to start any (Podman without its limits).

    Raises SandboxUnavailable with the engine's reason.
    """
    task = Task("swe-rl-proof", "is there a working container engine?", workdir="/tmp")
    deadline = Deadline(PROOF_SECONDS)
    try:
        sandbox = await provider.open(task, deadline=deadline, purpose="proof")
        try:
            result = await sandbox.exec("echo it works", timeout=deadline.remaining())
        finally:
            await sandbox.close()
    except InfraError as error:
        log.warning("%s answers, but no container could be used: %s", provider.name, error)
        raise SandboxUnavailable(f"{provider.name} answers, but no container could be used: {error}") from error
    if result.output.strip() != "it works":
        raise SandboxUnavailable(f"{provider.name} ran a container, but its command answered {result.output[:300]!r}")


def engine_urls(name: str) -> list[str]:
    """Where an engine may listen: the variable that its own tools use, then its usual sockets."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    usual = {
        "docker": ["unix:///var/run/docker.sock", f"unix://{runtime}/docker.sock"],
        "podman": ["unix:///run/podman/podman.sock", f"unix://{runtime}/podman/podman.sock"],
    }[name]
    given = os.environ.get(ENGINE_VARIABLES[name], "")
    return [given] if given else usual


async def find_engine(name: str) -> str | None:
    """The first URL where an engine answers."""
    for url in engine_urls(name):
        if await _answers(url):
            return url
    return None


async def ensure_default_image(url: str) -> None:
    """Build the small image for tasks that bring their repository and name no image, where the engine lacks it."""
    engine = Engine(url)
    try:
        await engine.docker.images.inspect(DEFAULT_TAG)
    except DockerError as error:
        if error.status != 404:
            raise SandboxUnavailable(f"the engine at {url} cannot list its images: {error.message}") from error
        await build_local_image(url)
    finally:
        await engine.aclose()


async def _answers(url: str) -> bool:
    engine = Engine(url)
    try:
        await asyncio.wait_for(engine.info(), ENGINE_SECONDS)
        return True
    except (SandboxError, aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError):
        return False
    finally:
        await engine.aclose()


class PodmanService:
    """Podman has no daemon: its API is served by a process of ours on a private socket."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._socket = folder, folder / "podman.sock"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> str | None:
        """The URL once it answers; None where there is no podman or it does not come up."""
        if shutil.which("podman") is None:
            return None
        url = f"unix://{self._socket}"
        # In its own folder: conmon writes a file named oom where it was started when a container runs out of memory.
        podman = ["env", "-C", str(self._folder), "podman", *_podman_flags(), "system", "service", "--time=0", url]
        self._process = _launch([sys.executable, "-m", "swe_rl.sandbox.with_parent", str(os.getpid()), *podman])
        for _ in range(100):
            if self._process.poll() is not None:
                return None
            if self._socket.exists() and await _answers(url):
                return url
            await asyncio.sleep(0.1)
        await self.stop()
        return None

    async def stop(self) -> None:
        if self._process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(self._process.wait, STOP_SECONDS)
                    return


def _podman_flags() -> list[str]:
    """crun, Podman's usual runtime, refuses cgroup v1 beside v2; runc takes both."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    search = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [] if unified or shutil.which("runc", path=search) is None else ["--runtime", "runc"]


def _launch(command: list[str]) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)

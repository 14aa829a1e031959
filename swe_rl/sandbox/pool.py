"""The `SandboxProvider` over a pool server: allocate, bring the repository, keep the lease alive, close."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from swe_rl.config.sandbox import SandboxSettings
from swe_rl.deadline import Deadline
from swe_rl.errors import ConfigError, InfraError, SandboxError, SandboxUnavailable
from swe_rl.sandbox.owned_folder import private_folder
from swe_rl.sandbox.pool_heartbeat import INTERVAL, Heartbeat
from swe_rl.sandbox.pool_http import KeyedCaller
from swe_rl.sandbox.pool_process import PoolProcess
from swe_rl.sandbox.pool_routes import Route, direct, through_pool
from swe_rl.sandbox.pool_sandbox import PoolSandbox, new_key
from swe_rl.sandbox.protocol import LONGEST_LEASE
from swe_rl.tasks.images import with_registry
from swe_rl.types import Task

log = logging.getLogger(__name__)
PROBE_SECONDS = 2.0
PROBE_AGAIN = 60.0  # seconds after which a node that could not be reached directly is tried again
CLOSE_WAIT = 5.0  # seconds to wait for the container's end; the pool goes on without us
CLOSE_PATIENCE = 10.0  # seconds of silence after which the lease is left to expire
ARCHIVE_PATH = "/tmp/.swe-rl-repository.tar"
UNPACK_SECONDS = 120.0


class PoolProvider:
    """Opens sandboxes in containers of a pool. `on_close` ends what belongs to it (a local plane's server).

    capacity: the most containers that it can hold for us at once, where that is known.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        name: str = "pool",
        run: str = "",
        registry: str = "",
        default_image: str = "",
        ttl: float = 120.0,
        go_direct: bool = True,
        heartbeat_interval: float = INTERVAL,
        capacity: int | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self.capacity = capacity
        self._run = run or f"run-{uuid.uuid4().hex[:8]}"
        self._registry, self._default_image, self._ttl = registry, default_image, ttl
        self._go_direct = go_direct
        self._caller = KeyedCaller(token)
        self._heartbeat = Heartbeat(self.url, self._caller, interval=heartbeat_interval)
        self._on_close = on_close
        self._reachable: dict[str, tuple[bool, float]] = {}  # node URL: (answered, when it was asked)

    async def open(self, task: Task, *, deadline: Deadline, purpose: str) -> PoolSandbox:
        """A container of the task's image with its repository in `task.workdir`.

        Raises SandboxUnavailable when none can be had before `deadline`, SandboxError when it is lost while it is filled.
        """
        image = with_registry(task.image or self._default_image, self._registry)
        if not image:
            raise SandboxUnavailable(f"task {task.instance_id} names no image, and there is no default one")
        sandbox = await self._allocate(task, image, deadline)
        try:
            if task.archive:
                await bring_archive(sandbox, Path(task.archive), deadline)
        except BaseException:
            await sandbox.close()
            raise
        log.debug("lease %s: %s sandbox for %s", sandbox.lease_id, purpose, task.instance_id)
        return sandbox

    async def aclose(self) -> None:
        """Close every sandbox that is still held, then the connections and what `on_close` owns."""
        await asyncio.gather(*(sandbox.close() for sandbox in self._heartbeat.held()), return_exceptions=True)
        await self._heartbeat.aclose()
        await self._caller.aclose()
        if self._on_close is not None:
            await self._on_close()

    async def _allocate(self, task: Task, image: str, deadline: Deadline) -> PoolSandbox:
        payload = {
            "image": image,
            "instance_id": task.instance_id,
            "run": self._run,
            "cwd": task.workdir,
            "deadline_s": min(max(deadline.remaining(), 1.0), LONGEST_LEASE),
            "ttl_s": self._ttl,
            "env": task.env,
            "network": task.network,
            "idempotency_key": new_key(),
        }
        try:
            answer = await self._caller.json(f"{self.url}/allocate", payload, deadline=deadline)
            lease_id, node, container = (str(answer[name]) for name in ("lease_id", "node", "container_id"))
        except SandboxUnavailable:
            raise
        except (InfraError, KeyError) as error:
            raise SandboxUnavailable(f"no sandbox for {task.instance_id}: {error}") from error
        route = await self._route(lease_id, node, container, bool(answer.get("direct")))
        sandbox = PoolSandbox(lease_id, task.workdir, route, self._caller, deadline, self._close_lease)
        self._heartbeat.add(sandbox)
        return sandbox

    async def _close_lease(self, lease_id: str, deadline: Deadline) -> None:
        self._heartbeat.remove(lease_id)
        payload = {"lease_id": lease_id, "wait_s": CLOSE_WAIT}
        await self._caller.json(f"{self.url}/close", payload, deadline=deadline, patience=CLOSE_PATIENCE)

    async def _route(self, lease_id: str, node: str, container: str, offered: bool) -> Route:
        if offered and self._go_direct and await self._answers(node):
            return direct(node, container)
        return through_pool(self.url, lease_id)

    async def _answers(self, node: str) -> bool:
        answered, asked_at = self._reachable.get(node, (False, -PROBE_AGAIN))
        if not answered and time.monotonic() - asked_at >= PROBE_AGAIN:
            answered = await self._caller.status_of(f"{node}/healthz", within=PROBE_SECONDS) == 200
            self._reachable[node] = (answered, time.monotonic())
        return answered


async def open_pool_provider(config: SandboxSettings) -> PoolProvider:
    """The provider for `SWE_ENV_SERVER_URL`, or over a pool server of this run for `SWE_EXEC_SERVER_URLS` alone.

    Raises ConfigError where neither is set, SandboxUnavailable where the pool server cannot be started.
    """
    if config.swe_env_server_url:
        return PoolProvider(
            config.swe_env_server_url, token=config.swe_server_token, registry=config.swe_docker_registry
        )
    if not config.swe_exec_server_urls:
        raise ConfigError(
            "sandbox=pool needs SWE_ENV_SERVER_URL (a pool server) or SWE_EXEC_SERVER_URLS (exec servers)"
        )
    folder = private_folder("pool")
    flags = ["--nodes", ",".join(config.swe_exec_server_urls), "--close-at-exit"]
    flags += ["--capacity", str(config.swe_max_containers_per_node)]
    process = PoolProcess(folder, flags, token=config.swe_server_token, port=config.swe_env_server_port)

    async def stop() -> None:
        await process.stop()
        shutil.rmtree(folder, ignore_errors=True)

    try:
        await process.start()
    except BaseException:
        await stop()
        raise
    return PoolProvider(
        process.url,
        token=config.swe_server_token,
        registry=config.swe_docker_registry,
        capacity=len(config.swe_exec_server_urls) * config.swe_max_containers_per_node,
        on_close=stop,
    )


async def bring_archive(sandbox: PoolSandbox, archive: Path, deadline: Deadline) -> None:
    """Upload the repository's tar and unpack it in the workdir."""
    try:
        data = await asyncio.to_thread(archive.read_bytes)
    except OSError as error:
        raise SandboxError(f"repository archive {archive}: {error.strerror}") from error
    await sandbox.upload(ARCHIVE_PATH, data)
    where = shlex.quote(sandbox.workdir)
    unpack = f"mkdir -p {where} && tar -xf {ARCHIVE_PATH} -C {where} --no-same-owner && rm -f {ARCHIVE_PATH}"
    result = await sandbox.exec(unpack, timeout=deadline.bound(UNPACK_SECONDS), cwd="/")
    if result.returncode != 0:
        raise SandboxError(f"{archive.name} could not be unpacked in {sandbox.workdir}: {result.output[-500:]}")

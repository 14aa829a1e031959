"""One running container: commands through its supervisor, recovery when that is lost, and never a command twice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from swe_rl.owned_tasks import within
from swe_rl.sandbox.container.engine import DISK_LABEL, MANAGED_LABEL, Engine
from swe_rl.sandbox.container.errors import (
    CommandInterrupted,
    ContainerBusy,
    ContainerGone,
    EngineRefused,
    ImageUnusable,
)
from swe_rl.sandbox.container.limits import SUPERVISOR_FOLDER, SUPERVISOR_PROGRAM, Limits, host_config
from swe_rl.sandbox.container.recovery import reach
from swe_rl.sandbox.container.supervisor import Outcome, Supervisor, preamble, supervisor_command
from swe_rl.sandbox.protocol import DEFAULT_OUTPUT_LIMIT
from swe_rl.types import ExecResult

log = logging.getLogger(__name__)
PROGRAM_TRIES = 3  # refusals in a row after which the compiled supervisor is given up; one may have another cause
FIRST_HELLO_SECONDS = 30.0  # a loaded node may be slow to start a container


@dataclass(frozen=True)
class Spec:
    """What to create. `labels` are the caller's; the managed label is added."""

    image: str
    cwd: str = ""  # "" = the image's own working directory; made where it is missing
    name: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    capabilities: tuple[str, ...] = ()


class Container:
    """Use `create` or `find`. Commands of one container run one after the other."""

    def __init__(self, engine: Engine, container_id: str, cwd: str, image: str, labels: dict[str, str]) -> None:
        self.id = container_id
        self.name = ""  # the engine's; "" where it drew one
        self.cwd = cwd or "/"
        self.image = image
        self.labels = labels
        self.used_at = time.monotonic()
        self.ended_because = ""  # why the server itself ended it, e.g. for its disk use
        self._engine = engine
        self._lock, self._evaluation = asyncio.Lock(), asyncio.Lock()
        self._supervisor: Supervisor | None = None

    @classmethod
    async def create(cls, engine: Engine, spec: Spec) -> Container:
        """Create and start a hardened container; it answers when this returns. Raises SandboxError kinds; leaves nothing.

        Where the compiled supervisor cannot serve (an engine elsewhere cannot mount it), the script does.
        """
        if not engine.program:
            return await cls._create(engine, spec, "")
        try:
            container = await cls._create(engine, spec, engine.program)
            engine.program_refused = 0
        except (EngineRefused, ImageUnusable) as error:
            container = await cls._create(engine, spec, "")  # raises what is not the program's fault
            engine.program_refused += 1
            log.warning("container %s has the script as supervisor: %s", container.id[:12], error)
            if engine.program_refused == PROGRAM_TRIES:
                log.warning("the script serves from now on, at twice the processor time a command")
                engine.program = ""
        return container

    @classmethod
    async def _create(cls, engine: Engine, spec: Spec, program: str) -> Container:
        limits = spec.limits
        command = supervisor_command(bool(program), SUPERVISOR_FOLDER, limits.pids)
        config: dict[str, Any] = {
            "Image": spec.image,
            "Entrypoint": command[:1],
            "Cmd": command[1:],
            "OpenStdin": True,
            "Tty": False,
            "Env": [f"{name}={value}" for name, value in spec.env.items()],
            "Labels": {**spec.labels, MANAGED_LABEL: "1", DISK_LABEL: str(limits.disk_mb)},
            "NetworkDisabled": not limits.network,
            "HostConfig": host_config(
                limits, disk_quota=engine.disk_quota is not False, capabilities=spec.capabilities, program=program
            ),
        }
        if spec.cwd:
            config["WorkingDir"] = spec.cwd
        container_id = await engine.create(config, spec.name)
        container = cls(engine, container_id, spec.cwd, spec.image, config["Labels"])
        container.name = spec.name or ""
        try:
            if not spec.cwd:
                container.cwd = (await engine.inspect(container_id))["Config"].get("WorkingDir") or "/"
            await container._start(FIRST_HELLO_SECONDS)
        except BaseException:
            await asyncio.shield(engine.remove(container_id))
            raise
        return container

    @classmethod
    async def find(cls, engine: Engine, name: str) -> Container:
        """A managed container by id or name, e.g. after a restart of the server. Raises ContainerGone."""
        found = await engine.inspect(name)
        config = found["Config"]
        if MANAGED_LABEL not in (config.get("Labels") or {}):
            raise ContainerGone(f"container {name[:64]} is not one of ours")
        container = cls(engine, found["Id"], config.get("WorkingDir") or "/", config["Image"], config["Labels"])
        container.name = found["Name"].lstrip("/")
        return container

    async def exec(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str = "",
        env: dict[str, str] | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run `command` as the `Sandbox` protocol says.

        Raises ContainerGone, ContainerBusy or EngineUnavailable when nothing was run, CommandInterrupted when it may have.
        """
        data = command.encode("utf-8", "surrogateescape")
        start = preamble(cwd or self.cwd, env or {})
        return (await self.run(data, start, timeout=timeout, output_limit=output_limit)).result()

    async def run(self, command: bytes, start: bytes, *, timeout: float, output_limit: int) -> Outcome:
        """Run `command` after the lines of `start`, which may use its bytes otherwise. Raises as `exec`."""
        async with self.turn(timeout):
            return await self.run_in_turn(command, start, timeout=timeout, output_limit=output_limit)

    @contextlib.asynccontextmanager
    async def turn(self, timeout: float) -> AsyncIterator[None]:
        """The container for what takes several commands: nobody else's runs in between. Raises ContainerBusy."""
        async with self._held(self._lock, timeout, "command"):
            try:
                self.used_at = time.monotonic()
                yield
            finally:
                self.used_at = time.monotonic()

    @contextlib.asynccontextmanager
    async def evaluation(self, timeout: float) -> AsyncIterator[None]:
        """The container for what takes several turns: no other evaluation begins in between. Raises ContainerBusy."""
        async with self._held(self._evaluation, timeout, "evaluation"):
            yield

    @contextlib.asynccontextmanager
    async def _held(self, lock: asyncio.Lock, timeout: float, what: str) -> AsyncIterator[None]:
        async def unlock(acquired: bool) -> None:
            lock.release()

        try:
            await within(timeout, lock.acquire(), unlock)
        except asyncio.TimeoutError:
            raise ContainerBusy(f"container {self.id[:12]} was busy with another {what} for {timeout:.0f} s") from None
        try:
            yield
        finally:
            lock.release()

    async def run_in_turn(self, command: bytes, start: bytes, *, timeout: float, output_limit: int) -> Outcome:
        """As `run`, for who holds the `turn`."""
        supervisor = self._supervisor
        if supervisor is None or not await supervisor.ready():
            supervisor = await self._recover()
        try:
            return await supervisor.run(command, start, timeout=timeout, output_limit=output_limit)
        except CommandInterrupted as error:
            raise CommandInterrupted(f"{error} ({await self._state()})") from error

    async def destroy(self) -> bool:
        """Remove it; False when it was gone already."""
        await self.detach()
        return await self._engine.remove(self.id)

    async def kill(self, reason: str) -> None:
        """End it for good, e.g. because it broke a limit that is only watched."""
        self.ended_because = reason
        await self._engine.kill(self.id)

    async def detach(self) -> None:
        """Let go of the supervisor's stream."""
        if self._supervisor is not None:
            await self._supervisor.close()

    async def _start(self, hello_seconds: float) -> Supervisor:
        supervisor: Supervisor | None = None
        try:
            supervisor = Supervisor(await self._engine.attach(self.id))  # here Podman prepares the container already
            await self._engine.start(self.id)
            if not await supervisor.hello(hello_seconds):
                raise ImageUnusable(f"the supervisor does not start in {self.image}: {await self._state()}")
        except BaseException as error:
            if supervisor is not None:
                await supervisor.close()
            text = str(error)
            if isinstance(error, EngineRefused) and "bash" in text and ("not found" in text or "no such file" in text):
                raise ImageUnusable(f"image {self.image} has no bash") from error
            raise
        self._supervisor = supervisor
        return supervisor

    async def _recover(self) -> Supervisor:
        """A supervisor that answers: in the running container, else by a fresh start (files survive it, processes do not)."""
        if self.ended_because:
            raise ContainerGone(f"container {self.id[:12]} was ended: {self.ended_because}")
        found = await self._engine.inspect(self.id)
        if not found["State"]["Running"]:
            return await self._start(FIRST_HELLO_SECONDS)
        native = found["Config"]["Entrypoint"] == [SUPERVISOR_PROGRAM]
        supervisor = await reach(self._engine, self.id, native=native, pids=found["HostConfig"]["PidsLimit"])
        if supervisor is None:
            log.warning("container %s: no supervisor answers, it is started again", self.id[:12])
            await self._engine.kill(self.id)
            for _ in range(100):
                if not (await self._engine.inspect(self.id))["State"]["Running"]:
                    break
                await asyncio.sleep(0.05)
            return await self._start(FIRST_HELLO_SECONDS)
        self._supervisor = supervisor
        return supervisor

    async def _state(self) -> str:
        if self.ended_because:
            return self.ended_because
        try:
            state = (await self._engine.inspect(self.id))["State"]
        except ContainerGone:
            return "the container has been removed"
        except Exception as error:
            return f"the engine cannot say what became of it: {error}"
        killed = "out of memory, " if state.get("OOMKilled") else ""
        return f"container {state['Status']}, {killed}exit code {state['ExitCode']}"

"""A supervisor for a running container again, when the connection to it is lost or it has died: with as little harm as can be.

The supervisor is PID 1, which nothing inside can end. It is lost when this server was started anew (the common case), when
it still serves an earlier server's command, or when it is stopped or broken: then another one is started beside it
through the engine's own exec, and the container, its files and its memory file systems stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from aiodocker.stream import Stream

from swe_rl.owned_tasks import within
from swe_rl.sandbox.container.engine import Engine
from swe_rl.sandbox.container.errors import EngineRefused, EngineUnavailable
from swe_rl.sandbox.container.supervisor import BROKEN, HELLO_SECONDS, Supervisor, stand_in

log = logging.getLogger(__name__)
EXEC_SECONDS = 10.0  # that the engine's exec may take in a container whose processes are all in use


async def reach(engine: Engine, container_id: str, *, native: bool, pids: int) -> Supervisor | None:
    """A supervisor that answers, or None where only a fresh start of the container helps. Raises ContainerGone.

    native: its supervisor is the compiled one. pids: its bound of processes. What an earlier command left running may be ended.
    """
    ways: tuple[tuple[str, Callable[[], Coroutine[Any, Any, Stream]]], ...] = (
        ("attach", lambda: engine.attach(container_id)),
        ("attach after ending what runs", lambda: _interrupted(engine, container_id)),
        ("exec", lambda: engine.exec(container_id, stand_in(native, pids))),
    )
    if await engine.is_podman():
        ways = ways[2:]  # with the first connection it has closed the container's stdin: its supervisor hears nobody
    for name, way in ways:
        try:
            supervisor = Supervisor(await within(EXEC_SECONDS, way(), Stream.close))
        except (EngineRefused, EngineUnavailable, asyncio.TimeoutError) as error:
            log.warning("container %s: no supervisor by %s: %s", container_id[:12], name, error or "no answer in time")
            continue
        if await supervisor.hello(HELLO_SECONDS):
            return supervisor
        log.warning("container %s: no supervisor answers by %s", container_id[:12], name)
    return None


async def _interrupted(engine: Engine, container_id: str) -> Stream:
    """The first supervisor, after a plain exec has ended all other processes: a command that it waits for is over."""
    killer = await engine.exec(container_id, ["bash", "-c", "kill -KILL -1"])
    try:
        while await killer.read_out() is not None:
            pass
    except BROKEN:
        pass
    finally:
        await killer.close()
    return await engine.attach(container_id)

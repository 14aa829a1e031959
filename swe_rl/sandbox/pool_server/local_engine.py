"""For a pool that belongs to one run on one machine: the exec server of the local engine, in the pool's own process.

One process owns both, so they end together and in order: leases first, then the exec server that destroys them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from swe_rl.errors import InfraError
from swe_rl.sandbox.container.engine import Engine
from swe_rl.sandbox.container.limits import Limits
from swe_rl.sandbox.exec_server.serving import exec_server
from swe_rl.sandbox.exec_server.settings import ExecSettings
from swe_rl.sandbox.owned_folder import process_lives
from swe_rl.sandbox.pool_server.allocator import LABEL_POOL

log = logging.getLogger(__name__)
PREFIX = "local"


def local_pool_id() -> str:
    """Names this process so that a later one can tell whether it still lives (pids are used again, start times not)."""
    return f"{PREFIX}/{socket.gethostname()}/{os.getpid()}/{psutil.Process().create_time():.2f}"


@contextlib.asynccontextmanager
async def local_exec_server(docker_host: str, token: str, folder: Path) -> AsyncIterator[str]:
    """The URL of an exec server on a free loopback port; it ends with the context."""
    await sweep(docker_host)
    limits = Limits(network=True)  # a task of this run may ask for a network; without asking it has none
    settings = ExecSettings(str(folder / "exec.sqlite3"), docker_host, token, limits)
    async with exec_server(settings, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.port}"


async def sweep(docker_host: str) -> None:
    """Remove containers of local pools of this machine whose process was killed before it could do so itself."""
    engine = Engine(docker_host)
    try:
        for row in await engine.listed(LABEL_POOL):
            if is_dead_local_pool(row["Labels"].get(LABEL_POOL, "")):
                log.warning("removing container %s, left behind by a killed run", row["Id"][:12])
                await engine.remove(row["Id"])
    except InfraError as error:
        log.warning("containers of killed runs could not be looked for: %s", error)
    finally:
        await engine.aclose()


def is_dead_local_pool(pool_id: str) -> bool:
    """Whether `pool_id` names a local pool of this machine that has ended."""
    parts = pool_id.split("/")
    if len(parts) != 4 or parts[:2] != [PREFIX, socket.gethostname()]:
        return False
    try:
        return not process_lives(int(parts[2]), float(parts[3]))
    except ValueError:
        return True

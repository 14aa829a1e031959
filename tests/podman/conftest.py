"""The fixtures of the exec server's and the pool's tests, with Podman as their engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.docker_engine import Engine, running_engine
from tests.exec_server.conftest import box, own_server, server, supervisor
from tests.pool.test_docker import plane, task

__all__ = ["box", "own_server", "plane", "server", "supervisor", "task"]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Podman's compatible API over a private storage, in place of the Docker Engine that `engine` is elsewhere."""
    if shutil.which("podman") is None or shutil.which("docker") is None:
        pytest.skip("needs podman, and docker's CLI to look at it")
    with running_engine("podman", "--podman") as running:
        yield running

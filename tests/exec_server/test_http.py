"""Requests that no route answers, and the counts of /metrics."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
import pytest

from tests.exec_server.conftest import new_box
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker


async def containers(server: ExecServer) -> float:
    """What /metrics says, with nobody having asked for /status."""
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("swe_exec_containers ")))


async def test_containers_are_counted_when_they_come_and_go(own_server: Callable[..., ExecServer]) -> None:
    server = own_server("--watch-interval", "3600")
    boxes = [await new_box(server) for _ in range(2)]
    assert await containers(server) == 2.0
    server.kill()
    server.start()
    assert await containers(server) == 2.0
    await server.ok("/container/destroy", container_id=boxes[0].id)
    assert await containers(server) == 1.0


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/container", 404, "not_found"),
        ("GET", "/container/exec", 405, "method_not_allowed"),
        ("DELETE", "/status", 405, "method_not_allowed"),
    ],
)
async def test_a_request_that_no_route_takes(
    server: ExecServer, method: str, path: str, status: int, kind: str
) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, server.url + path) as answer:
        assert answer.status == status and answer.content_type == "application/json"
        error = (await answer.json())["error"]
        assert error["kind"] == kind and path in error["message"]
        assert status != 405 or answer.headers["Allow"]

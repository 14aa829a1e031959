"""`--access-log`: every request is one line that a JSON reader takes as it is, without the token or anything of the body."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker


async def test_every_request_is_one_line_of_json(own_server: Callable[..., ExecServer]) -> None:
    server = own_server(token="token-of-this-test")
    await server.ok("/container/destroy", container_id="no-such-box")
    await server.post("/container/exec", container_id="no-such-box", command="echo of-the-body")
    text = server.log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    found = [(line["method"], line["path"], line["status"], line["peer"]) for line in lines]
    assert ("POST", "/container/destroy", 200, "127.0.0.1") in found
    assert ("POST", "/container/exec", 404, "127.0.0.1") in found
    assert all(line["seconds"] >= 0 and line["at"] > 1e9 for line in lines)
    assert "token-of-this-test" not in text and "of-the-body" not in text

"""data/pull_swe_images.sh as a user runs it: into exec servers and into the machine's engine, from a registry on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.registry import Registry
from tests.exec_server.server import ExecServer

pytestmark = pytest.mark.docker
SCRIPT = Path(__file__).resolve().parents[2] / "data" / "pull_swe_images.sh"


async def pull(*flags: str, **variables: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the script; none of this machine's own settings reach it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SWE_", "DOCKER_"))}
    process = await asyncio.create_subprocess_exec(
        "bash",
        str(SCRIPT),
        *flags,
        env={**env, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def fresh(count: int) -> list[str]:
    return [f"{uuid.uuid4().hex}/a:1" for _ in range(count)]


def held(engine: Engine, image: str) -> bool:
    return bool(engine.docker("images", "-q", image).strip())


async def test_a_dataset_onto_servers(own_server: Callable[..., ExecServer], engine: Engine, tmp_path: Path) -> None:
    names = fresh(3)
    server = own_server(token="the-token")
    async with Registry(*names[:2]) as registry:
        rows = [{"instance_id": f"t-{i}", "problem_statement": "x", "eval_script": "true"} for i in range(4)]
        for row, name in zip(rows, [*names, names[0]], strict=True):
            row["image"] = name
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags = (str(tmp_path / "tasks.jsonl"), "--servers", server.url, "--registry", registry.host)
        code, out, _ = await pull(*flags, SWE_SERVER_TOKEN="the-token")
        assert code == 1 and "3 images, 1 places, 1 failures" in out, out
        missing = [line for line in out.splitlines() if line.startswith(f"{registry.host}/")]
        assert len(missing) == 1 and names[2] in missing[0] and "manifest unknown" in missing[0]
        assert [held(engine, f"{registry.host}/{name}") for name in names] == [True, True, False]
        assert registry.asked[names[0]] == 1, "a name that stands twice is pulled once"
        code, out, _ = await pull(*flags, SWE_SERVER_TOKEN="wrong")
        assert code == 1 and "HTTP 401" in out


async def test_a_list_into_this_machines_engine(engine: Engine, tmp_path: Path) -> None:
    """With credentials; what the engine holds is not asked for; a name without tag is one image, not all of its tags."""
    repository = uuid.uuid4().hex
    async with Registry(f"{repository}:latest", f"{repository}:other", password="pw") as registry:
        auth = base64.b64encode(b"user:pw").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        (tmp_path / "images.txt").write_text(f"{registry.host}/{repository} # the newest\n\n{TEST_IMAGE}\nno image\n")
        flags = (str(tmp_path / "images.txt"), "--registry-config", str(tmp_path / "config.json"))
        code, out, _ = await pull(*flags, DOCKER_HOST=engine.host)
        assert code == 1 and "3 images, 1 places, 1 failures" in out and "'no image' is not an image reference" in out
        assert registry.asked[f"{repository}:latest"] == 1 and not registry.asked[f"{repository}:other"]
        assert held(engine, f"{registry.host}/{repository}:latest")


async def test_a_registry_that_cannot_be_reached_is_said(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text("127.0.0.1:1/no/such:1\n")
    flags = (str(tmp_path / "images.txt"), "--timeout", "3")
    code, out, _ = await pull(*flags, DOCKER_HOST=engine.host)
    assert code == 1 and "gave up after" in out and "connection refused" in out
    code, out, err = await pull(*flags, DOCKER_HOST="unix:///no/such.sock")
    assert code == 1 and "/no/such.sock" in out and "Traceback" not in err


async def test_nothing_to_pull_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text("# none\n")
    for path in (tmp_path / "images.txt", tmp_path / "missing.txt"):
        code, _, err = await pull(str(path))
        assert code == 2 and str(path) in err and "Traceback" not in err

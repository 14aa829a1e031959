"""The client over the pool: answers that were lost are fetched by key, lost sandboxes become SandboxError at once."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError, SandboxUnavailable, UsageError
from swe_rl.sandbox import pool as pool_client
from swe_rl.sandbox import pool_sandbox
from swe_rl.sandbox.pool import PoolProvider
from swe_rl.sandbox.protocol import Sandbox
from swe_rl.tasks.images import with_registry
from swe_rl.types import Task
from tests.pool.conftest import until

TASK = Task(instance_id="t-1", problem_statement="", image="img")


@pytest.fixture(params=["through the pool", "direct"])
async def opened(request, nodes, pools, monkeypatch):
    """(node, pool, provider) with each way that commands can go."""
    monkeypatch.setattr(pool_client, "CLOSE_WAIT", 0.2)
    node = await nodes()
    pool = await pools(node.url)
    provider = PoolProvider(pool.url, go_direct=request.param == "direct", heartbeat_interval=0.1)
    yield node, pool, provider
    await provider.aclose()


async def test_open_run_close(opened) -> None:
    node, pool, provider = opened
    sandbox = await provider.open(TASK, deadline=Deadline(20), purpose="agent")
    assert isinstance(sandbox, Sandbox)
    result = await sandbox.exec("echo hi", timeout=5)
    assert (result.returncode, result.output) == (0, "echo hi")
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    await until(lambda: node.containers == {} and pool.pool.book.active() == [])
    with pytest.raises(SandboxError):
        await sandbox.exec("echo hi", timeout=5)


async def test_a_lost_answer_is_fetched_not_run_again(opened) -> None:
    node, _, provider = opened
    sandbox = await provider.open(TASK, deadline=Deadline(20), purpose="agent")
    node.lose_answers = 3
    assert (await sandbox.exec("effect", timeout=5)).output == "effect"
    assert node.runs == ["effect"]


async def test_whatever_a_model_writes_is_an_answer_not_a_crash(opened) -> None:
    node, _, provider = opened
    sandbox = await provider.open(TASK, deadline=Deadline(20), purpose="agent")
    for command in ("echo \0", "echo \ud800", "x" * 8_000_001):
        assert (await sandbox.exec(command, timeout=5)).returncode == 126
    assert (await sandbox.exec("true", timeout=0)).timed_out
    assert node.runs == []


async def test_heartbeats_keep_a_lease_and_tell_of_its_loss(opened) -> None:
    node, pool, provider = opened
    sandbox = await provider.open(TASK, deadline=Deadline(500), purpose="agent")
    lease = pool.pool.book.leases[sandbox.lease_id]
    before = lease.expires_at
    await until(lambda: lease.expires_at > before)
    node.exec_gate.clear()
    running = asyncio.create_task(sandbox.exec("sleep", timeout=600))
    await until(lambda: node.runs == ["sleep"])
    node.containers.clear()
    with pytest.raises(SandboxError, match="gone"):
        await asyncio.wait_for(running, 10)


async def test_an_attempt_may_take_longer_than_a_pool_grants_at_once(opened) -> None:
    _, pool, provider = opened
    sandbox = await provider.open(TASK, deadline=Deadline(1e9), purpose="agent")
    lease = pool.pool.book.leases[sandbox.lease_id]
    before = lease.deadline_at
    await until(lambda: lease.deadline_at > before)


async def test_a_node_lost_while_a_command_runs_is_an_infra_error(opened, monkeypatch) -> None:
    monkeypatch.setattr(pool_sandbox, "NODE_LOST_SECONDS", 0.5)
    node, _, provider = opened
    sandbox = await provider.open(TASK, deadline=Deadline(20), purpose="agent")
    node.exec_gate.clear()
    running = asyncio.create_task(sandbox.exec("sleep", timeout=600))
    await until(lambda: node.runs == ["sleep"])
    await node.kill()
    with pytest.raises(SandboxError):
        await asyncio.wait_for(running, 20)


async def test_the_client_outlives_a_restart_of_the_pool(opened) -> None:
    node, pool, provider = opened
    sandbox = await provider.open(TASK, deadline=Deadline(20), purpose="agent")
    await pool.stop()
    running = asyncio.create_task(sandbox.exec("during", timeout=10))
    opening = asyncio.create_task(provider.open(TASK, deadline=Deadline(20), purpose="grade"))
    await asyncio.sleep(0.3)
    await pool.start()
    assert (await running).output == "during" and node.runs == ["during"]
    second = await opening
    assert sandbox.lease_id != second.lease_id and node.creates == 2


async def test_no_sandbox_before_the_deadline(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url, capacity=1)
    provider = PoolProvider(pool.url)
    first = await provider.open(TASK, deadline=Deadline(20), purpose="agent")
    with pytest.raises(SandboxUnavailable):
        await provider.open(TASK, deadline=Deadline(1.2), purpose="agent")
    await first.close()
    await (await provider.open(TASK, deadline=Deadline(20), purpose="agent")).close()
    await provider.aclose()


async def test_a_cancelled_open_leaves_no_lease(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    provider = PoolProvider(pool.url)
    node.create_gate.clear()
    opening = asyncio.create_task(provider.open(TASK, deadline=Deadline(20), purpose="agent"))
    await until(lambda: node.creates == 1)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    node.create_gate.set()
    await until(lambda: pool.pool.book.active() == [] and node.containers == {})
    await provider.aclose()


async def test_a_dead_pool_and_a_wrong_token_are_told_apart(pools) -> None:
    provider = PoolProvider("http://127.0.0.1:9", token="x")
    with pytest.raises(SandboxUnavailable, match="does not answer"):
        await provider.open(TASK, deadline=Deadline(0.5), purpose="agent")
    await provider.aclose()
    pool = await pools(token="right-token")
    provider = PoolProvider(pool.url, token="wrong-token")
    with pytest.raises(UsageError, match="SWE_SERVER_TOKEN"):
        await provider.open(TASK, deadline=Deadline(5), purpose="agent")
    await provider.aclose()


@pytest.mark.parametrize(
    ("image", "registry", "name"),
    [
        ("sweb/x:1", "", "sweb/x:1"),
        ("sweb/x:1", "reg.local:5000/swe/", "reg.local:5000/swe/sweb/x:1"),
        ("docker.io/sweb/x:1", "reg.local:5000", "docker.io/sweb/x:1"),
        ("localhost/x", "reg.local:5000", "localhost/x"),
        ("x:1", "reg.local", "reg.local/x:1"),
        ("", "reg.local", ""),
    ],
)
def test_image_names_below_a_registry(image: str, registry: str, name: str) -> None:
    assert with_registry(image, registry) == name


async def test_a_certificate_of_an_unknown_authority_is_wrong_use(tmp_path: Path) -> None:
    """Said at once with the setting that mends it, not tried again until the deadline."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    process = await asyncio.create_subprocess_exec(*make, stderr=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "localhost", 0, ssl=context)
    provider = PoolProvider(f"https://localhost:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(UsageError, match="SSL_CERT_FILE"):
        await asyncio.wait_for(provider.open(TASK, deadline=Deadline(60), purpose="agent"), 30)
    await provider.aclose()
    server.close()

"""`swe-rl nodes` against a real sshd on loopback with keys of its own, and a real Docker Engine behind it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from swe_rl.cli import main
from swe_rl.errors import UsageError
from swe_rl.sandbox.nodes.actions import LABEL
from swe_rl.sandbox.nodes.command import build_package
from swe_rl.sandbox.nodes.ssh import Host, Login, SshError, read_hosts, split_port
from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.registry import Registry
from tests.exec_server.server import ExecServer

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Sshd:
    """A running server and what a client needs to get in."""

    address: str
    login: Login
    folder: Path

    def flags(self) -> list[str]:
        login = ["--ssh-user", self.login.user, "--ssh-key", self.login.key, "--known-hosts", self.login.known_hosts]
        return ["--hosts", self.address, *login]


def keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Sshd]:
    if SSHD is None or os.geteuid() != 0:
        pytest.skip("needs openssh-server and root")
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user", "other"):
        keygen(folder / name)
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile {folder}/pid\nSubsystem sftp internal-sftp\n"
        f"PermitRootLogin prohibit-password\nSetEnv DOCKER_HOST={engine.host} PATH={os.environ['PATH']}\n"
    )
    for _ in range(3):
        server, port = _start(folder)
        if port:
            break
    try:
        assert port, (folder / "log").read_text()
        host_key = (folder / "host.pub").read_text().split()[:2]
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {' '.join(host_key)}\n")
        (folder / "empty").write_text("")
        yield Sshd(f"127.0.0.1:{port}", Login("root", str(folder / "user"), str(folder / "known_hosts")), folder)
    finally:
        server.terminate()
        server.wait(timeout=10)


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """An sshd on a free port; port 0: it has ended, for somebody else took the port before it did."""
    assert SSHD is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "pid").unlink(missing_ok=True)
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-p", str(port), "-f", str(folder / "config")], stderr=log)
    ends = time.monotonic() + 60
    while not (folder / "pid").exists():  # written when it listens
        if server.poll() is not None:
            return server, 0
        assert time.monotonic() < ends, "sshd does not listen"
        time.sleep(0.05)
    return server, port


def test_addresses_and_host_lists(tmp_path: Path) -> None:
    assert split_port("node1") == ("node1", 22)
    assert split_port("node1:2222") == ("node1", 2222)
    assert split_port("[fe80::1]:2222") == ("fe80::1", 2222)
    assert split_port("fe80::1") == ("fe80::1", 22)
    assert read_hosts("a, b,a,") == ["a", "b"]
    (tmp_path / "hosts").write_text("a # first\n\n# none\nb:22\n")
    assert read_hosts(str(tmp_path / "hosts")) == ["a", "b:22"]
    with pytest.raises(UsageError):
        read_hosts(" , ")


@pytest.mark.docker
def test_a_host_key_that_is_not_known_or_has_changed_is_refused(sshd: Sshd) -> None:
    login = Login("root", sshd.login.key, str(sshd.folder / "empty"))
    with pytest.raises(SshError, match="not found in known_hosts"), Host(sshd.address, login):
        pass
    changed = sshd.folder / "changed"
    key = (sshd.folder / "other.pub").read_text().split()[:2]
    changed.write_text(f"[127.0.0.1]:{split_port(sshd.address)[1]} {' '.join(key)}\n")
    with pytest.raises(SshError, match="has changed"), Host(sshd.address, Login("root", sshd.login.key, str(changed))):
        pass
    login = Login("root", str(sshd.folder / "other"), sshd.login.known_hosts)
    with pytest.raises(SshError, match="refused"), Host(sshd.address, login):
        pass


@pytest.mark.docker
def test_commands_are_bounded_and_secrets_go_through_stdin(sshd: Sshd) -> None:
    with Host(sshd.address, sshd.login) as host:
        end = host.run("cat; echo err >&2; exit 7", timeout=10, stdin=b"through stdin\n")
        assert (end.returncode, sorted(end.output.split("\n"))) == (7, ["", "err", "through stdin"])
        assert len(host.run("head -c 3000000 /dev/zero", timeout=30).output) == 1_000_000
        with pytest.raises(SshError, match="no end of the command"):
            host.run("sleep 30", timeout=0.5)
        host.put(b"data", f"{sshd.folder}/put", mode=0o600)
    assert (sshd.folder / "put").read_bytes() == b"data"


@pytest.mark.docker
def test_a_command_that_goes_on_with_its_output_closed_is_bounded(sshd: Sshd) -> None:
    with Host(sshd.address, sshd.login) as host:
        began = time.monotonic()
        with pytest.raises(SshError, match="no end of the command"):
            host.run("exec >&- 2>&-; sleep 20", timeout=1)
        assert time.monotonic() - began < 10


@contextlib.contextmanager
def status_server(body: bytes) -> Iterator[int]:
    """The port of a server that answers everything with `body`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@pytest.mark.docker
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"<html>not an exec server", 1, "not as an exec server does"),
        (b"[1, 2]", 1, "not as an exec server does"),
        (json.dumps({"images": ["x" * 100] * 20_000, "containers": [1, 2]}).encode(), 0, "2 containers"),
    ],
)
def test_status_of_what_may_answer(sshd: Sshd, body: bytes, code: int, said: str, capsys) -> None:
    with status_server(body) as port:
        assert main(["nodes", "status", *sshd.flags(), "--port", str(port)]) == code
    captured = capsys.readouterr()
    assert said in (captured.err if code else captured.out)


@pytest.mark.docker
def test_status_fails_where_engine_or_server_is_down(sshd: Sshd, capsys, monkeypatch) -> None:
    assert main(["nodes", "status", *sshd.flags(), "--port", "1"]) == 1
    captured = capsys.readouterr()
    assert f"FAILED {sshd.address}: engine 2" in captured.err and "exec server DOWN" in captured.err
    assert "1 of 1 hosts failed" in captured.err and not captured.out
    run = Host.run
    no_engine = "DOCKER_HOST=unix:///none docker info"
    monkeypatch.setattr(
        Host, "run", lambda self, command, **more: run(self, command.replace("docker info", no_engine), **more)
    )
    with status_server(b'{"containers": []}') as port:
        assert main(["nodes", "status", *sshd.flags(), "--port", str(port)]) == 1
    assert "engine DOWN; exec server up" in capsys.readouterr().err


@pytest.mark.docker
def test_clean_lists_first_and_removes_only_what_is_labelled(sshd: Sshd, engine: Engine, capsys) -> None:
    ours = engine.docker("run", "-d", "--network", "none", "--label", f"{LABEL}=1", TEST_IMAGE, "sleep", "300").strip()
    ended = engine.docker("run", "-d", "--network", "none", "--label", f"{LABEL}=1", TEST_IMAGE, "false").strip()
    other = engine.docker("run", "-d", "--network", "none", TEST_IMAGE, "sleep", "300").strip()
    engine.docker("wait", ended)
    try:
        assert main(["nodes", "clean", *sshd.flags()]) == 0
        listed = capsys.readouterr().out
        assert ours[:12] in listed and ended[:12] in listed and other[:12] not in listed
        assert ours[:12] in engine.docker("ps", "-q")
        assert main(["nodes", "clean", *sshd.flags(), "--yes"]) == 0
        left = engine.docker("ps", "-aq")
        assert ours[:12] not in left and ended[:12] not in left and other[:12] in left
    finally:
        engine.docker("rm", "-f", ours, ended, other)


@pytest.mark.docker
def test_pull_counts_what_is_there_and_fails_honestly(sshd: Sshd, tmp_path: Path, capsys) -> None:
    images = tmp_path / "images"
    images.write_text(f"{TEST_IMAGE}\n{TEST_IMAGE}\n")
    flags = [*sshd.flags(), "--images", str(images), "--port", "1"]
    assert main(["nodes", "pull", *flags]) == 0
    captured = capsys.readouterr()
    assert "1 images on 1 hosts, 0 failures" in captured.out
    assert f"{sshd.address}: pulled by docker" in captured.err and "port 1: curl" in captured.err
    images.write_text(f"{TEST_IMAGE}\n127.0.0.1:1/no/such:image\n$(touch x)\n")
    assert main(["nodes", "pull", *flags]) == 1
    captured = capsys.readouterr()
    assert "2 failures" in captured.out and "no image name" in captured.err


@pytest.mark.docker
async def test_pull_goes_through_the_exec_server(
    sshd: Sshd, engine: Engine, tmp_path: Path, capsys, monkeypatch
) -> None:
    """With the credentials that only the server has; the image is known to it, so that it can be evicted."""
    name, token = f"{uuid.uuid4().hex}/a:1", 'a "token" \\ with marks'
    monkeypatch.setenv("SWE_SERVER_TOKEN", token)
    images, config = tmp_path / "images", tmp_path / "config.json"
    server = ExecServer(engine, tmp_path, "--registry-config", str(config), token=token)
    async with Registry(name, password="pw") as registry:
        auth = base64.b64encode(b"user:pw").decode()
        config.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        images.write_text(f"{registry.host}/{name}\n")
        try:
            server.start()
            command = ["nodes", "pull", *sshd.flags(), "--images", str(images), "--port", str(server.port)]
            for _ in ("pulled", "already there"):
                assert await asyncio.to_thread(main, command) == 0
                assert "pulled by docker" not in capsys.readouterr().err
            headers = {"Authorization": f"Bearer {token}"}
            async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{server.url}/images") as answer:
                rows = (await answer.json())["details"]
            assert [bool(row["used_at"]) for row in rows if f"{registry.host}/{name}" in row["tags"]] == [True]
            images.write_text(f"{registry.host}/no/such:1\n")
            assert await asyncio.to_thread(main, command) == 1
            assert "manifest unknown" in capsys.readouterr().err
        finally:
            server.stop()


@pytest.mark.docker
def test_one_dead_host_does_not_hide_the_others(sshd: Sshd, capsys) -> None:
    flags = sshd.flags()
    flags[1] += ",127.0.0.1:1"
    with status_server(b'{"containers": []}') as port:
        assert main(["nodes", "status", *flags, "--port", str(port)]) == 1
    captured = capsys.readouterr()
    assert f"{sshd.address}: engine 2" in captured.out
    assert "FAILED 127.0.0.1:1" in captured.err and "1 of 2 hosts failed" in captured.err


def test_wrong_use_says_what_is_missing(monkeypatch, capsys) -> None:
    monkeypatch.delenv("SWE_SERVER_TOKEN", raising=False)
    assert main(["nodes", "setup", "--hosts", "a"]) == 2
    assert "SWE_SERVER_TOKEN" in capsys.readouterr().err
    assert main(["nodes", "pull", "--hosts", "a"]) == 2
    assert "--images" in capsys.readouterr().err


def test_the_package_holds_the_sources_only(tmp_path: Path) -> None:
    with tarfile.open(build_package(tmp_path)) as archive:
        names = archive.getnames()
    assert "swe-rl/swe_rl/sandbox/exec_server/command.py" in names and "swe-rl/pyproject.toml" in names
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


@pytest.mark.docker
def test_setup_says_what_it_would_do_and_hides_the_token(sshd: Sshd, monkeypatch, capsys) -> None:
    before = _left_by_setup()
    monkeypatch.setenv("SWE_SERVER_TOKEN", "token-for-the-node")
    assert main(["nodes", "setup", *sshd.flags(), "--setup-flags=--dry-run"]) == 0
    captured = capsys.readouterr()
    assert "systemctl" in captured.out and "token-for-the-node" not in captured.out + captured.err
    assert main(["nodes", "setup", *sshd.flags(), "--setup-flags=--no-such-flag"]) == 1
    assert "--no-such-flag" in capsys.readouterr().err
    assert _left_by_setup() <= before


def _left_by_setup() -> set[Path]:
    return {path for names in ("swe-rl-setup.*", "swe-rl-package-*") for path in Path("/tmp").glob(names)}


@pytest.mark.docker
@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="here setup would make this machine a node")
def test_setup_without_systemd_is_refused_before_anything_changes(sshd: Sshd, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("SWE_SERVER_TOKEN", "token-for-the-node")
    prefix = tmp_path / "prefix"
    assert main(["nodes", "setup", *sshd.flags(), f"--setup-flags=--prefix {prefix}"]) == 1
    assert "not run by systemd: with --no-service" in capsys.readouterr().err
    assert not prefix.exists()


@contextlib.contextmanager
def running(command: list[str], env: dict[str, str], folder: Path) -> Iterator[str]:
    """The URL of a server that `command` starts; SIGTERM must end it."""
    port_file, log = folder / "port", folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen([*command, "--port", "0", "--port-file", str(port_file)], env=env, stderr=out)
    try:
        while not port_file.exists():
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port_file.read_text()}"
        server.terminate()
        assert server.wait(timeout=30) == 0
    finally:
        server.kill()
        server.wait(timeout=10)


@pytest.mark.docker
async def test_setup_installs_a_server_that_grades(sshd: Sshd, engine: Engine, monkeypatch, capsys, tmp_path) -> None:
    """All of it but the systemd unit: the machine's own interpreter, only the libraries that a node needs, over ssh."""
    token = "token $(for) the 'node'"
    monkeypatch.setenv("SWE_SERVER_TOKEN", token)
    prefix = tmp_path / "the prefix"
    flags = f"--no-service --prefix '{prefix}' -- --memory-mb 300"
    assert await asyncio.to_thread(main, ["nodes", "setup", *sshd.flags(), f"--setup-flags={flags}"]) == 0
    assert f"{prefix}/exec-server.sh" in capsys.readouterr().out
    assert (prefix / "exec-server.env").stat().st_mode & 0o777 == 0o600
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_HOST": engine.host}
    with running([str(prefix / "exec-server.sh"), "--exit-with-parent"], env, tmp_path) as url:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:

            async def post(path: str, **body: Any) -> dict[str, Any]:
                async with session.post(url + path, json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    return await answer.json()

            box = (await post("/container/create", image=TEST_IMAGE, cwd="/testbed"))["container_id"]
            memory = engine.docker("inspect", "--format", "{{.HostConfig.Memory}}", box)
            assert int(memory) == 300 << 20, "flags after -- reach the server"
            mounts = engine.docker("inspect", "--format", "{{json .HostConfig.Mounts}}", box)
            assert f"{prefix}/cache/swe-rl/supervisor-" in mounts, "the supervisor was compiled there"
            await post("/container/exec", container_id=box, command="git init -q; git commit -q --allow-empty -m base")
            fields = {"container_id": box, "patch": NEW_FILE, "eval_script": "grep line new", "cwd": "/testbed"}
            assert (await post("/container/evaluate", **fields))["verdict"] == "resolved"
            await post("/container/destroy", container_id=box)


NEW_FILE = "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+line\n"

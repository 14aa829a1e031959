"""Fast checks without an engine: bounds of limits, of output and of the answer store; image names; the bind rule."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from swe_rl.errors import ConfigError, UsageError
from swe_rl.sandbox.container.container import Container
from swe_rl.sandbox.container.engine import Engine as EngineApi
from swe_rl.sandbox.container.errors import CommandInterrupted, ContainerGone, ImageMissing
from swe_rl.sandbox.container.image_names import (
    auth_header,
    candidates,
    load_credentials,
    normalized,
    registry_of,
    repository,
)
from swe_rl.sandbox.container.limits import Limits, host_config
from swe_rl.sandbox.container.pull import failure
from swe_rl.sandbox.container.supervisor import Outcome
from swe_rl.sandbox.exec_server import answers as answers_module
from swe_rl.sandbox.exec_server import main
from swe_rl.sandbox.exec_server.answers import Answers, open_database
from swe_rl.sandbox.exec_server.faults import ExecFault
from swe_rl.sandbox.exec_server.serving import exec_server
from swe_rl.sandbox.exec_server.settings import ExecSettings

FRACTIONS = ({"pids": 0.5}, {"memory_mb": 0.5}, {"cpus": 1e-10}, {"cpus": 0.009})  # 0 would be no limit at all


def test_limits_narrow_and_never_widen() -> None:
    limits = Limits(memory_mb=100, cpus=2.0, pids=50, network=True)
    assert limits.narrowed({"memory_mb": 60, "network": False}) == Limits(memory_mb=60, cpus=2.0, pids=50)
    for wrong in ({"memory_mb": 101}, {"cpus": float("nan")}, {"pids": True}, {"pids": 0}, {"nothing": 1}, *FRACTIONS):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            limits.narrowed(wrong)


def test_hardening_is_complete() -> None:
    config = host_config(Limits(), disk_quota=True)
    assert config["CapDrop"] == ["ALL"] and config["SecurityOpt"] == ["no-new-privileges"]
    assert config["NetworkMode"] == "none" and config["StorageOpt"] == {"size": "10240m"}
    assert not {"Privileged", "Binds", "Devices", "PidMode", "IpcMode"} & config.keys()


@pytest.mark.parametrize("total", [0, 9, 10, 11, 15, 1000])
def test_output_is_whole_or_says_its_cut(total: int) -> None:
    data = bytes(33 + i % 90 for i in range(total))
    head, tail = data[:1024], data[1024:][-5:]
    result = Outcome(0, False, head, tail, total, 10, 0.0).result()
    assert result.truncated == (total > 10)
    if total > 10:
        assert result.output.startswith(data[:5].decode()) and result.output.endswith(data[-5:].decode())
        assert f"[... {total - 10} bytes of output left out ...]" in result.output
    else:
        assert result.output == data.decode()


@pytest.mark.parametrize(
    ("message", "hopeless"),
    [
        ("manifest for r/x:1 not found: manifest unknown", True),
        ('Get "https://r/v2/": http: server gave HTTP response to HTTPS client', True),
        ("toomanyrequests: You have reached your pull rate limit", False),
        ("dial tcp 127.0.0.1:1: connect: connection refused", False),
        ("unauthorized: request timeout", False),
    ],
)
def test_pull_failures_that_no_retry_can_mend(message: str, hopeless: bool) -> None:
    assert isinstance(failure("r/x:1", message), ImageMissing) == hopeless


def test_names_of_images_decide_nothing() -> None:
    missing = "manifest for h:5000/eval/async-timeout:1 not found: manifest unknown"
    assert isinstance(failure("h:5000/eval/async-timeout:1", missing), ImageMissing)
    refused = "Get https://h:5000/v2/eval/denied/manifests/1: net/http: TLS handshake error"
    assert not isinstance(failure("h:5000/eval/denied:1", refused), ImageMissing)


def test_image_names() -> None:
    assert normalized("a/b") == "a/b:latest" and normalized("h:5000/a") == "h:5000/a:latest"
    assert normalized("a@sha256:00") == "a@sha256:00"
    assert normalized("docker.io/library/python:3") == "python:3" and normalized("docker.io/a/b") == "a/b:latest"
    assert registry_of("a/b") == "docker.io" and registry_of("ghcr.io/a/b") == "ghcr.io"
    assert repository("h:5000/a/b:1") == "a/b" and repository("python:3@sha256:00") == "python"
    assert candidates("python:3", ["m.local/hub/"]) == ["m.local/hub/library/python:3", "python:3"]
    assert candidates("ghcr.io/a/b:1", ["m.local"]) == ["ghcr.io/a/b:1"]
    assert candidates("python@sha256:00", ["m.local"]) == ["python@sha256:00"]
    for wrong in ("", "a b", "-x", "a\n", "../x;y"):
        with pytest.raises(UsageError):
            normalized(wrong)


def test_registry_credentials(tmp_path: Path) -> None:
    secret = base64.b64encode(b"user:pass:word").decode()
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": secret}, "r.io": {"auth": secret}}}))
    credentials = load_credentials(str(file))
    sent = json.loads(base64.urlsafe_b64decode(auth_header("a/b", credentials)["X-Registry-Auth"]))
    assert (sent["username"], sent["password"]) == ("user", "pass:word")
    assert auth_header("other.io/a", credentials) == {} and "X-Registry-Auth" in auth_header("r.io/a", credentials)
    file.write_text("{broken")
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_credentials(str(file))


class Work:
    """Counts how often it was done."""

    def __init__(self, error: Exception | None = None) -> None:
        self.done, self.error, self.gate = 0, error, asyncio.Event()
        self.gate.set()

    async def __call__(self) -> dict[str, Any]:
        self.done += 1
        await self.gate.wait()
        if self.error:
            raise self.error
        return {"done": self.done}


async def test_answers_are_given_once_and_kept(tmp_path: Path) -> None:
    path, work = str(tmp_path / "db"), Work()
    answers = Answers(open_database(path))
    work.gate.clear()
    waiting = [asyncio.create_task(answers.once("k", b"r", work)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # its caller went away: the others still get the answer
    work.gate.set()
    assert await waiting[1] == await waiting[2] == b'{"ok": true, "done": 1}'
    assert await Answers(open_database(path)).once("k", b"r", work) == b'{"ok": true, "done": 1}' and work.done == 1
    with pytest.raises(ExecFault) as refused:
        await answers.once("k", b"other", work)
    assert refused.value.kind == "key_conflict"


async def test_an_unfinished_key_is_not_run_again(tmp_path: Path) -> None:
    path, work = str(tmp_path / "db"), Work()
    first = Answers(open_database(path))
    work.gate.clear()
    cut = asyncio.create_task(first.once("k", b"r", work))
    await asyncio.sleep(0.01)
    await first.aclose()
    await asyncio.gather(cut, return_exceptions=True)
    work.gate.set()
    second = Answers(open_database(path))
    with pytest.raises(ExecFault) as unknown:
        await second.once("k", b"r", work)
    assert unknown.value.kind == "outcome_unknown" and work.done == 1
    assert await second.once("k", b"r", work, repeatable=True) == b'{"ok": true, "done": 2}'


@pytest.mark.parametrize(
    ("error", "again"), [(ContainerGone("x"), 2), (CommandInterrupted("x"), 1), (KeyError("bug"), 1)]
)
async def test_only_what_had_no_effect_may_be_repeated(tmp_path: Path, error: Exception, again: int) -> None:
    answers, work = Answers(open_database(str(tmp_path / "db"))), Work(error)
    for _ in range(2):
        with pytest.raises(Exception, match=r"x|bug|unknown"):
            await answers.once("k", b"r", work)
    assert work.done == again


async def test_the_store_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "KEEP_BYTES", 100)
    db = open_database(str(tmp_path / "db"))
    answers = Answers(db)
    answers._remember("running", b"", "started", b"")
    for number in range(50):
        await answers.once(f"k{number}", b"r", Work())
    answers.prune()
    kept = [row[0] for row in db.execute("SELECT key FROM answers")]
    assert 1 < len(kept) <= 1 + 100 // len(b'{"ok": true, "done": 1}') and {"k49", "running"} <= set(kept)


@pytest.mark.parametrize(
    "flags",
    [
        ["--host", "0.0.0.0"],
        ["--cpus", "0.001"],
        ["--pids", "3"],
        ["--disk-low", "0.9"],
        ["--memory-mb", "5"],
        ["--shm-mb", "0"],
        ["--docker-host", "x"],
    ],
)
def test_settings_that_cannot_work(flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWE_SERVER_TOKEN", raising=False)
    with pytest.raises(UsageError, match=flags[0]):
        main(["--database", str(tmp_path / "db"), *flags])


async def test_a_cancellation_in_the_moment_of_the_turn_is_not_lost() -> None:
    container = Container(EngineApi("unix:///none"), "id", "/", "image", {})
    await container._lock.acquire()
    waiting = asyncio.create_task(container.run(b"true", b"", timeout=10.0, output_limit=100))
    await asyncio.sleep(0.01)
    container._lock.release()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not container._lock.locked()


async def test_a_database_has_one_server(tmp_path: Path) -> None:
    settings = ExecSettings(str(tmp_path / "db"), docker_host=f"unix://{tmp_path}/none", compiled=False)
    async with exec_server(settings, "127.0.0.1", 0):
        with pytest.raises(UsageError, match="another exec server"):
            async with exec_server(settings, "127.0.0.1", 0):
                pass
    async with exec_server(settings, "127.0.0.1", 0) as again:
        assert again.port

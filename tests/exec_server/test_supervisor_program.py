"""The compiled supervisor: made once, mounted read-only; wherever it cannot be had or mounted, the script serves."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from swe_rl.sandbox.container import native
from swe_rl.sandbox.container.container import PROGRAM_TRIES, Container, Spec
from swe_rl.sandbox.container.engine import Engine as EngineApi
from swe_rl.sandbox.container.limits import SUPERVISOR_PROGRAM, Limits, host_config
from tests.docker_engine import TEST_IMAGE, Engine
from tests.exec_server.conftest import Box

SPEC = Spec(TEST_IMAGE, "/testbed", limits=Limits(256, 1.0, 96))


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = native.build(tmp_path / "cache")
    assert os.access(made, os.X_OK) and b"/lib" not in Path(made).read_bytes()[:4096], "static: no program interpreter"
    monkeypatch.setattr(native, "COMPILERS", ())
    assert native.build(tmp_path / "cache") == made, "no compiler is needed any more"


def test_the_compiler_has_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-O2", "-Wall", "-Wextra", "-Werror"))
    assert native.build(tmp_path)


@pytest.mark.parametrize("compilers", [("no-such-compiler",), ("false",), ("true",)])
def test_without_a_compiler_the_script_serves(
    compilers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "COMPILERS", compilers)
    with caplog.at_level(logging.WARNING):
        assert native.build(tmp_path) == ""
    assert "script serves" in caplog.text and list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert native.build(tmp_path / "file") == ""


def test_nothing_else_is_mounted() -> None:
    mounts = host_config(Limits(), disk_quota=True, program="/x")["Mounts"]
    assert mounts == [{"Type": "bind", "Source": "/x", "Target": SUPERVISOR_PROGRAM, "ReadOnly": True}]
    assert "Mounts" not in host_config(Limits(), disk_quota=True)


@pytest.mark.docker
async def test_a_command_cannot_change_it(box: Box) -> None:
    program = Path(native.build())
    before = program.read_bytes()
    await box.run(f"p={SUPERVISOR_PROGRAM}; echo x > $p; rm -f $p; umount $p; chmod 777 $p; echo x > /proc/1/exe")
    assert program.read_bytes() == before and program.stat().st_mode & 0o777 == 0o755
    assert (await box.run("echo well"))["output"] == "well\n"


@pytest_asyncio.fixture
async def api(engine: Engine) -> AsyncIterator[EngineApi]:
    made = EngineApi(engine.host)
    yield made
    await made.aclose()


@pytest.mark.docker
@pytest.mark.parametrize("content", [None, b"not a program"])
async def test_an_engine_that_cannot_mount_it(api: EngineApi, content: bytes | None, tmp_path: Path) -> None:
    program = tmp_path / "program"
    if content is not None:
        program.write_bytes(content)
        program.chmod(0o755)
    api.program = str(program)
    for number in range(PROGRAM_TRIES):
        assert api.program, f"given up after {number}"
        container = await Container.create(api, SPEC)
        try:
            answer = await container.exec("head -c4 /proc/1/comm", timeout=30)
            assert answer.output == "bash"
            assert len(await api.listed()) == 1, "what did not start is gone"
        finally:
            await container.destroy()
    assert api.program == ""

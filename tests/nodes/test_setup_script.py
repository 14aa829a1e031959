"""`scripts/setup_exec_node.sh` run again, and the unit it writes, as systemd reads it. No package is installed here."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup_exec_node.sh"
UNIT = "swe-rl-exec-server.service"
NEEDS = ("dockerd", "cc", "python3")  # what it would install where it is missing
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(name) for name in NEEDS), reason="needs root, dockerd and cc"
)


def setup(*flags: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "SWE_SERVER_TOKEN"}
    env |= {} if token is None else {"SWE_SERVER_TOKEN": token}
    return subprocess.run([str(SCRIPT), *flags], env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A prefix with programs in place of a virtual environment: pip installs nothing, the server is never started."""
    programs = tmp_path / "the prefix" / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "swe-rl"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return tmp_path / "the prefix"


def test_the_token_stays_where_none_is_given(prefix: Path) -> None:
    flags = ("--no-service", "--prefix", str(prefix))
    file = prefix / "exec-server.env"
    assert setup(*flags, token="first-token").returncode == 0
    assert file.read_text() == "SWE_SERVER_TOKEN=first-token\n" and file.stat().st_mode & 0o777 == 0o600
    again = setup(*flags, "--", "--memory-mb", "8192")
    assert again.returncode == 0 and "'8192'" in (prefix / "exec-server.sh").read_text()
    assert file.read_text() == "SWE_SERVER_TOKEN=first-token\n" and file.stat().st_mode & 0o777 == 0o600
    assert setup(*flags, token="other-token").returncode == 0
    assert file.read_text() == "SWE_SERVER_TOKEN=other-token\n"
    assert setup(*flags, token="").returncode == 0  # given, and empty: from now on loopback only
    assert file.read_text() == "SWE_SERVER_TOKEN=\n"


def test_without_any_token_the_file_is_there_and_empty(prefix: Path) -> None:
    assert setup("--no-service", "--prefix", str(prefix)).returncode == 0
    assert (prefix / "exec-server.env").read_text() == "SWE_SERVER_TOKEN=\n"


@pytest.mark.parametrize("token", ["two\nlines", "back\\slash", "'quoted'"])
def test_a_token_that_systemd_would_read_differently_is_refused(prefix: Path, token: str) -> None:
    end = setup("--no-service", "--prefix", str(prefix), token=token)
    assert end.returncode == 2 and "SWE_SERVER_TOKEN" in end.stderr and not (prefix / "exec-server.env").exists()


@pytest.mark.parametrize("wrong", ["relative", "/a%h", "/a$b", '/a"b', "/a\nb"])
def test_a_prefix_that_no_unit_can_name_is_refused(wrong: str) -> None:
    end = setup("--dry-run", "--prefix", wrong)
    assert end.returncode == 2 and "--prefix" in end.stderr


def test_a_flag_of_two_lines_is_refused() -> None:
    end = setup("--dry-run", "--", "--pin", "a\nExecStartPre=/bin/false")
    assert end.returncode == 2 and "line end" in end.stderr


FLAGS = ["--registry-mirror", "hub.local:5000/a b", "--pin", 'it\'s $HOME 100% "x" \\n', "--access-log"]


@pytest.fixture
def unit(prefix: Path, tmp_path: Path) -> Path:
    """The unit that would be written for `prefix` and FLAGS."""
    said = setup("--dry-run", "--prefix", str(prefix), "--port", "5001", "--", *FLAGS, token="secret-token")
    assert said.returncode == 0 and "secret-token" not in said.stdout + said.stderr
    lines = said.stdout.splitlines()
    begin = lines.index(f"+ write /etc/systemd/system/{UNIT} (mode 0644)") + 1
    text = [line.removeprefix("    ") for line in lines[begin:] if line.startswith("    ") or not line]
    (tmp_path / UNIT).write_text("\n".join(text) + "\n")
    return tmp_path / UNIT


def test_the_unit_starts_the_server_with_its_flags(unit: Path, prefix: Path) -> None:
    settings = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line)
    # Double quotes and backslashes mean the same to systemd as to a shell; % and $ are written twice.
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(settings["ExecStart"])]
    assert words[:4] == [f"{prefix}/venv/bin/swe-rl", "exec-server", "--port", "5001"]
    assert words[4:] == ["--database", "/var/lib/swe-rl/exec.sqlite3", *FLAGS]
    assert settings["EnvironmentFile"] == "/etc/swe-rl/exec-server.env"
    assert (
        settings["KillMode"] == "mixed" and settings["Restart"] == "always" and settings["StateDirectory"] == "swe-rl"
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(unit: Path) -> None:
    for name in ("docker.service", "network-online.target"):  # a machine without them says so, which is not asked here
        kind = "[Service]\nExecStart=/bin/true\n" if name.endswith("service") else ""
        (unit.parent / name).write_text(f"[Unit]\nDescription=test\n{kind}")
    env = {**os.environ, "SYSTEMD_UNIT_PATH": f"{unit.parent}:"}
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    end = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    about = [line for line in end.stderr.splitlines() if UNIT in line or str(unit.parent) in line]
    assert end.returncode == 0 and not about, end.stderr

"""What holds for every shell script here, and what `scripts/test.sh` leaves out where tools or root are missing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("scripts", "data", "eval", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and (path.suffix == ".sh" or path.parent.name == ".ci") and "build" not in path.parts
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_end_no_strangers_and_hide_no_errors(script: str) -> None:
    lines = (ROOT / script).read_text().splitlines()
    text = "\n".join(lines)
    assert not re.search(r"\b(pkill|killall|ray stop)\b", text)
    assert "set -e" in text
    for before, line in zip(["", *lines], lines, strict=False):
        if re.search(r"\|\| *(true|:)(?!\S)", line):
            assert "#" in line or before.lstrip().startswith("#"), f"why may this fail? {line}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_arrays_that_begin_empty_work_with_old_bash(script: str) -> None:
    """`"${a[@]}"` of an empty array ends bash before 4.4 under `set -u`, unless its length was asked first."""
    text = (ROOT / script).read_text()
    for name in set(re.findall(r"^\s*(?:local )?(\w+)=\(\)", text, flags=re.MULTILINE)):
        bare = re.findall(rf"(?<!\+)\"\$\{{{name}\[@\]\}}\"", text)
        assert not bare or f"${{#{name}[@]}} -gt 0" in text, f"{name} may be empty"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """`scripts/test.sh` with stand-ins for all that it calls; `bin` is the whole PATH, but for the folders of root's tools."""
    for name, text in {
        "scripts/setup.sh": "true",
        "scripts/setup_sglang_cpu.sh": 'exit "${SGLANG_CODE:-0}"',
        ".venv/bin/activate": "true",
        "bin/id": 'echo "$USER_ID"',
        "bin/ruff": "true",
        "bin/mypy": "true",
        "bin/python": 'echo "tests: $*"',
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    for tool in ("bash", "dirname"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path / "scripts")
    return tmp_path


def checked(checkout: Path, *, user: int, tools: tuple[str, ...] = (), **more: str) -> str:
    for tool in tools:
        (checkout / "bin" / tool).write_text("#!/bin/bash\n")
        (checkout / "bin" / tool).chmod(0o755)
    env = {"PATH": str(checkout / "bin"), "USER_ID": str(user), **more}
    command = [str(checkout / "bin" / "bash"), "scripts/test.sh", "--no-slow"]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


ALL_TOOLS = ("bwrap", "dockerd", "docker", "cc", "podman", "runc", "sshd")


def test_root_with_all_tools_runs_all(checkout: Path) -> None:
    said = checked(checkout, user=0, tools=ALL_TOOLS)
    assert "left out" not in said and "and (sglang or not slow) --timeout" in said


def test_what_a_user_without_root_misses_is_said(checkout: Path) -> None:
    said = checked(checkout, user=1000, tools=ALL_TOOLS)
    assert "the docker tests are left out: starting a container engine needs root" in said
    assert "the podman tests are left out" in said and "(sglang or not slow) and not docker and not podman" in said


def test_without_apt_what_needs_missing_tools_is_left_out(checkout: Path) -> None:
    said = checked(checkout, user=0, tools=("bwrap", "dockerd", "docker", "cc", "sshd"))
    assert "not installed, for want of root or apt-get: podman" in said
    assert "the podman tests are left out: no podman" in said and "the docker tests" not in said
    assert "(sglang or not slow) and not podman" in said


def test_without_a_python_for_sglang_its_tests_are_left_out(checkout: Path) -> None:
    said = checked(checkout, user=0, tools=ALL_TOOLS, SGLANG_CODE="3")
    assert "the sglang tests are left out: it needs Python 3.11" in said
    assert "(sglang or not slow) and not sglang --timeout" in said
    with pytest.raises(subprocess.CalledProcessError):  # any other failure is one
        checked(checkout, user=0, tools=ALL_TOOLS, SGLANG_CODE="1")


@pytest.fixture
def sglang_setup(tmp_path: Path) -> Path:
    """`scripts/setup_sglang_cpu.sh` where the project's Python and `python3` are too old; `bin` is the whole PATH."""
    old = '#!/bin/bash\n[ "$1" != -c ] || exit 1\necho "old: $*"; exit 9\n'
    for name, text in {".venv/bin/python": old, "bin/python3": old, "constraints/sglang_cpu.txt": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for tool in ("bash", "dirname", "sha256sum", "cut"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup_sglang_cpu.sh", tmp_path / "scripts")
    return tmp_path


def set_up_sglang(checkout: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(checkout / "bin" / "bash"), "scripts/setup_sglang_cpu.sh"]
    env = {"PATH": str(checkout / "bin"), **more}
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_sglang_is_not_built_on_a_python_that_its_libraries_refuse(sglang_setup: Path) -> None:
    done = set_up_sglang(sglang_setup)
    assert (done.returncode, done.stdout) == (3, "")
    assert "SGLang needs Python 3.11 or newer, and none of these is: " in done.stderr and "python3.13" in done.stderr
    named = set_up_sglang(sglang_setup, PYTHON="python3")
    assert named.returncode == 3 and "none of these is: python3 (" in named.stderr


def test_sglang_is_built_on_a_newer_python_beside_an_old_project(sglang_setup: Path) -> None:
    new = sglang_setup / "bin" / "python3.12"
    new.write_text('#!/bin/bash\n[ "$1" != -c ] || exit 0\necho "new: $*"; exit 9\n')
    new.chmod(0o755)
    done = set_up_sglang(sglang_setup)
    target = sglang_setup / ".venv-sglang"
    assert done.stdout == f"new: -m venv {target}\n"
    (target / "bin").mkdir(parents=True)
    shutil.copy(sglang_setup / "bin" / "python3", target / "bin" / "python")  # left by a try with an older version
    assert set_up_sglang(sglang_setup).stdout == f"new: -m venv --clear {target}\n"

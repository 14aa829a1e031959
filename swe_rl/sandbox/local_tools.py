"""The Python environment of local sandboxes: pytest, pinned, and nothing else.

It is made once, at set-up. Sandboxes must not see the environment that runs this package: copies of the tasks' packages
there would hold the fix.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

from swe_rl.errors import SandboxError
from swe_rl.sandbox.local_system import interpreter

PYTEST = "pytest==8.4.2"
_RECORD = "swe-rl-tools.json"
_STEP_TIMEOUT = 300.0


def default_tools_env() -> Path:
    """`$SWE_RL_TOOLS_ENV`, else a folder in the user's cache, named by what it holds."""
    if configured := os.environ.get("SWE_RL_TOOLS_ENV"):
        return Path(configured)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "swe-rl" / "sandbox-env"


def ensure_tools_env(path: Path | None = None) -> Path:
    """Make the environment unless it is there already; safe to call from several processes at once.

    Raises SandboxError with the installer's last lines when that fails.
    """
    path = path or default_tools_env()
    wanted = json.dumps({"python": interpreter(), "packages": [PYTEST]})
    if _holds(path, wanted):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _holds(path, wanted):
            return path
        shutil.rmtree(path, ignore_errors=True)
        _step([interpreter(), "-m", "venv", str(path)])
        python = str(path / "bin" / "python")
        _step([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PYTEST])
        # No installer stays: without a network it only wastes an agent's turns.
        _step([python, "-m", "pip", "uninstall", "--quiet", "-y", "setuptools", "pip"])
        # Scripts name the interpreter by the folder they were made in; sandboxes mount it elsewhere.
        for name in ("pytest", "py.test"):
            script = path / "bin" / name
            script.write_text(
                "#!/usr/bin/env python3\nimport sys\n\nimport pytest\n\nsys.exit(pytest.console_main())\n"
            )
        _step(["chmod", "-R", "a+rX", str(path)])  # whatever the umask here: the sandboxes' user reads it
        (path / _RECORD).write_text(wanted)
    return path


def _holds(path: Path, wanted: str) -> bool:
    record = path / _RECORD
    return record.is_file() and record.read_text() == wanted


def _step(command: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env.pop("PIP_TARGET", None)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_STEP_TIMEOUT, env=env)
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).decode(errors="replace").strip()[-500:]
        raise SandboxError(f"the sandboxes' Python environment cannot be made ({' '.join(command[:4])}): {tail}")

"""The commands of a stored trajectory and what each printed: our own `traj.json` and mini-swe-agent's (1.x and 2.x)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.agent.parse import FormatError, parse_action
from swe_rl.errors import DataError

MAX_TRAJECTORY_BYTES = 256 << 20
_RETURNCODE = re.compile(r"<returncode>(-?\d+)</returncode>")
_OUTPUT = re.compile(r"<output>\n?(.*)</output>\s*\Z", re.DOTALL)
_HEAD_TAIL = re.compile(r"<output_head>\n?(.*)</output_head>.*?<output_tail>\n?(.*)</output_tail>\s*\Z", re.DOTALL)
_LEFT_OUT = re.compile(r"\n\[\d+ characters left out\]\n")


@dataclass
class StoredStep:
    """One command. `head` and `tail`: what is known of its output (`tail` is None where the output is whole)."""

    number: int
    command: str
    returncode: int | None = None  # None: not recorded (the command timed out or ended the attempt)
    head: str | None = None  # None: the output was not recorded
    tail: str | None = None


@dataclass
class StoredTrajectory:
    """What replaying needs. patch: the submission, "" where there is none; skipped: answers without exactly one command."""

    instance_id: str
    steps: list[StoredStep]
    patch: str = ""
    cwd: str = ""
    image: str = ""
    env: dict[str, str] = field(default_factory=dict)
    skipped: int = 0


def read_trajectory(path: Path) -> StoredTrajectory:
    """Read a traj.json, or the one inside an attempt's folder. Raises DataError naming what is wrong with it."""
    file = path / "traj.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"{file}: no such trajectory")
    if file.stat().st_size > MAX_TRAJECTORY_BYTES:
        raise DataError(f"{file}: the trajectory is larger than {MAX_TRAJECTORY_BYTES >> 20} MB")
    try:
        document = json.loads(file.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not a JSON trajectory: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        raise DataError(f"{file}: not a trajectory: it has no list of messages")
    info = document.get("info") if isinstance(document.get("info"), dict) else {}
    assert isinstance(info, dict)
    environment = _environment(info)
    stored = StoredTrajectory(
        instance_id=str(document.get("instance_id") or file.name.removesuffix(".traj.json")),
        steps=[],
        patch=str(info.get("submission") or ""),
        cwd=str(environment.get("cwd") or ""),
        image=str(environment.get("image") or "").removeprefix("docker.io/"),
        env={str(k): str(v) for k, v in (environment.get("env") or {}).items()},
    )
    steps = document.get("steps")
    if isinstance(steps, list) and steps:
        stored.steps = [step for index, raw in enumerate(steps) if (step := _own_step(index, raw))]
        stored.skipped = len(steps) - len(stored.steps)
    else:
        _steps_of_messages(document["messages"], stored)
    if not stored.steps:
        raise DataError(f"{file}: the trajectory holds no command")
    return stored


def _environment(info: dict[str, Any]) -> dict[str, Any]:
    config = info.get("config")
    environment = config.get("environment") if isinstance(config, dict) else None
    return environment if isinstance(environment, dict) else {}


def _own_step(index: int, raw: Any) -> StoredStep | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("action"), str):
        return None
    step = StoredStep(int(raw.get("step", index)), raw["action"])
    code = raw.get("returncode")
    step.returncode = None if raw.get("timed_out") or not isinstance(code, int) else code
    output = raw.get("output")
    if isinstance(output, str) and not raw.get("timed_out"):
        parts = _LEFT_OUT.split(output)
        step.head, step.tail = parts[0], parts[-1] if len(parts) > 1 else None
    return step


def _steps_of_messages(messages: list[Any], stored: StoredTrajectory) -> None:
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != "assistant":
            continue
        command = _command(str(message.get("content") or ""))
        if command is None:
            stored.skipped += 1
            continue
        step = StoredStep(len(stored.steps) + stored.skipped, command)
        following = messages[number + 1] if number + 1 < len(messages) else None
        if isinstance(following, dict) and following.get("role") in ("user", "tool"):
            _observe(step, str(following.get("content") or ""))
        stored.steps.append(step)


def _command(answer: str) -> str | None:
    for language in ("bash", "mswea_bash_command"):
        try:
            return parse_action(answer, language)
        except FormatError as error:
            if error.count:
                return None
    return None


def _observe(step: StoredStep, observation: str) -> None:
    code = _RETURNCODE.match(observation.lstrip())
    if code is None:
        return
    step.returncode = int(code[1])
    if parts := _HEAD_TAIL.search(observation):
        step.head, step.tail = parts[1].removesuffix("\n"), parts[2].removesuffix("\n")
    elif whole := _OUTPUT.search(observation):
        step.head = whole[1]

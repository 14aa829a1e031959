"""The commands of a stored trajectory and what each printed: our own `traj.json` and mini-swe-agent's (1.x and 2.x)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.agent.observation import clean_text
from swe_rl.agent.parse import FormatError, parse_action
from swe_rl.errors import DataError

MAX_TRAJECTORY_BYTES = 256 << 20
_RETURNCODE = re.compile(r"<returncode>(-?\d+)</returncode>")
_OUTPUT = re.compile(r"<output>\n?(.*)</output>\s*\Z", re.DOTALL)
_HEAD_TAIL = re.compile(r"<output_head>\n?(.*)</output_head>.*?<output_tail>\n?(.*)</output_tail>\s*\Z", re.DOTALL)
NOT_RUN = "action was not executed"  # mini-swe-agent 2.x of the commands after one that ended the attempt
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
        env=_variables(file, environment.get("env")),
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


def _variables(file: Path, env: Any) -> dict[str, str]:
    if not isinstance(env or {}, dict):
        raise DataError(f"{file}: info.config.environment.env is {type(env).__name__}, not an object of variables")
    return {str(name): str(value) for name, value in (env or {}).items()}


def _own_step(index: int, raw: Any) -> StoredStep | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("action"), str):
        return None
    number = raw.get("step")
    step = StoredStep(number if isinstance(number, int) else index, raw["action"])
    code = raw.get("returncode")
    step.returncode = None if raw.get("timed_out") or not isinstance(code, int) else code
    output = raw.get("output")
    if isinstance(output, str) and not raw.get("timed_out"):
        parts = _LEFT_OUT.split(output)
        step.head, step.tail = parts[0], parts[-1] if len(parts) > 1 else None
    return step


def _steps_of_messages(messages: list[Any], stored: StoredTrajectory) -> None:
    """Steps of each answer's commands, with the results that stand between it and the next answer."""
    known = [message for message in messages if isinstance(message, dict)]
    answers = [number for number, message in enumerate(known) if _is_answer(message)]
    for number, following in zip(answers, [*answers[1:], len(known)], strict=False):
        results = known[number + 1 : following]
        by_call = {
            str(key): result for result in results if (key := result.get("tool_call_id") or result.get("call_id"))
        }
        in_turn = [result for result in results if result.get("role") in ("user", "tool")]
        actions = _actions(known[number])
        if not actions:
            stored.skipped += 1
        for index, (command, call) in enumerate(actions):
            step = StoredStep(len(stored.steps) + stored.skipped, command)
            result = by_call.get(call) if by_call else next(iter(in_turn[index : index + 1]), None)
            if result is None or _observe(step, result):
                stored.steps.append(step)


def _is_answer(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant" or message.get("object") == "response"  # the latter: OpenAI's responses


def _actions(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """(command, id of its call or "") of one answer: as mini-swe-agent 2.x took them from it, else of its tool calls, else
    of its text."""
    actions = _extra(answer).get("actions")
    if not isinstance(actions, list):
        calls = answer.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            command = _command(_text(answer))
            return [] if command is None else [(command, "")]
        actions = [_arguments(call) for call in calls]
    known = [action for action in actions if isinstance(action, dict) and isinstance(action.get("command"), str)]
    return [(action["command"], str(action.get("tool_call_id") or "")) for action in known]


def _arguments(call: Any) -> dict[str, Any]:
    """A tool call's arguments and id, {} where they cannot be read."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return {}
    return {**values, "tool_call_id": call.get("id")} if isinstance(values, dict) else {}


def _extra(message: dict[str, Any]) -> dict[str, Any]:
    extra = message.get("extra")
    return extra if isinstance(extra, dict) else {}


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or message.get("output") or ""
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content)


def _command(answer: str) -> str | None:
    for language in ("bash", "mswea_bash_command"):
        try:
            return parse_action(answer, language)
        except FormatError as error:
            if error.count:
                return None
    return None


def _observe(step: StoredStep, result: dict[str, Any]) -> bool:
    """Put what is known of the command's result into `step`; False where the command was never run."""
    extra = _extra(result)
    if "returncode" in extra or "raw_output" in extra:
        if extra.get("exception_info"):  # timed out, say; 2.x writes -1 for the exit code
            return extra["exception_info"] != NOT_RUN
        code, output = extra.get("returncode"), extra.get("raw_output")
        step.returncode = code if isinstance(code, int) else None
        step.head = clean_text(output) if isinstance(output, str) else None
        return True
    observation = _text(result)
    code_line = _RETURNCODE.match(observation.lstrip())
    if code_line is None:
        return True
    step.returncode = int(code_line[1])
    if parts := _HEAD_TAIL.search(observation):
        step.head, step.tail = parts[1].removesuffix("\n"), parts[2].removesuffix("\n")
    elif whole := _OUTPUT.search(observation):
        step.head = whole[1]
    return True

"""What an attempt leaves on disk: traj.json, patch.diff, meta.json, turns.json, each whole or not there at all.

`traj.json` has mini-swe-agent's form (`messages`, `info`, `trajectory_format`), so that its inspector and others read it.
`turns.json` holds the exact token ids, so that an audit or another trainer needs neither tokenizer nor template.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from swe_rl.types import Segment, Trajectory, Turn

TRAJECTORY_FORMAT = "mini-swe-agent-1"
_EXIT_STATUS = {  # mini-swe-agent's names, which its tools count by
    "submitted": "Submitted",
    "step_limit": "LimitsExceeded",
    "context_limit": "ContextWindowExceeded",
    "deadline": "TimeExceeded",
}


def attempt_name(instance_id: str, group: int, index: int, nanoseconds: int) -> str:
    """`<instance_id>__g<group>__i<index>__<ns>`, safe as one path component whatever the dataset calls its rows."""
    safe = re.sub(r"[^A-Za-z0-9._+-]", "_", instance_id).lstrip(".")[:150] or "task"
    return f"{safe}__g{group}__i{index}__{nanoseconds}"


def write_attempt(directory: Path, trajectory: Trajectory, meta: dict[str, Any]) -> None:
    """Write or rewrite an attempt's folder; a reader never sees half of it. Raises OSError (disk full, no rights)."""
    files = {
        "traj.json": _json(trajectory_document(trajectory, meta), indent=1),
        "patch.diff": trajectory.patch,
        "meta.json": _json(meta, indent=1),
        "turns.json": _json(tokens_document(trajectory)),
    }
    if directory.exists():
        for name, data in files.items():
            temporary = directory / f".{name}.tmp"
            temporary.write_bytes(data)
            temporary.replace(directory / name)
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        for name, data in files.items():
            (temporary / name).write_bytes(data)
        temporary.replace(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def trajectory_document(trajectory: Trajectory, meta: dict[str, Any]) -> dict[str, Any]:
    """The contents of traj.json."""
    verdict = trajectory.verdict.value if trajectory.verdict else None
    return {
        "info": {
            "exit_status": _EXIT_STATUS.get(trajectory.exit_status, trajectory.exit_status),
            "submission": trajectory.patch.decode("utf-8", "replace"),
            "model_stats": {"instance_cost": 0.0, "api_calls": len(trajectory.turns)},
            "verdict": verdict,
            "verdict_detail": trajectory.verdict_detail,
            "reward": trajectory.reward,
            "timings": {name: round(seconds, 4) for name, seconds in trajectory.timings.items()},
            "config": meta.get("settings", {}),
        },
        "messages": trajectory.messages,
        "steps": trajectory.steps,
        "trajectory_format": TRAJECTORY_FORMAT,
        "instance_id": trajectory.task.instance_id,
    }


def tokens_document(trajectory: Trajectory) -> dict[str, Any]:
    """The contents of turns.json. A turn's prompt is the first `prompt_length` tokens of its segment, which holds no
    token twice: the size is linear in the attempt."""
    segments = [_segment(segment) for segment in trajectory.segments]
    turns = [_turn(turn, step) for turn, step in zip(trajectory.turns, trajectory.steps, strict=False)]
    return {"segments": segments, "turns": turns}


def _segment(segment: Segment) -> dict[str, Any]:
    return {"tokens": segment.tokens, "prompt_length": segment.prompt_length, "fork_cause": segment.fork_cause}


def _turn(turn: Turn, step: dict[str, Any]) -> dict[str, Any]:
    return {
        "segment": step.get("segment", 0),
        "prompt_length": step.get("prompt_tokens", len(turn.prompt_ids)),
        "output_ids": turn.output_ids,
        "log_probs": [round(value, 7) for value in turn.log_probs],
        "weight_versions": turn.weight_versions,
        "finish_reason": turn.finish_reason.value,
    }


def _json(document: Any, indent: int | None = None) -> bytes:
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators, default=str)
    return text.encode("utf-8", "replace")

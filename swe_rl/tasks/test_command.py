"""Eval scripts made from a test command, for rows that carry a command and no script.

The log gets SWE-bench's start and end markers, and the script's exit code is that of the tests.
"""

from __future__ import annotations

START_MARKER = ">>>>> Start Test Output"
END_MARKER = ">>>>> End Test Output"


def script_from_command(command: str) -> str:
    """Bash that runs `command` between the markers; run with the task's workdir as the current folder."""
    return script_from_parts("", command)


def script_from_parts(setup: str, tests: str) -> str:
    """Bash that runs `setup`, then `tests` between the markers in a subshell of it, and exits with the tests' code."""
    lines = ["#!/bin/bash", "set -xo pipefail"]
    if setup.strip():
        lines.append(_without_shebang(setup))
    # A subshell: an `exit` or `set -e` of the tests ends them, not the script before its end marker.
    lines += [f": '{START_MARKER}'", "(", _without_shebang(tests), ")", "swe_rl_status=$?", f": '{END_MARKER}'"]
    lines.append("exit $swe_rl_status")
    return "\n".join(lines) + "\n"


def _without_shebang(script: str) -> str:
    lines = script.replace("\r\n", "\n").strip("\n").split("\n")
    return "\n".join(lines[1:] if lines[0].startswith("#!") else lines)

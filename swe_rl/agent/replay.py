"""`swe-rl replay`: a stored trajectory's commands once more in a fresh sandbox, up to the first difference.

For checking that an environment is reproducible, that an image still behaves, or that a trajectory is what it claims.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from swe_rl.agent.observation import clean_text
from swe_rl.agent.replay_steps import StoredStep, StoredTrajectory, read_trajectory
from swe_rl.agent.templates import load_prompts
from swe_rl.config import Config
from swe_rl.config.load import load_config, print_and_exit_on_dry_run
from swe_rl.deadline import Deadline
from swe_rl.grading.patch_extract import extract_patch
from swe_rl.sandbox.protocol import Sandbox
from swe_rl.sandbox.provider import open_provider
from swe_rl.tasks.load import find_task
from swe_rl.tasks.printable import plain
from swe_rl.types import ExecResult, Task

# What differs between two runs of the same command without meaning anything
_MONTH = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_VOLATILE = (
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0xADDRESS"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:seconds?|ms|µs|us|s)\b"), "DURATION"),
    (re.compile(r"/tmp/[\w./-]*"), "/tmp/PATH"),
    (re.compile(rf"\b(?:{_MONTH}) +\d+ +[\d:]{{4,8}}"), "DATE"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ][\d:]{5,8}(?:\.\d+)?\b"), "DATE"),
    (re.compile(r"\bpid[ =]\d+", re.IGNORECASE), "PID"),
)
_DIFF_LINES = 40


@dataclass
class Difference:
    """The first step that went another way. `diff`: stored against new, as unified diff lines."""

    step: int
    command: str
    what: str
    diff: list[str] = field(default_factory=list)


@dataclass
class Replay:
    """What a replay found. patch_same: None where there was no stored patch or the commands already differed."""

    instance_id: str
    commands: int
    run: int = 0
    unrecorded: int = 0
    difference: Difference | None = None
    patch_same: bool | None = None

    @property
    def same(self) -> bool:
        return self.difference is None and self.patch_same is not False


def stable(text: str) -> str:
    """`text` without what differs from run to run (addresses, durations, dates, temporary names) and trailing spaces."""
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def compare(step: StoredStep, result: ExecResult, *, exact: bool = False) -> Difference | None:
    """How `result` differs from what was stored; None where it does not (or nothing was stored)."""
    if step.returncode is not None and step.returncode != result.returncode:
        return Difference(
            step.number,
            step.command,
            f"exit code {result.returncode}, stored {step.returncode}",
            _diff(step.head or "", clean_text(result.output)),
        )
    if step.head is None:
        return None
    same = (lambda text: text) if exact else stable
    output = clean_text(result.output)
    if step.tail is None:
        stored, new = same(step.head), same(output)
    else:  # the middle was not stored: compare what was
        stored = same(step.head) + "\n" + same(step.tail)
        new = same(output[: len(step.head)]) + "\n" + same(output[len(output) - len(step.tail) :])
    if stored == new:
        return None
    return Difference(step.number, step.command, "the output differs", _diff(stored, new))


def _diff(stored: str, new: str) -> list[str]:
    lines = list(difflib.unified_diff(stored.split("\n"), new.split("\n"), "stored", "new", lineterm="", n=2))
    return lines[:_DIFF_LINES] + ([f"... {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else [])


async def replay(
    stored: StoredTrajectory,
    task: Task,
    sandbox: Sandbox,
    *,
    timeout: float,
    env: dict[str, str],
    deadline: Deadline,
    exact: bool = False,
    on_step: object = None,
) -> Replay:
    """Run the stored commands in `sandbox` until one differs, then compare the patch. Raises SandboxError if it is lost."""
    found = Replay(stored.instance_id, len(stored.steps))
    for step in stored.steps:
        deadline.check("replay")
        result = await sandbox.exec(step.command, timeout=deadline.bound(timeout), env=env)
        found.run += 1
        if callable(on_step):
            on_step(found.run)
        if step.head is None and step.returncode is None:
            found.unrecorded += 1
            continue
        found.difference = compare(step, result, exact=exact)
        if found.difference:
            return found
    if stored.patch.strip():
        patch = await extract_patch(task, sandbox, timeout=deadline.bound(120.0))
        found.patch_same = changed_lines(patch.decode("utf-8", "replace")) == changed_lines(stored.patch)
    return found


def changed_lines(patch: str) -> list[str]:
    """File names and changed lines of a patch: equal whatever the context width, hashes and order of headers."""
    names = re.findall(r"^(?:---|\+\+\+) (\S+)", patch, re.MULTILINE)
    return sorted(set(names)) + re.findall(r"^[+-](?!\+\+ |-- ).*$", patch, re.MULTILINE)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swe-rl replay",
        description="Run a stored trajectory's commands in a fresh sandbox and report the first difference in exit code or"
        " output (addresses, durations, dates and temporary names aside), then whether the patch is the same.",
        epilog="Settings of sandboxes are taken too (--sandbox docker ...). Exit code 0: the same; 1: different.",
    )
    parser.add_argument(
        "trajectory", metavar="TRAJ", type=Path, help="traj.json (ours or mini-swe-agent's) or its folder"
    )
    parser.add_argument("--tasks", help="dataset that holds the task; without it the trajectory must name its image")
    parser.add_argument("--exact", action="store_true", help="compare outputs byte for byte")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def main(argv: list[str]) -> int:
    """Exit code 0 where everything is the same, 1 where something differs."""
    arguments, rest = build_parser().parse_known_args(argv)
    loaded = load_config(rest, prog="swe-rl replay")
    print_and_exit_on_dry_run(loaded)
    config = loaded.config
    stored = read_trajectory(arguments.trajectory)
    if arguments.list:
        for step in stored.steps:
            print(f"[{step.number}] exit code {step.returncode}\n{step.command}\n")
        return 0
    found = asyncio.run(
        _replay(stored, _task(stored, arguments.tasks, config.swe_image_template), config, exact=arguments.exact)
    )
    if arguments.json:
        print(json.dumps({**asdict(found), "same": found.same}, indent=2))
    else:
        _print(found, Console())
    return 0 if found.same else 1


def _task(stored: StoredTrajectory, tasks: str | None, image_template: str) -> Task:
    if tasks:
        return find_task(tasks, stored.instance_id, image_template=image_template)
    return Task(stored.instance_id, "", image=stored.image, workdir=stored.cwd or "/testbed")


async def _replay(stored: StoredTrajectory, task: Task, config: Config, *, exact: bool) -> Replay:
    deadline = Deadline(config.swe_rollout_timeout)
    env = {**load_prompts(config.swe_agent_config).command_env, **stored.env, **task.env}
    provider = await open_provider(config)
    try:
        sandbox = await provider.open(task, deadline=deadline, purpose="agent")
        columns = (TextColumn("replaying"), BarColumn(bar_width=28), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
            bar = progress.add_task("replaying", total=len(stored.steps))
            try:
                return await replay(
                    stored,
                    task,
                    sandbox,
                    timeout=config.swe_command_timeout,
                    env=env,
                    deadline=deadline,
                    exact=exact,
                    on_step=lambda done: progress.update(bar, completed=done),
                )
            finally:
                await sandbox.close()
    finally:
        await provider.aclose()


def _print(found: Replay, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(plain(text), style=style, markup=False, highlight=False, soft_wrap=True)

    say(
        f"{found.instance_id}: {found.run} of {found.commands} commands run, {found.unrecorded} without a stored output"
    )
    if found.difference:
        difference = found.difference
        say(f"first difference at step {difference.step}: {difference.what}", "bold red")
        say(difference.command, "bold")
        for line in difference.diff:
            say(line, "green" if line.startswith("+") else "red" if line.startswith("-") else "")
        return
    say("every recorded exit code and output is the same", "green")
    if found.patch_same is not None:
        say(
            "the patch is the same" if found.patch_same else "the patch differs", "green" if found.patch_same else "red"
        )

"""`swe-rl data demos`: demonstrations for `swe-rl sft`, really executed.

A scripted policy stands in for the engine in the run's own agent loop, sandbox and grader; only attempts graded `resolved` are
kept. `--practice` adds small windows of modules of the listed packages whose edits bash executes (see `synth.practice`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.progress import Progress
from transformers import AutoTokenizer

from swe_rl.agent.loop import run_agent
from swe_rl.agent.tokens import chat_format
from swe_rl.config import Config
from swe_rl.config.load import load_config
from swe_rl.deadline import Deadline
from swe_rl.engine.result import GenerateResult
from swe_rl.errors import DataError, EngineError, InfraError, UsageError
from swe_rl.grading.grader import grade_patch
from swe_rl.grading.patch_extract import extract_patch
from swe_rl.owned_tasks import gather_owned
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.provider import open_provider
from swe_rl.tasks.load import load_tasks
from swe_rl.tasks.printable import plain
from swe_rl.tasks.synth.edit import LOOK, SUBMIT, Edit
from swe_rl.tasks.synth.practice_demos import practice_rows
from swe_rl.tasks.synth.transcript import answer_text
from swe_rl.types import FinishReason, Task, Verdict

ATTEMPT_TIMEOUT = 300.0
ATTEMPTS = 2  # of a demonstration whose sandbox or grading was lost


class ScriptedPolicy:
    """An engine that says its lines: the ids of each answer in turn, with log-prob 0 (they were certain)."""

    def __init__(self, tokenizer: Any, answers: list[str]) -> None:
        end = chat_format(tokenizer).end_of_turn_id
        self._turns = iter([[*tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in answers])

    async def generate(
        self,
        input_ids: list[int],
        sampling_params: dict[str, Any],
        *,
        rid: str,
        routing_key: str = "",
        deadline: Deadline | None = None,
    ) -> GenerateResult:
        """The next line, whatever the prompt. Raises EngineError after the last."""
        ids = next(self._turns, None)
        if ids is None:
            raise EngineError("the scripted policy has no further line: its last command did not submit")
        return GenerateResult(ids, [0.0] * len(ids), FinishReason.STOP, [0] * len(ids), 0, 0.0)


def demonstration(task: Task) -> list[str]:
    """Look, edit, submit. Raises DataError where the task carries no edit (see `metadata["edit"]`)."""
    edit = task.metadata.get("edit")
    if not edit:
        raise DataError(
            f"task {task.instance_id} names no edit: demonstrations need tasks of `swe-rl data synth --simple`"
        )
    lines = (("look", LOOK), ("fix", Edit(**edit).command()), ("done", SUBMIT))
    return [answer_text(thought, command) for thought, command in lines]


async def demonstrate(task: Task, tokenizer: Any, provider: SandboxProvider, settings: Config) -> dict[str, Any] | None:
    """One token-form row of a demonstration that the grader resolved, else None.

    Raises InfraError where sandbox or grading failed: that says nothing about the demonstration.
    """
    deadline = Deadline(ATTEMPT_TIMEOUT)
    sandbox = await provider.open(task, deadline=deadline, purpose="agent")
    try:
        policy = ScriptedPolicy(tokenizer, demonstration(task))
        trajectory = await run_agent(task, sandbox, policy, tokenizer, settings, {"temperature": 1.0}, deadline)
        if trajectory.exit_status == "infra_error":
            raise InfraError(f"the demonstration was lost: {trajectory.verdict_detail.get('error')}")
        patch = await extract_patch(task, sandbox, timeout=deadline.bound(60.0))
    finally:
        await sandbox.close()
    grade = await grade_patch(task, patch, provider, settings, deadline)
    if grade.verdict is Verdict.INFRA_ERROR:
        raise InfraError(f"grading failed: {grade.detail.get('reason')}")
    if trajectory.exit_status != "submitted" or grade.verdict is not Verdict.RESOLVED or len(trajectory.segments) != 1:
        return None
    segment = trajectory.segments[0]
    return {
        "tokens": segment.tokens,
        "prompt_length": segment.prompt_length,
        "loss_mask": segment.loss_mask,
        "instance_id": task.instance_id,
    }


async def task_rows(
    tasks: list[Task], tokenizer: Any, provider: SandboxProvider, settings: Config, concurrency: int
) -> tuple[list[dict[str, Any]], int]:
    """Rows of all tasks that were resolved, in the tasks' order, and how many were lost to infrastructure `ATTEMPTS` times."""
    gate = asyncio.Semaphore(concurrency)
    lost = 0
    with Progress(disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("demonstrations", total=len(tasks))

        async def one(task: Task) -> dict[str, Any] | None:
            nonlocal lost
            async with gate:
                for _ in range(ATTEMPTS):
                    try:
                        return await demonstrate(task, tokenizer, provider, settings)
                    except InfraError as error:
                        print(plain(f"{task.instance_id}: {error}"), file=sys.stderr)
            lost += 1
            return None

        async def counted(task: Task) -> dict[str, Any] | None:
            row = await one(task)
            progress.advance(bar)
            return row

        rows = await gather_owned(counted(task) for task in tasks)
    return [row for row in rows if row is not None], lost


async def _demonstrate_all(
    tasks: list[Task], tokenizer: Any, settings: Config, concurrency: int
) -> tuple[list[dict[str, Any]], int]:
    provider = await open_provider(settings)
    try:
        return await task_rows(tasks, tokenizer, provider, settings, concurrency)
    finally:
        await provider.aclose()


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="swe-rl data demos", description=__doc__)
    add = parser.add_argument
    add("--tokenizer", required=True, help="folder of the policy's tokenizer")
    add("--out", required=True, help="JSONL of tokens, prompt_length, loss_mask")
    add(
        "--tasks",
        default="",
        help="tasks of `swe-rl data synth --simple`; each is demonstrated in a real sandbox and graded",
    )
    add("--practice", type=int, default=0, help="practice demonstrations from the packages of --sdist")
    add("--drills", type=int, default=0, help="practice demonstrations over random words")
    add("--sdist", action="append", default=[], help="sdist file for --practice; may be given several times")
    add("--seed", type=int, default=1)
    add("--prompts", default="quickstart", help="prompt file or name (default quickstart)")
    add("--sandbox", help="as in `swe-rl train` (default: the environment's SWE_RL_SANDBOX, else auto)")
    add("--concurrency", type=int, default=2)
    add("--step-limit", type=int, default=5)
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    if not (args.tasks or args.practice or args.drills):
        raise UsageError("nothing to do: give --tasks, --practice or --drills")
    if args.practice and not args.sdist:
        raise UsageError("--practice needs at least one --sdist")
    if args.concurrency < 1:
        raise UsageError(f"--concurrency {args.concurrency}: at least 1")
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    settings = load_config(
        [
            *(
                "--swe-agent-config",
                args.prompts,
                "--step-limit",
                str(args.step_limit),
                "--swe-observation-chars",
                "1500",
            ),
            *(("--sandbox", args.sandbox) if args.sandbox else ()),
        ],
        prog="swe-rl data demos",
    ).config
    rows: list[dict[str, Any]] = []
    if args.tasks:
        tasks = load_tasks(args.tasks).tasks
        rows, lost = asyncio.run(_demonstrate_all(tasks, tokenizer, settings, args.concurrency))
        print(f"{len(rows)} of {len(tasks)} demonstrations were resolved, {lost} were lost to infrastructure")
    sdists = [Path(name) for name in args.sdist]
    practice = practice_rows(sdists, tokenizer, args.prompts, args.practice, args.drills, args.seed, args.step_limit)
    count = _write(Path(args.out), [rows, practice])
    print(f"{count} demonstrations in {args.out}")
    return 0


def _write(out: Path, parts: list[Any]) -> int:
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.tmp")
    count = 0
    with beside.open("w") as stream:
        for part in parts:
            for row in _tracked(part):
                stream.write(json.dumps(row) + "\n")
                count += 1
    beside.replace(out)
    return count


def _tracked(rows: Any) -> Iterator[dict[str, Any]]:
    with Progress(disable=not sys.stderr.isatty()) as progress:
        yield from progress.track(rows, description="writing", total=len(rows) if isinstance(rows, list) else None)

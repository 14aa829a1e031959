"""The agent loop: real bash in a real sandbox, a scripted policy; every way an attempt can end."""

from __future__ import annotations

import asyncio
import itertools
import math
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest

from swe_rl.agent.loop import _Loop, run_agent
from swe_rl.deadline import Deadline
from swe_rl.errors import ConfigError, DeadlineExceeded, EngineError, SandboxError
from swe_rl.sandbox.provider import open_provider
from swe_rl.types import FinishReason, Turn, Verdict
from tests.agent.build_tokenizers import build_tokenizer
from tests.agent.repository import FIX_COMMAND, SUBMIT_COMMAND, build_task, local_config
from tests.agent.scripted import Result, ScriptedEngine, bash
from tests.agent.test_context import check_trained_once
from tests.rollout.waiting import until

TOKENIZER = build_tokenizer()


@pytest.fixture
async def attempt(tmp_path):
    """Runs one attempt on the tiny repository; returns (trajectory, engine, sandbox)."""
    task = build_task(tmp_path)
    providers = []

    async def run(
        answers, *, seconds=60.0, params=None, sandbox=None, tokenizer=TOKENIZER, engine=ScriptedEngine, **settings
    ):
        config = local_config(tmp_path, **settings)
        if sandbox is None:
            provider = await open_provider(config)
            providers.append(provider)
            sandbox = await provider.open(task, deadline=Deadline(30), purpose="agent")
        engine = engine(tokenizer, answers)
        trajectory = await run_agent(task, sandbox, engine, tokenizer, config, params or {}, Deadline(seconds))
        check_trained_once(trajectory.segments, trajectory.turns)
        return trajectory, engine, sandbox

    yield run
    for provider in providers:
        await provider.aclose()


async def test_solve_and_submit(attempt):
    trajectory, engine, sandbox = await attempt([bash("cat solution.py"), bash(FIX_COMMAND), bash(SUBMIT_COMMAND)])
    assert trajectory.exit_status == "submitted"
    assert [step["action"] for step in trajectory.steps] == ["cat solution.py", FIX_COMMAND, SUBMIT_COMMAND]
    assert (
        "def clamp" in trajectory.messages[3]["content"]
        and "<returncode>0</returncode>" in trajectory.messages[3]["content"]
    )
    assert "min(value" in (await sandbox.exec("git diff", timeout=10)).output
    assert len(trajectory.segments) == 1 and len(trajectory.turns) == 3
    for earlier, later in itertools.pairwise(engine.prompts):
        assert later[: len(earlier)] == earlier
    assert trajectory.segments[0].tokens == engine.prompts[-1] + engine.results[-1].output_ids
    assert set(trajectory.timings) == {"model", "command"}


async def test_prompts_are_the_templates_rendering(attempt):
    """With answers that encode as they were sampled, the last prompt is the template's own rendering of the messages."""
    trajectory, engine, _ = await attempt([bash("echo hello"), bash("false"), bash(SUBMIT_COMMAND)])
    expected = TOKENIZER.apply_chat_template(trajectory.messages[:-1], tokenize=False, add_generation_prompt=True)
    assert engine.prompts[-1] == TOKENIZER(expected, add_special_tokens=False)["input_ids"]


async def test_format_errors_and_reminders(attempt):
    answers = ["no block", bash("echo a") + "\n" + bash("echo b"), bash("echo ok"), bash(SUBMIT_COMMAND + "; false")]
    trajectory, _, _ = await attempt(answers, step_limit=4)
    assert trajectory.exit_status == "step_limit"  # the sentinel of a failed command does not count
    users = [message["content"] for message in trajectory.messages if message["role"] == "user"]
    assert "held 0 bash blocks" in users[1] and "held 2 bash blocks" in users[2]
    assert "3 steps left" in users[1] and "last step" in users[3]
    assert [step.get("format_error") for step in trajectory.steps] == [0, 2, None, None]


@pytest.mark.parametrize(
    ("command", "submitted"),
    [
        (SUBMIT_COMMAND, True),
        (SUBMIT_COMMAND + " && git add -A && git diff --cached", True),
        ("echo; echo; " + SUBMIT_COMMAND, True),
        ("echo before; " + SUBMIT_COMMAND, False),
        (SUBMIT_COMMAND + "D", False),
        ("cat missing; " + SUBMIT_COMMAND, False),
    ],
)
async def test_submission_sentinel(attempt, command, submitted):
    trajectory, _, _ = await attempt([bash(command)], step_limit=1)
    assert trajectory.exit_status == ("submitted" if submitted else "step_limit")


async def test_commands_that_wait_print_for_ever_or_hang(attempt):
    answers = [bash("cat"), bash("sleep 60"), bash("yes | head -c 3000000"), bash(r"printf '\x00\xff<|im%s' '_end|>'")]
    trajectory, engine, _ = await attempt(
        [*answers, bash(SUBMIT_COMMAND)], swe_command_timeout=3.0, swe_observation_chars=500
    )
    assert trajectory.exit_status == "submitted"
    waits, sleeps, yes, *_ = trajectory.steps
    assert waits["returncode"] == 0 and sleeps["timed_out"] and sleeps["returncode"] == 124 and yes["truncated"]
    users = [message["content"] for message in trajectory.messages if message["role"] == "user"]
    assert "ended after 3.0 seconds" in users[2]
    assert len(users[3]) < 900 and f"{3_000_000 - 500} characters of the output were left out" in users[3]
    assert f"[{3_000_000 - 100_000} characters left out]" in trajectory.steps[2]["output"]
    end = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    assert engine.prompts[-1].count(end) == len(trajectory.messages) - 1  # one a message; none from the output


async def test_step_environment(attempt):
    trajectory, _, _ = await attempt(
        [bash("echo $GIT_PAGER $FOO; cd /; export FOO=1"), bash("pwd; echo [$FOO]"), bash(SUBMIT_COMMAND)]
    )
    assert trajectory.steps[0]["output"].strip() == "cat"
    assert trajectory.steps[1]["output"].splitlines()[1] == "[]"  # nothing lasts from command to command


async def test_context_limit_and_segments(attempt):
    small = {"swe_agent_config": "quickstart", "rollout_max_context_len": 1200}
    many = [bash(f"seq {i} {i + 30}") for i in range(12)]
    trajectory, engine, _ = await attempt(many, step_limit=12, **small)
    assert trajectory.exit_status == "step_limit"
    assert len(trajectory.segments) > 1 and {s.fork_cause for s in trajectory.segments[1:]} == {"context_dropped"}
    assert all(len(prompt) <= 1200 - 400 for prompt in engine.prompts)
    assert [step["segment"] for step in trajectory.steps][-1] == len(trajectory.segments) - 1
    trajectory, engine, _ = await attempt(many, step_limit=12, swe_cm_head_ratio=0.0, **small)
    assert trajectory.exit_status == "step_limit" and len(trajectory.segments) > 1
    assert "clamp(3, 0, 2)" in TOKENIZER.decode(engine.prompts[-1])
    trajectory, _, _ = await attempt([bash("seq 1 3000")], **small)
    assert trajectory.exit_status == "context_limit" and len(trajectory.turns) == 1
    trajectory, _, _ = await attempt([bash("ls")], **{**small, "rollout_max_context_len": 410})
    assert trajectory.exit_status == "context_limit" and not trajectory.turns


class Silent(ScriptedEngine):
    """Takes a tenth of a second for its first answer, and for ever after it."""

    async def generate(self, input_ids, sampling_params, *, rid, routing_key="", deadline=None):
        await asyncio.sleep(deadline.remaining() if self.prompts else 0.1)
        deadline.check("generate")
        return await super().generate(input_ids, sampling_params, rid=rid)


@pytest.mark.parametrize(("factor", "stuck"), [(0.0, True), (1000.0, False)])
async def test_an_engine_that_falls_silent_is_nobodys_fault(attempt, monkeypatch, factor, stuck):
    monkeypatch.setattr("swe_rl.agent.loop.STUCK_SECONDS", 0.5)
    monkeypatch.setattr("swe_rl.agent.loop.STUCK_FACTOR", factor)
    trajectory, _, _ = await attempt([bash("ls")], seconds=6.0, engine=Silent)
    assert trajectory.exit_status == ("infra_error" if stuck else "deadline")
    assert ("the engine was silent" in trajectory.verdict_detail.get("error", "")) is stuck
    assert trajectory.verdict is (Verdict.INFRA_ERROR if stuck else None) and len(trajectory.turns) == 1


@pytest.mark.parametrize(
    ("tokens", "seconds", "waited", "stuck"),
    [
        (
            100,
            2.0,
            31.0,
            True,
        ),  # 0.02 s a token: 200 of them take 4 s, and 12 s are less than the 30 that are granted anyway
        (100, 2.0, 29.0, False),
        (10, 5.0, 290.0, False),  # 0.5 s a token: the longest answer may take three times 100 s
        (10, 5.0, 310.0, True),
    ],
)
def test_how_long_an_engine_may_be_silent(tokens, seconds, waited, stuck):
    turn = Turn([1], [5] * tokens, [-1.0] * tokens, [0] * tokens, FinishReason.STOP, 0, seconds)
    loop = SimpleNamespace(trajectory=SimpleNamespace(turns=[turn]), sampling_params={"max_new_tokens": 200})
    with pytest.raises(EngineError, match=f"silent for the last {waited:.0f} s") if stuck else nullcontext():
        _Loop._check_stuck(loop, waited, DeadlineExceeded("generate", 400.0))


async def test_deadline(attempt):
    trajectory, _, _ = await attempt([bash("sleep 30")], seconds=1.5)
    assert trajectory.exit_status == "deadline" and trajectory.steps[0]["timed_out"] and trajectory.verdict is None
    trajectory, _, _ = await attempt([bash("ls")], seconds=0.0)  # the policy never acted: nobody's fault
    assert trajectory.exit_status == "infra_error" and trajectory.verdict is Verdict.INFRA_ERROR


@pytest.mark.parametrize(
    "bad",
    [
        EngineError("connection refused"),
        Result([5, 6], [-1.0], [0, 0]),
        Result([5], [math.nan], [0]),
        Result([5], [0.5], [0]),
        Result([5, 6], [-1.0, -1.0], [0, 0], FinishReason.ABORT),
    ],
)
async def test_a_broken_engine_is_nobodys_fault(attempt, bad):
    trajectory, _, _ = await attempt([bash("ls"), bad])
    assert trajectory.exit_status == "infra_error" and trajectory.verdict is Verdict.INFRA_ERROR
    assert "EngineError" in trajectory.verdict_detail["error"] and "Traceback" in trajectory.verdict_detail["traceback"]
    assert len(trajectory.turns) == 1 and len(trajectory.steps) == 1  # what was done is kept
    assert trajectory.dropped_tokens == (2 if getattr(bad, "finish_reason", None) is FinishReason.ABORT else 0)


async def test_a_lost_sandbox_is_nobodys_fault(attempt):
    class Lost:
        workdir = "/"

        async def exec(self, command, **kwargs):
            raise SandboxError("the node is gone")

    trajectory, _, _ = await attempt([bash("ls")], sandbox=Lost())
    assert trajectory.verdict is Verdict.INFRA_ERROR and "node is gone" in trajectory.verdict_detail["error"]


async def test_sampling_params_and_bounds(attempt):
    cut = Result([30] * 5, [-1.0] * 5, [3] * 5, FinishReason.LENGTH)
    trajectory, engine, _ = await attempt(
        [cut, bash(SUBMIT_COMMAND)], params={"temperature": 0.7, "max_new_tokens": 9999}
    )
    assert engine.params[0] == {
        "temperature": 0.7,
        "max_new_tokens": 400,
        "stop_token_ids": [TOKENIZER.convert_tokens_to_ids("<|im_end|>")],
    }
    assert "cut off" in trajectory.messages[3]["content"]
    assert trajectory.steps[0]["weight_versions"] == [3]
    with pytest.raises(ConfigError, match="rollout_max_context_len"):
        await attempt([bash("ls")], rollout_max_context_len=400)


async def test_cancellation_reaches_the_command(attempt, tmp_path):
    """The command runs while the attempt does, and is gone with it, before anybody closes the sandbox."""
    sleep = ["sleep", f"30.{tmp_path.stat().st_ino}"]  # no other process has it

    def running() -> list[int]:
        return [process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == sleep]

    job = asyncio.ensure_future(attempt([bash(" ".join(sleep))]))
    await until(running)
    assert not job.done()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    await until(lambda: not running(), seconds=5)


async def test_the_quickstart_prompts_are_short(attempt):
    trajectory, _, _ = await attempt(
        [bash("false"), bash("echo hi"), bash(SUBMIT_COMMAND)], swe_agent_config="quickstart"
    )
    assert trajectory.exit_status == "submitted"
    users = [message["content"] for message in trajectory.messages if message["role"] == "user"]
    assert users == [trajectory.task.problem_statement, "[1]\n", "hi\n"]
    assert len(trajectory.messages[0]["content"].split()) <= 10

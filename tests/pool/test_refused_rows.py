"""A row that no node will take costs its own attempts and not the run: others go on, and a wrong token still ends it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError, SandboxUnavailable, UsageError
from swe_rl.rollout.attempt import run_attempt
from swe_rl.rollout.runtime import Runtime
from swe_rl.sandbox.pool import PoolProvider
from swe_rl.sandbox.pool_http import refusal
from swe_rl.types import Task, Verdict
from tests.agent.build_tokenizers import build_tokenizer
from tests.agent.repository import SUBMIT_COMMAND, local_config
from tests.agent.scripted import ScriptedEngine, bash

TASK = Task("t-1", "It is broken.", image="img", network=True)


async def test_a_refused_row_is_an_infra_error_and_other_attempts_go_on(nodes, pools, tmp_path) -> None:
    node = await nodes()
    pool = await pools(node.url)
    engine = ScriptedEngine(build_tokenizer(), [bash("ls"), bash(SUBMIT_COMMAND)])
    config = local_config(tmp_path, swe_infra_retries=0)
    async with contextlib.aclosing(PoolProvider(pool.url)) as provider:
        runtime = Runtime(config, engine, engine.tokenizer, provider)
        node.create_error = (400, "bad_request")  # as a node without --allow-network answers
        refused = await asyncio.wait_for(run_attempt(runtime, TASK, {}, group=0, index=0, directory=None), 30)
        assert refused.verdict is Verdict.INFRA_ERROR and refused.trajectory.verdict_detail["stage"] == "allocate"
        assert "bad_request here" in refused.failures[0]["error"]
        node.create_error = None
        other = replace(TASK, network=False)
        await asyncio.wait_for(run_attempt(runtime, other, {}, group=1, index=0, directory=None), 30)
    assert any("ls" in command for command in node.runs)


async def test_what_the_pool_itself_refuses_is_about_one_sandbox(nodes, pools) -> None:
    node = await nodes()
    pool = await pools(node.url)
    async with contextlib.aclosing(PoolProvider(pool.url)) as provider:
        with pytest.raises(SandboxUnavailable, match="image"):
            await provider.open(replace(TASK, image="imgé"), deadline=Deadline(20), purpose="agent")
        await (await provider.open(TASK, deadline=Deadline(20), purpose="agent")).close()


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_refused_is_everybodys(status: int) -> None:
    error, again = refusal(status, b"forbidden by the proxy")
    assert isinstance(error, UsageError) and "SWE_SERVER_TOKEN" in str(error) and not again


def test_a_command_that_a_server_refuses_is_no_wrong_setting() -> None:
    error, again = refusal(
        400, b'{"error": {"kind": "bad_request", "message": "cwd: must be absolute", "retry": false}}'
    )
    assert isinstance(error, SandboxError) and "cwd" in str(error) and not again


async def test_a_node_that_refuses_does_not_speak_for_the_others(nodes, pools) -> None:
    """Nodes need not have the same flags: one without a network or with less memory sends the row on."""
    strict, open_minded = await nodes(), await nodes()
    strict.create_error = (400, "bad_request")
    pool = await pools(strict.url, open_minded.url)
    for number in range(4):  # whichever is asked first
        status, answer = await pool.allocate(str(number), network=True)
        assert (status, answer.get("node")) == (200, open_minded.url), answer
    open_minded.create_error = (400, "bad_request")
    status, answer = await pool.allocate("none", network=True)
    assert (status, answer["error"]["kind"]) == (400, "bad_request")

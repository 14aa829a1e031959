"""A demonstration through the real loop, sandbox and grader; practice rows have the ids that the loop makes."""

import dataclasses

import pytest

from swe_rl.agent.templates import load_prompts
from swe_rl.agent.tokens import chat_format
from swe_rl.config import Config
from swe_rl.errors import ConfigError, SandboxUnavailable, UsageError
from swe_rl.policy.tokenizer import train_tokenizer
from swe_rl.sandbox.provider import open_provider
from swe_rl.tasks import demos
from swe_rl.tasks.demos import demonstrate, demonstration, task_rows
from swe_rl.tasks.load import load_tasks
from swe_rl.tasks.synth import command
from swe_rl.tasks.synth.transcript import token_demo
from tests.synth.test_synth import repository  # noqa: F401  (a fixture)

SETTINGS = Config(swe_agent_config="quickstart", step_limit=5, sandbox="process")


@pytest.fixture
def task(repository, tmp_path):  # noqa: F811
    command.main(
        ["--from", str(repository), "--out", str(tmp_path / "out"), "--count", "1", "--simple", "--no-certify"]
    )
    return load_tasks(tmp_path / "out" / "tasks.jsonl").tasks[0]


async def test_demonstration_is_resolved_and_practice_rows_look_the_same(task) -> None:
    tokenizer = train_tokenizer(["abc"], vocab_size=300)
    provider = await open_provider(SETTINGS)
    try:
        row = await demonstrate(task, tokenizer, provider, SETTINGS)
        sandbox_text = tokenizer.decode(row["tokens"])
        task.metadata["edit"]["new"] += "1"
        assert await demonstrate(task, tokenizer, provider, SETTINGS) is None  # a wrong edit is no demonstration
        task.metadata["edit"]["new"] = task.metadata["edit"]["new"][:-1]
    finally:
        await provider.aclose()
    listing = sandbox_text.split("<|im_start|>user\n")[2].removesuffix("<|im_start|>assistant\n").split("<|im_end|>")[0]
    turns = list(zip(demonstration(task), (listing, "", ""), strict=True))
    made = token_demo(chat_format(tokenizer), load_prompts("quickstart"), task.problem_statement, turns, 5)
    assert made.tokens == row["tokens"]
    assert made.loss_mask == row["loss_mask"]
    assert made.prompt_length == row["prompt_length"]


class Unlucky:
    """A provider that loses a task's first sandboxes, as often as `losses` says."""

    name = "unlucky"

    def __init__(self, provider, losses: dict[str, int]) -> None:
        self.provider, self.losses = provider, losses

    async def open(self, task, *, deadline, purpose):
        if self.losses.get(task.instance_id, 0):
            self.losses[task.instance_id] -= 1
            raise SandboxUnavailable("the node is gone")
        return await self.provider.open(task, deadline=deadline, purpose=purpose)


async def test_a_lost_sandbox_costs_one_more_attempt_or_one_row(task, capsys) -> None:
    tokenizer = train_tokenizer(["abc"], vocab_size=300)
    tasks = [dataclasses.replace(task, instance_id=name) for name in ("good", "unlucky", "lost")]
    provider = await open_provider(SETTINGS)
    try:
        unlucky = Unlucky(provider, {"unlucky": 1, "lost": 9})
        rows, lost = await task_rows(tasks, tokenizer, unlucky, SETTINGS, concurrency=2)
    finally:
        await provider.aclose()
    assert [row["instance_id"] for row in rows] == ["good", "unlucky"] and lost == 1
    assert unlucky.losses["lost"] == 9 - demos.ATTEMPTS
    assert "lost: the node is gone" in capsys.readouterr().err


def test_settings_come_from_the_environment_too(tmp_path, monkeypatch) -> None:
    train_tokenizer(["abc"], vocab_size=300).save_pretrained(tmp_path)
    call = ["--tokenizer", str(tmp_path), "--tasks", "t.jsonl", "--out", str(tmp_path / "o.jsonl")]
    monkeypatch.setenv("SWE_RL_SANDBOX", "nowhere")
    with pytest.raises(ConfigError, match="SWE_RL_SANDBOX"):
        demos.main(call)
    with pytest.raises(UsageError, match="--concurrency 0: at least 1"):
        demos.main([*call, "--concurrency", "0"])

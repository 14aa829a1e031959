"""A demonstration through the real loop, sandbox and grader; practice rows have the ids that the loop makes."""

import pytest

from swe_rl.agent.templates import load_prompts
from swe_rl.agent.tokens import chat_format
from swe_rl.config import Config
from swe_rl.policy.tokenizer import train_tokenizer
from swe_rl.sandbox.provider import open_provider
from swe_rl.tasks.demos import demonstrate, demonstration
from swe_rl.tasks.load import load_tasks
from swe_rl.tasks.synth import command
from swe_rl.tasks.synth.transcript import token_demo
from tests.synth.test_synth import repository  # noqa: F401  (a fixture)

SETTINGS = Config(swe_agent_config="quickstart", step_limit=5, sandbox="process")


@pytest.fixture
def task(repository, tmp_path):  # noqa: F811
    command.main(["--from", str(repository), "--out", str(tmp_path / "out"), "--count", "1", "--simple"])
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

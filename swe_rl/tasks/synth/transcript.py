"""Executed commands as token-form demonstrations, put together by the agent's own chat format and prompts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.agent.observation import truncate_middle
from swe_rl.agent.templates import AgentPrompts
from swe_rl.agent.tokens import ChatFormat
from swe_rl.types import ExecResult, Task

OBSERVATION_CHARS = 10_000


def answer_text(thought: str, command: str) -> str:
    """What a demonstration's turn says: THOUGHT and one bash block."""
    return f"THOUGHT: {thought}\n```bash\n{command}\n```"


@dataclass(frozen=True)
class TokenDemo:
    """`loss_mask` covers the tokens after `prompt_length`; 1 = the demonstrator's."""

    tokens: list[int]
    prompt_length: int
    loss_mask: list[int]

    def row(self, **extra: Any) -> dict[str, Any]:
        return {"tokens": self.tokens, "prompt_length": self.prompt_length, "loss_mask": self.loss_mask, **extra}


def token_demo(
    chat: ChatFormat, prompts: AgentPrompts, issue: str, turns: Sequence[tuple[str, str]], step_limit: int
) -> TokenDemo:
    """`turns`: (answer, output of its command); the same ids as `run_agent` sees and samples for this conversation."""
    task = Task(instance_id="practice", problem_statement=issue)
    tokens = chat.initial_ids(prompts.first_messages(task, step_limit)) + chat.generation_ids
    prompt_length, mask = len(tokens), []
    for index, (answer, output) in enumerate(turns):
        sampled = [*_answer_ids(chat, answer)]
        tokens += sampled
        mask += [1] * len(sampled)
        if index + 1 < len(turns):
            observation = prompts.observation(
                ExecResult(0, output),
                truncate_middle(output, OBSERVATION_CHARS),
                timeout=1.0,
                steps_left=step_limit - index - 1,
                step_limit=step_limit,
            )
            rest = _rest_ids(chat, observation)
            tokens += rest
            mask += [0] * len(rest)
    return TokenDemo(tokens, prompt_length, mask)


@functools.lru_cache(maxsize=4096)  # look and submit, and their empty outputs, come back in every demonstration
def _answer_ids(chat: ChatFormat, answer: str) -> tuple[int, ...]:
    return (*chat.tokenizer(answer, add_special_tokens=False)["input_ids"], chat.end_of_turn_id)


@functools.lru_cache(maxsize=4096)
def _rest_ids(chat: ChatFormat, observation: str) -> tuple[int, ...]:
    return (*chat.rest_of_turn_ids([chat.end_of_turn_id], observation), *chat.generation_ids)

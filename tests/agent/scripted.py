"""A scripted policy with the engine's signature: answers are given as texts or ids, log-probs are made up but recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swe_rl.types import FinishReason


@dataclass
class Result:
    output_ids: list[int]
    log_probs: list[float]
    weight_versions: list[int]
    finish_reason: FinishReason = FinishReason.STOP
    cached_tokens: int = 0
    seconds: float = 0.0


@dataclass
class ScriptedEngine:
    """Plays `answers` (a text is encoded and closed with the end-of-turn token; ids are taken as they are)."""

    tokenizer: Any
    answers: list[str | list[int] | Exception | Result]
    eot: str = "<|im_end|>"
    prompts: list[list[int]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    params: list[dict[str, Any]] = field(default_factory=list)

    async def generate(self, input_ids, sampling_params, *, rid, routing_key="", deadline=None):
        number = len(self.prompts)
        self.prompts.append(list(input_ids))
        self.params.append(dict(sampling_params))
        answer = self.answers[number % len(self.answers)]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            ids = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
            answer = [*ids, self.tokenizer.convert_tokens_to_ids(self.eot)]
        if isinstance(answer, list):
            answer = Result(answer, [-0.01 * (i + 1) - number for i in range(len(answer))], [number] * len(answer))
        self.results.append(answer)
        return answer


def bash(command: str, thought: str = "next") -> str:
    return f"THOUGHT: {thought}\n\n```bash\n{command}\n```"

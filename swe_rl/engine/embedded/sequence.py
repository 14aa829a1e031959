"""One sampled sequence inside the engine: what was asked, what was sampled, how far its KV cache reaches, how it ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swe_rl.engine.embedded.sampling_params import SamplingParams

BLOCK = 16  # tokens per hashed block of the prefix index


def extend_chain(chain: list[int], tokens: list[int]) -> list[int]:
    """Hashes of all full blocks of `tokens`, each over everything before it; `chain` already holds the first ones."""
    chain = list(chain)
    for start in range(len(chain) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        chain.append(hash((chain[-1] if chain else 0, tuple(tokens[start : start + BLOCK]))))
    return chain


@dataclass(eq=False)
class Sequence:
    """State of one sequence. `tokens` = prompt + output; KV exists for the first `computed` of them, in cache row `row`.

    `on_progress` is called from the scheduler's thread: after each token where `stream`, and once at the end.
    """

    rid: str
    tokens: list[int]
    params: SamplingParams
    seed: int
    on_progress: Callable[[Sequence], None]
    stream: bool = False
    return_logprob: bool = False
    logprob_start: int = -1  # prompt position from which prompt log-probs are wanted; -1 = none
    prompt_length: int = field(init=False)
    log_probs: list[float] = field(default_factory=list)
    prompt_log_probs: list[float] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)  # SGLang's weight_versions: {version, start, end}
    finish: dict[str, Any] | None = None
    cached_tokens: int = 0
    computed: int = 0
    row: int = -1
    kv_epoch: int = -1  # number of the weight update under which all of its KV was computed
    started: bool = False  # has held a row before: a retraction recomputes without counting cached tokens again

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.chain = extend_chain([], self.tokens)
        self._random = random.Random(self.seed)

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        """Tokens whose KV is missing: 1 while decoding, more while the prompt is read."""
        return len(self.tokens) - self.computed

    @property
    def reserved(self) -> int:
        """The most tokens it can ever hold: what admission counts."""
        return self.prompt_length + self.params.max_new_tokens

    def uniform(self) -> float:
        """The next random number in [0, 1) of this sequence alone: its samples do not depend on its batch."""
        return self._random.random()

    def append(self, token: int, log_prob: float, version: str) -> None:
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        if self.spans and self.spans[-1]["version"] == version:
            self.spans[-1]["end"] = self.output_length
        else:
            self.spans.append({"version": version, "start": self.output_length - 1, "end": self.output_length})

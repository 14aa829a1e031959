"""The token history of one attempt: what the next prompt is, and which tokens are trained.

Whole turns are left out when the prompt grows past its bound: a head (the first messages and the first turns) and a
tail (the newest turns) stay. Token counts are kept, never recomputed, and turns leave many at once, so that the work of
an attempt is linear in its tokens and few segments begin. Every sampled token is trained in the segment it was sampled
in, and only there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swe_rl.agent.tokens import ChatFormat, Message
from swe_rl.types import Segment, Turn

HEADROOM = 0.25  # share of the prompt's bound that is free after turns were left out: the next drop is that far away
CONTEXT_DROPPED = "context_dropped"
HISTORY_REWRITTEN = "history_rewritten"


class ContextFull(Exception):
    """The next prompt cannot be made to fit, even with only the first messages and the newest turn."""


@dataclass
class _PastTurn:
    """A turn in the history; `ids` = generation prompt, answer, closing and observation."""

    ids: list[int]
    answer_ids: list[int]
    answer: str
    observation: str
    kept: bool  # the template shows the answer as it was sampled


class TokenHistory:
    """Prompts and segments of one attempt.

    max_prompt_tokens: bound of every prompt (context length minus response length). head_ratio: share of it that the
    first messages and first turns may fill when turns are left out. omission: text of the marker for n left-out turns.
    Raises ContextFull where the first messages alone do not fit.
    """

    def __init__(
        self,
        chat: ChatFormat,
        messages: list[Message],
        *,
        max_prompt_tokens: int,
        head_ratio: float,
        omission: Callable[[int], str],
    ) -> None:
        self._chat = chat
        self._messages = list(messages)  # the caller goes on appending to its own
        self._limit = max_prompt_tokens
        self._head_limit = head_ratio * max_prompt_tokens
        self._omission = omission
        self._base = chat.initial_ids(messages)
        self._past: list[_PastTurn] = []
        self._head_turns: int | None = None  # fixed by the first drop
        self._tail_start = 0
        self._fork_cause = ""
        self._answer_ids: list[int] = []
        self.omitted_turns = 0
        self.segments: list[Segment] = []
        self._tokens = self._base + chat.generation_ids
        if len(self._tokens) > self._limit:
            raise ContextFull(f"the first prompt has {len(self._tokens)} tokens, the bound is {self._limit}")

    def prompt_ids(self) -> list[int]:
        """The exact ids of the next prompt (a copy: the history goes on growing)."""
        return list(self._tokens)

    def add_answer(self, turn: Turn) -> None:
        """Append what the engine sampled on `prompt_ids()`; it is trained in the current segment."""
        if not self.segments or self._fork_cause:
            self.segments.append(Segment(list(self._tokens), len(self._tokens), [], [], [], self._fork_cause))
            self._fork_cause = ""
        segment = self.segments[-1]
        between = self._tokens[len(segment.tokens) :]
        segment.tokens += between
        segment.loss_mask += [0] * len(between)
        segment.log_probs += [0.0] * len(between)
        segment.weight_versions += [-1] * len(between)
        segment.tokens += turn.output_ids
        segment.loss_mask += [1] * len(turn.output_ids)
        segment.log_probs += turn.log_probs
        segment.weight_versions += turn.weight_versions
        self._tokens += turn.output_ids
        self._answer_ids = turn.output_ids

    def add_observation(self, answer: str, observation: str) -> None:
        """Close the turn with its observation and make the next prompt; `answer` is the decoded answer.

        Raises ContextFull where it cannot fit; what was recorded before stays valid.
        """
        chat = self._chat
        past = _PastTurn([], self._answer_ids, answer, observation, chat.keeps(answer))
        past.ids = self._turn_ids(past, observation)
        turn_start = len(self._tokens) - len(self._answer_ids) - len(chat.generation_ids)
        self._past.append(past)
        if not past.kept:
            self._fork_cause = HISTORY_REWRITTEN
        del self._tokens[turn_start:]
        self._tokens += past.ids
        self._tokens += chat.generation_ids
        if len(self._tokens) > self._limit:
            self._drop_turns()

    def _turn_ids(self, past: _PastTurn, observation: str) -> list[int]:
        if not past.kept:
            return self._chat.rewritten_turn_ids(past.answer, observation)
        rest = self._chat.rest_of_turn_ids(past.answer_ids, observation)
        return [*self._chat.generation_ids, *past.answer_ids, *rest]

    def _drop_turns(self) -> None:
        """Rebuild the prompt from head, marker and tail; called once per `HEADROOM` of new tokens at most."""
        if self._head_turns is None:
            self._head_turns = self._count_head_turns()
        head_turns: int = min(self._head_turns, len(self._past) - 1)
        head = self._head_with_marker(head_turns, len(self._past))
        fixed = len(head) + len(self._chat.generation_ids)
        if fixed + len(self._past[-1].ids) > self._limit:  # a huge newest turn: the head's turns give way
            head_turns = self._head_turns = 0
            fixed = len(self._head_with_marker(0, len(self._past))) + len(self._chat.generation_ids)
            if fixed + len(self._past[-1].ids) > self._limit:
                raise ContextFull(f"the newest turn has {len(self._past[-1].ids)} tokens, the bound is {self._limit}")
        start = self._count_tail_start(max(self._tail_start, head_turns), fixed)
        self._tail_start = start
        self.omitted_turns = start - head_turns
        tokens = self._head_with_marker(head_turns, self.omitted_turns)
        for past in self._past[start:]:
            tokens += past.ids
        self._tokens = tokens + self._chat.generation_ids
        self._fork_cause = CONTEXT_DROPPED

    def _count_head_turns(self) -> int:
        used = len(self._base)
        for count, past in enumerate(self._past):
            used += len(past.ids)
            if used > self._head_limit:
                return count
        return len(self._past)

    def _count_tail_start(self, first: int, fixed: int) -> int:
        """Index of the oldest turn of the tail, which always holds the newest turn."""
        used = fixed + len(self._past[-1].ids)
        start = len(self._past) - 1
        while start > first and used + len(self._past[start - 1].ids) <= self._limit * (1 - HEADROOM):
            start -= 1
            used += len(self._past[start].ids)
        return start

    def _head_with_marker(self, head_turns: int, omitted: int) -> list[int]:
        """Ids of the head. The marker ends its last message, so that roles go on alternating."""
        marker = self._omission(omitted)
        if head_turns == 0:
            first, last = self._messages[:-1], self._messages[-1]
            return self._chat.initial_ids([*first, {**last, "content": f"{last['content']}\n\n{marker}"}])
        tokens = list(self._base)
        for past in self._past[: head_turns - 1]:
            tokens += past.ids
        last_turn = self._past[head_turns - 1]
        return tokens + self._turn_ids(last_turn, f"{last_turn.observation}\n\n{marker}")

"""Chat templates in token form: how one turn's ids follow the ids before them (design rule 2, tokens in, tokens out).

A template is a function of the whole conversation, but a policy's own tokens must never be decoded and encoded again.
So the text between turns is read off the template by rendering short probe conversations, for any template (ChatML,
Llama, SmolLM2 ...), and only that text is tokenised. Every prompt is then

    initial messages | generation prompt, sampled ids, rest of the turn | generation prompt, sampled ids, ... | generation prompt

where the rest of a turn closes the answer (unless the policy sampled the end-of-turn token itself) and holds the
observation. A template that rewrites the history (thinking removed from earlier answers) is found out per answer.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from jinja2 import TemplateError

from swe_rl.errors import ConfigError

Message = dict[str, str]
_QUESTION = "probe question"
_ANSWER = "Probe-answer."
_PROBE_OBSERVATIONS = ("Word", "\n  indented\n", "0", "```\ncode\n```\n", "x" * 50 + "\n\n")


class ChatFormat:
    """The chat template of one tokenizer, taken apart and verified.

    Raises ConfigError where the tokenizer has no template, or one whose turns cannot be put together from tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(f"hf_checkpoint: the tokenizer '{self._name}' has no chat template")
        specials = {str(token) for token in tokenizer.all_special_tokens}
        specials |= {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        ordered = sorted((text for text in specials if len(text) > 1), key=len, reverse=True)
        self._special_text = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        question = [{"role": "user", "content": _QUESTION}]
        base = self._render(question)
        prompt = self._render(question, generation=True)
        if not prompt.startswith(base) or _QUESTION not in base:
            raise self._unusable("its generation prompt does not follow the conversation")
        self._generation_text = prompt[len(base) :]
        self._question_end = base[base.rindex(_QUESTION) :]
        self.generation_ids = self._encode(self._generation_text)
        closing = self._encode(self._rest_text("Word"))
        self.end_of_turn_id = closing[0]
        self._verify()

    def initial_ids(self, messages: list[Message]) -> list[int]:
        """Ids of the first messages, without the generation prompt. The only place where a conversation is rendered."""
        try:
            text = self._render([{**message, "content": self.harmless(message["content"])} for message in messages])
        except TemplateError as error:
            raise self._unusable(f"it refuses the first messages: {error}") from error
        return self._encode(text)

    def rest_of_turn_ids(self, answer_ids: list[int], observation: str) -> list[int]:
        """Ids that follow `answer_ids` up to the next generation prompt: the closing of the answer where the policy did
        not sample it, then the observation as a user message. None of them is ever trained."""
        ids = self._encode(self._rest_text(self.harmless(observation)))
        return ids[1:] if answer_ids and answer_ids[-1] == self.end_of_turn_id else ids

    def keeps(self, answer: str) -> bool:
        """Whether the template shows an earlier answer as it was sampled (up to white space around it)."""
        turn = self._turn_text(answer, "Word")
        start = self._generation_text
        return turn.startswith(start) and turn[len(start) :].lstrip().startswith(answer.strip())

    def rewritten_turn_ids(self, answer: str, observation: str) -> list[int]:
        """Ids of an earlier turn as the template shows it in the history: context for the next answer, never trained."""
        return self._encode(self._turn_text(self.harmless(answer), self.harmless(observation)))

    def decode_answer(self, answer_ids: list[int]) -> str:
        """The text of an answer without its end-of-turn token: for parsing and for people, never for training."""
        ids = answer_ids[:-1] if answer_ids and answer_ids[-1] == self.end_of_turn_id else answer_ids
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def harmless(self, text: str) -> str:
        """Break special tokens spelt out in outside text, so that a file's content cannot end the user's message."""
        if self._special_text is None:
            return text
        return self._special_text.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _render(self, messages: list[Message], *, generation: bool = False) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation))

    def _turn_text(self, answer: str, observation: str) -> str:
        text = self._render(
            [
                {"role": "user", "content": _QUESTION},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": observation},
            ]
        )
        start = text.find(self._question_end)
        if start == -1:
            raise self._unusable("it does not show earlier messages")
        return text[start + len(self._question_end) :]

    def _rest_text(self, observation: str) -> str:
        text = self._turn_text(_ANSWER, observation)
        if _ANSWER not in text:
            raise self._unusable("it does not show earlier answers")
        return text[text.index(_ANSWER) + len(_ANSWER) :]

    def _verify(self) -> None:
        """Put the probe conversation together from its parts and compare with the template's own rendering of it."""
        special_ids = set(self.tokenizer.all_special_ids)
        special_ids |= {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        if self.end_of_turn_id not in special_ids:
            raise self._unusable(
                f"answers end with {self._rest_text('')[:20]!r}, which does not begin with a special token"
            )
        question = [{"role": "user", "content": _QUESTION}]
        start = self.initial_ids(question)
        if self._encode(self._render(question, generation=True)) != start + self.generation_ids:
            raise self._unusable("its generation prompt merges with the text before it")
        for observation in _PROBE_OBSERVATIONS:
            conversation = [
                *question,
                {"role": "assistant", "content": _ANSWER},
                {"role": "user", "content": observation},
            ]
            whole = self._encode(self._render(conversation, generation=True))
            end = self.rest_of_turn_ids([], observation) + self.generation_ids
            if whole[: len(start)] != start or whole[-len(end) :] != end:
                raise self._unusable(f"turns with the observation {observation!r} do not join token by token")

    def _unusable(self, reason: str) -> ConfigError:
        return ConfigError(
            f"hf_checkpoint: the chat template of '{self._name}' cannot be used turn by turn: {reason}; "
            "use a template that ends every message with a special token"
        )


@functools.lru_cache(maxsize=8)
def chat_format(tokenizer: Any) -> ChatFormat:
    """The ChatFormat of a tokenizer, derived once per process."""
    return ChatFormat(tokenizer)

"""When a sequence ends, in SGLang's order, and the text it returns.

A stop string wins over a stop token, and both over the length: an answer that ends with its last allowed token has ended
by itself. `ignore_eos` covers `stop_token_ids` too (SGLang 0.5.23).
"""

from __future__ import annotations

from typing import Any

from swe_rl.engine.embedded.sequence import Sequence


class StopRules:
    """Knows the model's end-of-sequence ids and, where the folder has one, its tokenizer."""

    def __init__(self, eos_ids: frozenset[int], tokenizer: Any | None) -> None:
        self.eos_ids = eos_ids
        self.tokenizer = tokenizer
        if tokenizer is not None and tokenizer.eos_token_id is not None:
            self.eos_ids = eos_ids | {int(tokenizer.eos_token_id)}

    def finish_reason(self, sequence: Sequence) -> dict[str, Any] | None:
        """SGLang's `finish_reason` object after the newest token, None while the sequence goes on."""
        params, count = sequence.params, sequence.output_length
        if count and count >= params.min_new_tokens:
            matched = self._matched(sequence)
            if matched is not None:
                return {"type": "stop", "matched": matched}
        if count >= params.max_new_tokens:
            return {"type": "length", "length": params.max_new_tokens}
        return None

    def _matched(self, sequence: Sequence) -> int | str | None:
        params, token = sequence.params, sequence.tokens[-1]
        if params.stop:
            # a stop string of n characters lies within the last n tokens that print something; 8 more for those that do not
            tail = self.decode(sequence.output_ids[-(max(map(len, params.stop)) + 8) :], skip_special=False)
            for stop in params.stop:
                if stop in tail:
                    return stop
        if not params.ignore_eos and (token in params.stop_token_ids or token in self.eos_ids):
            return token
        return None

    def text(self, sequence: Sequence) -> str:
        """The output as text, without what stopped it unless `no_stop_trim`. Empty where there is no tokenizer."""
        if self.tokenizer is None:
            return ""
        ids, params = sequence.output_ids, sequence.params
        matched = (sequence.finish or {}).get("matched")
        if isinstance(matched, int) and not params.no_stop_trim and ids and ids[-1] == matched:
            ids = ids[:-1]
        text = self.decode(ids, skip_special=params.skip_special_tokens)
        if isinstance(matched, str) and not params.no_stop_trim:
            text = text[: text.find(matched)] if matched in text else text
        return text

    def decode(self, ids: list[int], *, skip_special: bool) -> str:
        assert self.tokenizer is not None, "checked when the request was read"
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special))

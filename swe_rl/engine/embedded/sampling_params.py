"""SGLang's sampling parameters, the part a policy engine needs; anything else is refused by name, never ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.errors import UsageError

GREEDY_BELOW = 1e-6  # a lower temperature means greedy decoding, with log-probs of the unscaled distribution (SGLang)
MAX_STOP_STRINGS = 32
# names whose default changes nothing are accepted at that default, so that clients may send them
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_p": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "spaces_between_special_tokens": (None, True, False),  # of the text only, never of the ids
    "stop_regex": (None,),
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": (None, ""),
    "logit_bias": (None,),
    "custom_params": (None,),
    "stream_interval": (None, 1),
}


@dataclass(frozen=True)
class SamplingParams:
    """One request's sampling parameters, checked. `top_k` 0 = off; `temperature` is 1.0 where `greedy`."""

    temperature: float = 1.0
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    n: int = 1

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | None) -> SamplingParams:
        """Read the JSON object of a request. Raises UsageError naming the parameter, its value and what is allowed."""
        given = {name: value for name, value in (raw or {}).items() if value is not None}
        for name, allowed in NEUTRAL.items():
            if name in given and given.pop(name) not in allowed:
                raise UsageError(f"sampling parameter {name}: the embedded engine does not have it; use SGLang")
        unknown = given.keys() - cls.__dataclass_fields__.keys() | (given.keys() & {"greedy"})
        if unknown:
            raise UsageError(f"unknown sampling parameter {sorted(unknown)[0]!r}")
        temperature = _number(given, "temperature", 1.0, low=0.0, high=math.inf)
        greedy = temperature < GREEDY_BELOW
        top_k = _integer(given, "top_k", -1, low=-1)
        max_new_tokens = _integer(given, "max_new_tokens", 128, low=0)
        top_p = _number(given, "top_p", 1.0, low=0.0, high=1.0)
        if top_p == 0.0 or top_k == 0:
            raise UsageError("top_p must be in (0, 1], top_k -1 (off) or at least 1")
        seed = _integer(given, "sampling_seed", 0, low=-(2**63)) if "sampling_seed" in given else None
        return cls(
            temperature=1.0 if greedy else temperature,
            greedy=greedy or top_k == 1,
            top_p=top_p,
            top_k=max(top_k, 0),
            max_new_tokens=max_new_tokens,
            min_new_tokens=_integer(given, "min_new_tokens", 0, low=0, high=max_new_tokens),
            stop=_strings(given.get("stop", ())),
            stop_token_ids=frozenset(_token_ids(given.get("stop_token_ids", ()))),
            ignore_eos=_boolean(given, "ignore_eos", False),
            skip_special_tokens=_boolean(given, "skip_special_tokens", True),
            no_stop_trim=_boolean(given, "no_stop_trim", False),
            sampling_seed=seed,
            n=_integer(given, "n", 1, low=1, high=256),
        )


def _number(given: Mapping[str, Any], name: str, default: float, *, low: float, high: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"{name} must be a finite number, got {value!r}")
    if not low <= value <= high:
        raise UsageError(f"{name} must be in [{low}, {high}], got {value!r}")
    return float(value)


def _integer(given: Mapping[str, Any], name: str, default: int, *, low: int, high: int = 2**63 - 1) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} must be an integer in [{low}, {high}], got {value!r}")
    return value


def _boolean(given: Mapping[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be true or false, got {value!r}")
    return value


def _strings(value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else (None,)
    if len(items) > MAX_STOP_STRINGS or not all(isinstance(item, str) and item for item in items):
        raise UsageError(f"stop must be a string or a list of at most {MAX_STOP_STRINGS} non-empty strings")
    return items


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)) or not all(type(item) is int and item >= 0 for item in value):
        raise UsageError("stop_token_ids must be a list of token ids")
    return list(value)

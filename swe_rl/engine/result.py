"""What one generation returned, read from the engine's JSON and checked: a shifted list would train the wrong tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from swe_rl.errors import EngineError
from swe_rl.types import FinishReason

SGLANG_NAN = "NaN happened"  # SGLang reports NaN logits as a stop that matched this text


@dataclass(frozen=True)
class GenerateResult:
    """Sampled ids and what belongs to each of them; the three lists have one length.

    log_probs: log p of each id under the temperature-scaled distribution (before top-p and top-k).
    weight_versions: the optimizer step whose weights sampled each id.
    matched: the stop token id or stop string that ended it, None where nothing matched.
    """

    output_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    weight_versions: list[int]
    cached_tokens: int
    seconds: float
    text: str = ""
    matched: int | str | None = None


def version_number(value: Any) -> int:
    """The optimizer step in SGLang's `weight_version` text; its initial "default" is step 0."""
    if value in (None, "default"):
        return 0
    try:
        return int(value)
    except (TypeError, ValueError):
        raise EngineError(f"engine names weight version {value!r}; versions are optimizer steps (integers)") from None


def parse_generation(body: Any, *, version_at_departure: int | None, seconds: float) -> GenerateResult:
    """Read one `/generate` answer (SGLang's form).

    Newer servers list spans of versions (`meta_info.weight_versions`). Older ones stamp only the version at the end; then
    `version_at_departure`, the older one, is used where it is known, because staleness must not be understated.
    Raises EngineError where lengths disagree, a log-prob is not finite, or the server ended the request with an error.
    """
    try:
        ids = [int(token) for token in body["output_ids"]]
        meta = body["meta_info"]
        reason = meta["finish_reason"] or {}
        log_probs = [float(entry[0]) for entry in meta.get("output_token_logprobs") or []]
        versions = _versions(meta, len(ids), version_at_departure)
        kind = FinishReason(reason.get("type"))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(f"engine answered nonsense: {type(error).__name__}: {error}") from error
    if kind is FinishReason.ABORT and reason.get("status_code"):
        raise EngineError(f"engine gave up on the request: {reason.get('message', 'no message')}")
    if reason.get("matched") == SGLANG_NAN:
        raise EngineError("engine sampled from NaN logits: the weights it serves are broken")
    if len(log_probs) != len(ids):
        if kind is not FinishReason.ABORT:
            raise EngineError(f"engine returned {len(ids)} tokens and {len(log_probs)} log-probs")
        ids, log_probs, versions = _common_length(ids, log_probs, versions)
    if not all(math.isfinite(value) for value in log_probs):
        raise EngineError("engine returned a log-prob that is not finite: the weights it serves are broken")
    return GenerateResult(
        ids,
        log_probs,
        kind,
        versions,
        cached_tokens=int(meta.get("cached_tokens") or 0),
        seconds=seconds,
        text=str(body.get("text") or ""),
        matched=reason.get("matched"),
    )


def _versions(meta: dict[str, Any], count: int, version_at_departure: int | None) -> list[int]:
    spans = meta.get("weight_versions")
    if spans is None:
        at_arrival = version_number(meta.get("weight_version"))
        return [at_arrival if version_at_departure is None else min(at_arrival, version_at_departure)] * count
    versions = [-1] * count
    for span in spans:
        for position in range(int(span["start"]), min(int(span["end"]), count)):
            versions[position] = version_number(span["version"])
    if -1 in versions:
        raise ValueError(f"weight version spans {spans} do not cover {count} tokens")
    return versions


def _common_length(
    ids: list[int], log_probs: list[float], versions: list[int]
) -> tuple[list[int], list[float], list[int]]:
    """An aborted answer may hold a token whose log-prob was never computed; it is dropped."""
    count = min(len(ids), len(log_probs))
    return ids[:count], log_probs[:count], versions[:count]

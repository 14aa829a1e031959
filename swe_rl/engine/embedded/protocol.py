"""The JSON of `/generate`, in and out: SGLang's field names, so that one client serves both engines."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from swe_rl.engine.embedded.sampling_params import SamplingParams
from swe_rl.engine.embedded.sequence import Sequence
from swe_rl.engine.embedded.stopping import StopRules
from swe_rl.errors import UsageError

MAX_PROMPTS = 1024  # in one request
ANSWERED = {"input_ids", "text", "sampling_params", "rid", "return_logprob", "logprob_start_len", "stream"}
# Of SGLang's other fields, those that change who serves a request, when, or what is logged of it, never its answer.
WITHOUT_EFFECT = {
    *("session_id", "conversation_id", "routing_key", "routed_dp_rank", "data_parallel_rank", "priority", "extra_key"),
    *("cache_salt", "log_metrics", "no_logs", "custom_labels", "external_trace_header", "received_time", "modalities"),
}


@dataclass(frozen=True)
class Prompt:
    """One prompt of a request, checked, with the parameters of its samples."""

    rid: str
    ids: list[int]
    params: SamplingParams
    return_logprob: bool
    logprob_start: int  # -1 = no prompt log-probs


@dataclass(frozen=True)
class GenerateRequest:
    """A whole request. `single` answers with one object instead of a list."""

    prompts: list[Prompt]
    single: bool
    stream: bool


def parse_request(
    body: Any, *, vocabulary: int, context_length: int, cache_tokens: int, tokenizer: Any
) -> GenerateRequest:
    """Check a request body. Raises UsageError with one line that names the field (HTTP 400)."""
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    _refuse_missing_features(body)
    prompts, single = _prompts(body, tokenizer)
    count = len(prompts)
    raw_params = _each(body, "sampling_params", dict, count)
    rids, starts = _each(body, "rid", str, count), _each(body, "logprob_start_len", int, count)
    scored = _each(body, "return_logprob", bool, count)
    parsed = []
    for ids, raw, rid, start, wanted in zip(prompts, raw_params, rids, starts, scored, strict=True):
        params = SamplingParams.parse(raw)
        start = -1 if start is None or not wanted or start >= len(ids) - 1 else start
        _check_ids(ids, vocabulary)
        total = len(ids) + params.max_new_tokens
        if len(ids) >= context_length or total > context_length:
            raise UsageError(
                f"{len(ids)} prompt tokens and max_new_tokens {params.max_new_tokens} exceed the context of {context_length}"
            )
        if total > cache_tokens:
            raise UsageError(f"the request may need {total} tokens of KV cache; the engine has {cache_tokens}")
        if params.stop and tokenizer is None:
            raise UsageError("stop strings need a tokenizer in the model folder; use stop_token_ids")
        parsed.append(Prompt(rid or uuid.uuid4().hex, ids, params, bool(wanted), start))
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise UsageError(f"stream must be true or false, got {stream!r}")
    return GenerateRequest(parsed, single=single and parsed[0].params.n == 1, stream=stream)


def _refuse_missing_features(body: dict[str, Any]) -> None:
    """What the engine does not have must not be ignored. Where a field asks for nothing (null, false, 0, empty, or a list of
    these) clients may send it."""
    for name in body.keys() - ANSWERED - WITHOUT_EFFECT:
        value = body[name]
        if any(value) if isinstance(value, list) else value:
            raise UsageError(f"{name}: the embedded engine does not have it; use SGLang, or leave it out")


def _prompts(body: dict[str, Any], tokenizer: Any) -> tuple[list[list[int]], bool]:
    ids, text = body.get("input_ids"), body.get("text")
    if (ids is None) == (text is None):
        raise UsageError("give either input_ids or text")
    if text is not None:
        if tokenizer is None:
            raise UsageError("text needs a tokenizer in the model folder; send input_ids")
        texts = [text] if isinstance(text, str) else text
        if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
            raise UsageError("text must be a string or a list of strings")
        ids, single = [tokenizer(item)["input_ids"] for item in texts], isinstance(text, str)
    else:
        if not isinstance(ids, list):
            raise UsageError("input_ids must be a list of token ids, or a list of such lists")
        single = not ids or not isinstance(ids[0], list)
        ids = [ids] if single else ids
    if not 1 <= len(ids) <= MAX_PROMPTS:
        raise UsageError(f"a request holds 1 to {MAX_PROMPTS} prompts, not {len(ids)}")
    return ids, single


def _check_ids(ids: Any, vocabulary: int) -> None:
    if not isinstance(ids, list) or not ids:
        raise UsageError("a prompt must be a list of at least one token id")
    if not all(type(token) is int for token in ids) or not 0 <= min(ids) <= max(ids) < vocabulary:
        raise UsageError(f"token ids must be integers from 0 to {vocabulary - 1}")


def _each(body: dict[str, Any], name: str, kind: type, count: int) -> list[Any]:
    """A field that may be given once for all prompts or as a list with one entry each; None where it is not given."""
    given = body.get(name)
    values = given if isinstance(given, list) else [given] * count
    if len(values) != count:
        raise UsageError(f"{name}: {len(values)} entries for {count} prompts")
    for value in values:
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise UsageError(f"{name} must be {kind.__name__}, got {value!r}")
    return values


def answer(sequence: Sequence, stops: StopRules, *, version: str, started: float) -> dict[str, Any]:
    """SGLang's answer object for one sequence, finished or (streaming) so far."""
    meta: dict[str, Any] = {
        "id": sequence.rid,
        "finish_reason": sequence.finish,
        "prompt_tokens": sequence.prompt_length,
        "completion_tokens": sequence.output_length,
        "cached_tokens": sequence.cached_tokens,
        "weight_version": sequence.spans[-1]["version"] if sequence.spans else version,
        "weight_versions": [dict(span) for span in sequence.spans] or [{"version": version, "start": 0, "end": 0}],
        "e2e_latency": time.monotonic() - started,
    }
    if sequence.return_logprob:
        pairs = zip(sequence.log_probs, sequence.output_ids, strict=True)
        meta["output_token_logprobs"] = [[log_prob, token, None] for log_prob, token in pairs]
        meta["input_token_logprobs"] = _prompt_logprobs(sequence)
    return {"text": stops.text(sequence), "output_ids": sequence.output_ids, "meta_info": meta}


def _prompt_logprobs(sequence: Sequence) -> list[list[Any]]:
    """[log-prob, id, null] from `logprob_start_len` on; nothing scores the first, so its log-prob is null."""
    if sequence.logprob_start < 0:
        return []
    tokens = sequence.tokens[sequence.logprob_start : sequence.prompt_length]
    scores = [None, *sequence.prompt_log_probs[: len(tokens) - 1]]
    return [[score, token, None] for score, token in zip(scores, tokens, strict=False)]

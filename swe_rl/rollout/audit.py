"""The token audit: every trained token is one that the engine sampled, on that prompt, with that log-prob, trained once."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from swe_rl.rollout.ledger import EngineCall
from swe_rl.types import Sample


@dataclass
class TokenAudit:
    """Counts of tokens. `sampled` are the trained ones that a recorded call of the engine accounts for.

    dropped: sampled by a call of the attempt, but trained by no sample. retried: sampled in starts that an infra_error
    ended. forks: segments that did not extend the one before, by cause.
    """

    trained: int = 0
    sampled: int = 0
    dropped: int = 0
    retried: int = 0
    segments: int = 0
    forks: Counter[str] = field(default_factory=Counter)

    @property
    def sampled_fraction(self) -> float:
        """Share of trained tokens that the engine sampled; anything below 1.0 is a fault."""
        return self.sampled / self.trained if self.trained else 1.0

    def untrained(self) -> TokenAudit:
        """The same tokens of an attempt that is left out of training."""
        return TokenAudit(dropped=self.dropped + self.trained, retried=self.retried)

    def __iadd__(self, other: TokenAudit) -> TokenAudit:
        for name in ("trained", "sampled", "dropped", "retried", "segments"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.forks.update(other.forks)
        return self


def audit_attempt(samples: Sequence[Sample], calls: Sequence[EngineCall], attempt_id: str = "") -> TokenAudit:
    """Compare an attempt's samples with what the engine returned.

    A run of trained tokens counts as sampled only if one unused call has exactly the tokens before it as its prompt, the
    run as its output and the same log-probs. `attempt_id` prefixes the request ids of the start that counted; "" = all.
    """
    audit = TokenAudit()
    by_prompt_length: defaultdict[int, list[EngineCall]] = defaultdict(list)
    for call in calls:
        if call.rid.startswith(attempt_id):
            by_prompt_length[len(call.prompt_ids)].append(call)
        else:
            audit.retried += len(call.output_ids)
    for sample in samples:
        runs = list(_trained_runs(sample))
        if not runs:
            continue
        audit.segments += 1
        if cause := sample.metadata.get("fork_cause"):
            audit.forks[cause] += 1
        tokens = array("i", sample.tokens)
        log_probs = array("d", sample.rollout_log_probs or [])
        offset = len(sample.tokens) - sample.response_length
        for start, end in runs:
            audit.trained += end - start
            candidates = by_prompt_length[start]
            for number, call in enumerate(candidates):
                same_tokens = tokens[start:end] == call.output_ids and tokens[:start] == call.prompt_ids
                if same_tokens and log_probs[start - offset : end - offset] == call.log_probs:
                    audit.sampled += end - start
                    del candidates[number]
                    break
    audit.dropped = sum(len(call.output_ids) for rest in by_prompt_length.values() for call in rest)
    return audit


def _trained_runs(sample: Sample) -> Iterator[tuple[int, int]]:
    """[start, end) of each run of mask 1, as positions in `sample.tokens`."""
    position = len(sample.tokens) - sample.response_length
    mask = sample.loss_mask if sample.loss_mask is not None else [1] * sample.response_length
    for value, group in itertools.groupby(mask):
        length = sum(1 for _ in group)
        if value:
            yield position, position + length
        position += length

"""Which waiting sequences may start: rows and tokens are bounded, and a prompt that is just being read is waited for."""

from __future__ import annotations

from collections import deque

from swe_rl.engine.embedded.prefix_cache import PrefixCache
from swe_rl.engine.embedded.sequence import BLOCK, Sequence

WORTH_WAITING = 4  # blocks of a prompt that another sequence is computing: then wait a step and copy them


def next_admissible(
    waiting: deque[Sequence], running: list[Sequence], cache: PrefixCache, *, max_batch: int, max_tokens: int
) -> Sequence | None:
    """Take the next sequence that fits out of `waiting`, first come first served; None where none may start now.

    Attempts of one group arrive together with one prompt. The first computes it; the others are passed over until its
    KV can be copied, which is one step later, and keep their place in the queue.

    max_tokens: cells of the KV tensor. All rows are as long as the longest, so that is what each sequence costs.
    """
    if len(running) >= max_batch:
        return None
    longest = max((sequence.reserved for sequence in running), default=0)
    reading = {block for sequence in running if sequence.pending > 1 for block in sequence.chain}
    for position, sequence in enumerate(waiting):
        if (len(running) + 1) * max(longest, sequence.reserved) > max_tokens:
            return None  # no overtaking by smaller requests: a large one must not wait for ever
        known = cache.find(sequence, len(sequence.tokens) - 1)[1] // BLOCK
        ahead = known + WORTH_WAITING - 1
        if ahead < len(sequence.chain) and sequence.chain[ahead] in reading:
            continue
        del waiting[position]
        return sequence
    return None

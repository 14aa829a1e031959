"""Which engine serves a conversation: the same one every turn, because its KV cache holds the earlier turns.

Rendezvous hashing (Thaler and Ravishankar, 1998): each key ranks all engines by a hash; the first is its home, the
others take over in order while the home is down. A changed list of engines moves only the keys that must move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def rank_engines(urls: Sequence[str], key: str) -> list[str]:
    """All `urls`, best first for `key`. Equal input gives equal output in every process and run."""

    def score(url: str) -> bytes:
        return hashlib.blake2b(f"{url}\0{key}".encode(), digest_size=8).digest()

    return sorted(urls, key=score, reverse=True)

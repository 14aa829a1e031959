"""What the pytest sessions of an eval script said of themselves (pytest_session_proof.py), taken out of the script's output.

Code under test prints into the same output: only lines that start with a word that the grader drew for this grading count.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import zlib
from dataclasses import dataclass

SESSIONS = 99  # of pytest in one eval script that are asked for a proof: some run one for each file
MOST_BYTES = 64 << 20  # of what all sessions say at their ends, unpacked: several times what a script's output may hold
_WORD_BYTES = 12
_KINDS = "meddled|failed|passed|xfailed"
_SAID = re.compile(
    rf"(?:\A|\n)([0-9a-f]{{{2 * _WORD_BYTES}}}) (begin|end -?\d+|all (?:{_KINDS}) \S+|(?:{_KINDS}) [^\n]*)\n"
)


def session_words() -> list[str]:
    """New words, one for each session."""
    return [secrets.token_hex(_WORD_BYTES) for _ in range(SESSIONS)]


@dataclass(frozen=True)
class SessionsSaid:
    """The sayings of each session that began, in order."""

    sessions: tuple[tuple[str, ...], ...] = ()

    def of(self, kind: str) -> list[str]:
        """What stands behind `kind` in all sessions: ids of tests ("failed", "passed", "xfailed"), or names ("meddled").

        Each once: much is said when it happens, and again at the end.
        """
        said = (text.partition(" ") for session in self.sessions for text in session)
        return list(dict.fromkeys(rest for word, _, rest in said if word == kind))

    def problems(self, code: int) -> list[str]:
        """Reasons not to believe a good result. code: the exit code of the script."""
        found = [f"code under test changed the test harness: {names}" for names in self.of("meddled")]
        for session in self.sessions:
            ends = [text.split()[1] for text in session if text.startswith("end")]
            if not ends:
                found.append("a pytest session began and did not come to its end")
            elif code == 0 and any(end not in ("0", "5") for end in ends):
                found.append(f"pytest ended with {ends[0]}, its process with 0")
        return found


def sessions_of(output: str, words: list[str]) -> tuple[SessionsSaid, str]:
    """What the sessions with `words` said, and the output as it would have been without it."""
    said: dict[str, list[str]] = {word: [] for word in words}
    room = MOST_BYTES

    def take(found: re.Match[str]) -> str:
        nonlocal room
        word, text = found.groups()
        if word not in said:
            return found[0]
        if text.startswith("all "):
            _, kind, packed = text.split(" ")
            unpacked = _unpacked(packed, room)
            room -= len(unpacked)
            said[word] += [f"{kind} {one}" for one in unpacked.decode("utf-8", "replace").split("\n") if one]
        else:
            said[word].append(text)
        return ""

    rest = _SAID.sub(take, output)
    return SessionsSaid(tuple(tuple(texts) for texts in said.values() if texts)), rest


def _unpacked(packed: str, most: int) -> bytes:
    """At most so many bytes; none where it is damaged."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), most) if most > 0 else b""
    except (binascii.Error, zlib.error, ValueError):
        return b""

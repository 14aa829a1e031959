"""What the pytest sessions of an eval script said of themselves (pytest_session_proof.py), taken out of the script's output.

Code under test prints into the same output: only lines that start with a word that the grader drew for this grading count.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

SESSIONS = 99  # of pytest in one eval script that are asked for a proof: some run one for each file
_WORD_BYTES = 12
_SAID = re.compile(
    rf"(?:\A|\n)([0-9a-f]{{{2 * _WORD_BYTES}}}) (begin|end -?\d+|(?:meddled|failed|passed|xfailed) [^\n]*)\n"
)


def session_words() -> list[str]:
    """New words, one for each session."""
    return [secrets.token_hex(_WORD_BYTES) for _ in range(SESSIONS)]


@dataclass(frozen=True)
class SessionsSaid:
    """The sayings of each session that began, in order."""

    sessions: tuple[tuple[str, ...], ...] = ()

    def of(self, kind: str) -> list[str]:
        """What stands behind `kind` in all sessions: ids of tests ("failed", "passed", "xfailed"), or names ("meddled")."""
        said = (text.partition(" ") for session in self.sessions for text in session)
        return [rest for word, _, rest in said if word == kind]

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

    def take(found: re.Match[str]) -> str:
        if found[1] not in said:
            return found[0]
        said[found[1]].append(found[2])
        return ""

    rest = _SAID.sub(take, output)
    return SessionsSaid(tuple(tuple(texts) for texts in said.values() if texts)), rest

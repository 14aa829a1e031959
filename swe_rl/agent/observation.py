"""What the policy sees of a command's output: bounded, head and tail kept, the cut stated."""

from __future__ import annotations

from dataclasses import dataclass

from swe_rl.sandbox.protocol import cut_line

SUBMISSION_SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass(frozen=True)
class TruncatedText:
    """`head` + `tail` with `elided_chars` left out between them; an uncut text is all head."""

    head: str
    tail: str = ""
    elided_chars: int = 0

    def joined(self) -> str:
        """One text again, with the cut stated where it is."""
        if not self.elided_chars:
            return self.head
        return f"{self.head}\n[{self.elided_chars} characters left out]\n{self.tail}"


def truncate_middle(text: str, limit: int, *, dropped: int = 0) -> TruncatedText:
    """Keep at most `limit` characters: the first half and the last half, where errors and summaries stand.

    dropped: bytes that the sandbox had left out of the middle of `text` before; its line about them goes with the rest.
    """
    if len(text) <= limit:
        return TruncatedText(text)
    before = dropped - len(cut_line(dropped)) if dropped else 0
    head = limit - limit // 2
    tail = limit // 2
    return TruncatedText(text[:head], text[len(text) - tail :], len(text) - limit + before)


def clean_text(text: str) -> str:
    """Replace what no tokenizer takes (lone surrogates from undecodable bytes) and NULs."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")


def is_submission(output: str, returncode: int) -> bool:
    """Whether a command ended the attempt: exit code 0 and the sentinel alone on the first line of its output.

    Source: mini-swe-agent's environments (`check_finished`); a failed command that printed the sentinel goes on.
    """
    first_line = output.lstrip().partition("\n")[0]
    return returncode == 0 and first_line.strip() == SUBMISSION_SENTINEL

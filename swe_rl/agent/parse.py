"""Find the one action in a model's answer: hostile text, so the scan is linear and never guesses."""

from __future__ import annotations

import functools
import re


class FormatError(ValueError):
    """The answer does not hold exactly one non-empty action. `count` is the number of code blocks found."""

    def __init__(self, count: int) -> None:
        super().__init__(f"expected exactly one command block, found {count}")
        self.count = count


@functools.lru_cache(maxsize=8)
def _opening(language: str) -> re.Pattern[str]:
    return re.compile(rf"```{re.escape(language)}[^\S\n]*\n")


def extract_actions(text: str, language: str = "bash") -> list[str]:
    """The contents of all closed ```<language> blocks, stripped.

    A block opens with the fence and its language alone to the end of the line and closes at the next line that starts
    with three backticks: the form of mini-swe-agent 1 (language "bash") and 2 ("mswea_bash_command"). A lazy regular
    expression would do the same in quadratic time on "```bash" followed by thousands of newlines, which a policy in
    training does write; this scan is linear.
    """
    actions: list[str] = []
    position = 0
    while (match := _opening(language).search(text, position)) is not None:
        first_line_end = match.end() - 1  # so that an empty block, whose only newline is this one, closes too
        end = text.find("\n```", first_line_end)
        if end == -1:
            break
        actions.append(text[match.end() : end].strip())
        position = end + len("\n```")
    return actions


def parse_action(text: str, language: str = "bash") -> str:
    """The command of an answer with exactly one block; raises FormatError for none, several or an empty one."""
    actions = extract_actions(text, language)
    if len(actions) != 1 or not actions[0]:
        raise FormatError(len([action for action in actions if action]))
    return actions[0]

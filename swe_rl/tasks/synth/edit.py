"""The gold edit as one `sed` command: what a demonstration types and what the easier issue texts name.

Commands use three short variables of the task's environment: F (the file), R (`first,last` line of the code in question)
and N (the line before it), so that line 3 of the listing is line N+3 of the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from swe_rl.tasks.synth.mutations import Mutation

LOOK = 'sed -n "${R}p" $F | cat -n'
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_TOKENS = re.compile(r"\w+|\s+|.", re.DOTALL)
_SPECIAL = set("[]^$\\|&\"`'!\n")  # special to sed's basic expressions or to bash inside double quotes


@dataclass(frozen=True)
class Edit:
    """Replace the first `old` of listing line `line` by `new`."""

    line: int
    old: str
    new: str

    def command(self) -> str:
        return f'sed -i "$((N+{self.line}))s|{self.old}|{self.new}|" $F'

    def range_command(self) -> str:
        """The same replacement without naming the line: right where `old` stands on no other line of the range."""
        return f'sed -i "${{R}}s|{self.old}|{self.new}|" $F'


def gold_edit(mutation: Mutation, buggy: str) -> Edit | None:
    """The shortest edit that undoes `mutation` in the module text `buggy`; None where sed would need escapes."""
    start = buggy.rfind("\n", 0, mutation.start) + 1
    text = buggy[start : buggy.find("\n", start)] if "\n" in buggy[start:] else buggy[start:]
    low = mutation.start - start
    return shortest_edit(text, low, low + len(mutation.new), mutation.old, mutation.line - mutation.function.first + 1)


def shortest_edit(text: str, low: int, high: int, new: str, line: int) -> Edit | None:
    """The edit of `text[low:high]` to `new` with as little context as makes its first match the right one."""
    before, after = _TOKENS.findall(text[:low]), _TOKENS.findall(text[high:])
    bug = text[low:high]
    for context in range(5):
        for left in range(context + 1):
            right = context - left
            if left > len(before) or right > len(after):
                continue
            prefix, suffix = "".join(before[len(before) - left :]), "".join(after[:right])
            old, fixed = prefix + bug + suffix, prefix + new + suffix
            if usable(old, fixed) and _first_match(text, old) == low - len(prefix):
                return Edit(line, old, fixed)
    return None


def usable(old: str, new: str) -> bool:
    """Whether both texts mean themselves inside `s|old|new|` in double quotes (a dot in `old` may match itself)."""
    plain = not (_SPECIAL & set(old)) and not (_SPECIAL & set(new))
    return plain and bool(old.strip()) and "*" not in old[1:] and old == old.rstrip("\t") and not old.startswith("*.")


def _first_match(text: str, old: str) -> int:
    """Where sed's `s|old|` would match first."""
    match = re.search("".join("." if c == "." else re.escape(c) for c in old), text)
    return match.start() if match else -1

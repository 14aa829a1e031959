"""Issue texts from facts, in three levels of difficulty.

L1 names line and change, L2 the change, L3 only the symptom: the failing test and its assertion.
"""

from __future__ import annotations

import random

from swe_rl.tasks.synth.edit import Edit

LEVELS = ("L1", "L2", "L3")
WHERE = "The code is lines $R of $F; N is the number of the line before."
_L1 = ("`{name}` is wrong in line N+{line}: s|{old}|{new}|", "N+{line} of `{name}` needs s|{old}|{new}|")
_L2 = ("`{name}` is wrong: s|{old}|{new}|", "`{name}` needs s|{old}|{new}|")
_L3 = ("`{name}` is wrong: {test} fails.", "{test} fails because of a bug in `{name}`.")


def issue_text(level: str, name: str, edit: Edit | None, test: str, example: str, rng: random.Random) -> str:
    """The issue of one task. `test` is the name of a failing test, `example` its failing line ("" where unknown).

    Raises ValueError for an unknown level, and for L1 and L2 without an edit to name.
    """
    if level not in LEVELS or (edit is None and level != "L3"):
        raise ValueError(f"level {level!r} with edit {edit}: L1 and L2 name an edit, L3 a failing test")
    template = rng.choice({"L1": _L1, "L2": _L2, "L3": _L3}[level])
    facts = {"name": name, "test": test or "a test"}
    if edit is not None:
        facts |= {"line": str(edit.line), "old": edit.old, "new": edit.new}
    text = template.format(**facts)
    if level == "L3" and example:
        text += f"\n{example}"
    return f"{text}\n{WHERE}"

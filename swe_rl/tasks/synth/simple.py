"""Which bugs a tiny policy can be asked to fix: one token of one line of a short function, undone by one plain `sed`."""

from __future__ import annotations

from swe_rl.tasks.synth.edit import gold_edit
from swe_rl.tasks.synth.mutations import Mutation, is_one_token

MAX_LINES = 9  # one digit names a line
MAX_LINE_LENGTH = 100


def is_simple(source: str, mutation: Mutation) -> bool:
    function = mutation.function
    lines = source.split("\n")[function.first - 1 : function.last]
    return (
        is_one_token(mutation)
        and len(lines) <= MAX_LINES
        and max(map(len, lines)) <= MAX_LINE_LENGTH
        and gold_edit(mutation, mutation.apply(source)) is not None
    )

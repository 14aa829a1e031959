"""Practice edits are executed by bash and kept only where the file is then the fixed one."""

import random

from swe_rl.tasks.synth.edit import Edit
from swe_rl.tasks.synth.practice import Snippet, execute
from swe_rl.tasks.synth.practice_demos import conversation

UNIQUE = Snippet("grow", ("    def grow(self):", "        self.size -= 1"), Edit(2, "-=", "+="), "augmented")
TWICE = Snippet("both", ("    def both(a, b):", "        a -= 1", "        b -= 1"), Edit(2, "-=", "+="), "augmented")


def test_an_edit_of_the_whole_range_is_kept_only_where_it_is_right() -> None:
    done = execute([UNIQUE, TWICE] * 40, random.Random(1))
    ranged = [d for d in done if d.ranged]
    assert ranged and {d.snippet for d in ranged} == {UNIQUE}
    assert {d.commands[1] for d in ranged} == {'sed -i "${R}s|-=|+=|" $F'}
    assert {d.commands[1] for d in done if not d.ranged} == {'sed -i "$((N+2))s|-=|+=|" $F'}
    assert 40 > sum(d.snippet == TWICE for d in done) > 0  # the ranged ones of them gave another file
    assert ranged[0].outputs[0] == "     1\t    def grow(self):\n     2\t        self.size -= 1\n"


def test_the_line_is_named_only_to_one_who_uses_it() -> None:
    rng = random.Random(2)
    issues = [(d.ranged, conversation(d, ["apple", "pear"], rng)[0]) for d in execute([UNIQUE] * 200, rng)]
    assert any("N+2" in text for ranged, text in issues if not ranged)
    assert not any("N+2" in text for ranged, text in issues if ranged)
    assert any("assert" in text for _, text in issues) and any("s|-=|+=|" in text for _, text in issues)

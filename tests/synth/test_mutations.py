"""Every mutation is one replacement that undoes exactly, and every gold edit does so with real sed."""

import random
import subprocess

import pytest

from swe_rl.tasks.synth.edit import Edit, gold_edit, shortest_edit
from swe_rl.tasks.synth.functions import find_functions
from swe_rl.tasks.synth.mutations import find_mutations, is_one_token, sample_mutations

SOURCE = '''\
def clamp(value, low, high):
    """Keep value inside.

    Twice.
    """
    if value < low and not high == 1:
        return low
    for item in range(10):
        if item in (low, high):
            continue
        value += item * 2
    log(value, low)
    return high if value > high else value


class Box:
    @property
    def size(self):
        return min(self.a, self.b) + self.a[1:]
'''


def test_functions_leave_out_the_docstring() -> None:
    clamp, size = find_functions(SOURCE)
    assert (clamp.name, clamp.def_line, clamp.first, clamp.last) == ("clamp", 1, 6, 13)
    assert (size.qualname, size.start_line, size.def_line, size.first) == ("Box.size", 17, 18, 18)


def test_kinds_and_exact_inverse() -> None:
    found = find_mutations(SOURCE)
    kinds = {m.kind for m in found}
    assert {
        "comparison",
        "membership",
        "boolean",
        "negation",
        "constant",
        "arithmetic",
        "augmented",
        "loop_exit",
    } <= kinds
    assert {"removed_return", "removed_call", "swapped_arguments", "swapped_branches", "name"} <= kinds
    for mutation in found:
        buggy = mutation.apply(SOURCE)
        assert buggy != SOURCE
        assert buggy[: mutation.start] + mutation.old + buggy[mutation.start + len(mutation.new) :] == SOURCE
        assert SOURCE.split("\n")[mutation.line - 1].find(mutation.old.split("\n")[0]) >= 0
        compile(buggy, "buggy", "exec")


def test_only_newlines_end_lines() -> None:
    """What else looks like a line's end to `str.splitlines` moves no mutation."""
    plain = SOURCE.replace("def clamp", 'X = "  "\n#  \n\ndef clamp', 1)
    assert plain != SOURCE
    spans = [(m.kind, m.line, m.old, m.new) for m in find_mutations(plain)]
    for odd in ("\x0c\x0c", "\u2028\u2029", "\x1c\x85"):
        text = plain.replace('"  "', f'"{odd}"').replace("#  ", f"#{odd}")
        assert [(m.kind, m.line, m.old, m.new) for m in find_mutations(text)] == spans
    assert [(m.kind, m.line, m.old, m.new) for m in find_mutations(plain.replace("\n", "\r\n"))] == spans


def test_a_mutation_of_another_version_is_refused() -> None:
    mutation = find_mutations(SOURCE)[0]
    with pytest.raises(ValueError, match="expected"):
        mutation.apply("# moved\n" + SOURCE)


def test_sampling_is_seeded() -> None:
    assert sample_mutations(SOURCE, random.Random(3), 4) == sample_mutations(SOURCE, random.Random(3), 4)


def test_gold_edits_undo_with_sed(tmp_path) -> None:
    file = tmp_path / "module.py"
    tried = 0
    for mutation in find_mutations(SOURCE):
        buggy = mutation.apply(SOURCE)
        edit = gold_edit(mutation, buggy) if is_one_token(mutation) else None
        if edit is None:
            continue
        tried += 1
        file.write_text(buggy)
        env = {"F": "module.py", "N": str(mutation.function.first - 1), "PATH": "/usr/bin:/bin"}
        subprocess.run(["bash", "-c", edit.command()], cwd=tmp_path, env=env, check=True, timeout=30)
        assert file.read_text() == SOURCE, edit
    assert tried > 15


@pytest.mark.parametrize(
    ("text", "low", "high", "new", "old"),
    [
        ("x1 = f(1)", 7, 8, "2", "1)"),  # the first 1 is another
        ("a = b * c * d", 10, 11, "+", "* d"),  # the first star is another; a star inside would repeat
        ("for x in y or z:", 11, 13, "and", " or"),
    ],
)
def test_shortest_edit_takes_as_little_context_as_needed(text, low, high, new, old) -> None:
    edit = shortest_edit(text, low, high, new, 1)
    assert edit is not None
    assert edit.old == old


def test_what_sed_would_misread_has_no_edit() -> None:
    assert shortest_edit('x = "$a"', 5, 7, "b", 1) is None
    assert Edit(3, "<", "<=").command() == 'sed -i "$((N+3))s|<|<=|" $F'

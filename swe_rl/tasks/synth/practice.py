"""Practice material for the tiny policy: many small bugs in windows of real modules, each listing and edit really executed.

A practice demonstration is what a demonstration of a task looks like (same commands, same prompt), with the code reduced to the
lines in question. Bash runs the commands; the demonstration is kept only if the file is then byte for byte the fixed one.
Drills are the same conversations over random words: they teach copying and finding, and hold nobody's code.
"""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import DataError
from swe_rl.tasks.synth.edit import LOOK, SUBMIT, Edit, gold_edit, shortest_edit
from swe_rl.tasks.synth.mutations import Mutation, is_one_token

MARK = "\x1e"  # separates the outputs of the commands that share one bash process
MAX_LINES = 9  # one digit is enough to name a line
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class Snippet:
    """A few lines of buggy code with the edit that fixes them."""

    name: str
    lines: tuple[str, ...]
    edit: Edit
    kind: str
    test: str = ""
    example: str = ""


@dataclass(frozen=True)
class Executed:
    """A snippet whose commands were run: `outputs[i]` is what bash printed for `commands[i]`. `ranged`: no line was named."""

    snippet: Snippet
    ranged: bool
    commands: tuple[str, ...]
    outputs: tuple[str, ...]


def snippet_of(mutation: Mutation, source: str, rng: random.Random) -> Snippet | None:
    """The lines around a mutation, at most `MAX_LINES`; None where no plain edit undoes it."""
    buggy = mutation.apply(source)
    edit = gold_edit(mutation, buggy)
    if edit is None or not is_one_token(mutation):
        return None
    function, lines = mutation.function, buggy.split("\n")
    first, last = function.first, function.last
    if last - first + 1 > MAX_LINES:
        size = rng.randint(3, MAX_LINES)
        first = max(function.first, mutation.line - rng.randrange(size))
        last = min(function.last, first + size - 1)
    shown = tuple(lines[first - 1 : last])
    if max(len(line) for line in shown) > 110:
        return None
    moved = Edit(mutation.line - first + 1, edit.old, edit.new)
    return Snippet(function.name, shown, moved, mutation.kind)


def renamed(snippet: Snippet, words: list[str], rng: random.Random) -> Snippet:
    """The same snippet with some of its words replaced by others throughout: new names to copy, same structure."""
    keep = set(_WORD.findall(f"{snippet.edit.old} {snippet.edit.new}"))
    present = sorted({w for line in snippet.lines for w in _WORD.findall(line)} - KEYWORDS - keep)
    table = {word: rng.choice(words) for word in present if rng.random() < 0.5}

    def swap(text: str) -> str:
        return _WORD.sub(lambda m: table.get(m.group(), m.group()), text)

    lines = tuple(swap(line) for line in snippet.lines)
    line = lines[snippet.edit.line - 1]
    low = line.find(snippet.edit.old)
    if low < 0:
        return snippet
    edit = shortest_edit(line, low, low + len(snippet.edit.old), snippet.edit.new, snippet.edit.line)
    return Snippet(swap(snippet.name), lines, edit, snippet.kind) if edit else snippet


def drill(words: list[str], rng: random.Random) -> Snippet:
    """Random words and marks with one of them to be replaced."""
    marks = ["(", ")", ".", "_", " ", " = ", ", ", ":", "[", "]", " + ", " < ", " == ", "1", "0", "2"]
    lines = []
    for _ in range(rng.randint(2, MAX_LINES)):
        parts = [" " * rng.choice((4, 8, 12))]
        for _ in range(rng.randint(2, 7)):
            parts += [rng.choice(words), rng.choice(marks)]
        lines.append("".join(parts).rstrip())
    while True:
        index = rng.randrange(len(lines))
        pieces = list(re.finditer(r"\w+|[<=+]+", lines[index]))
        piece = rng.choice(pieces)
        new = rng.choice((rng.choice(words), rng.choice(["<=", "1", "3", "-", "not", "!=", ">"])))
        edit = shortest_edit(lines[index], piece.start(), piece.end(), new, index + 1)
        if edit and edit.old != edit.new:
            return Snippet(rng.choice(words), tuple(lines), edit, "drill")


_KEYWORDS = """
    def return if else elif for in not and or is None True False while try except finally raise with as lambda yield from import
    class pass break continue self len range list tuple dict set str int isinstance
"""
KEYWORDS = set(_KEYWORDS.split())


RANGE_SHARE = 0.3  # of the edits proposed; they stay only where the replaced text stands on no other line
BATCH = 64  # snippets whose commands share one bash process


def execute(snippets: list[Snippet], rng: random.Random) -> list[Executed]:
    """Run look, edit and submit of each snippet in one bash process; those whose edit gave exactly the fixed file.

    Raises DataError if bash fails.
    """
    with tempfile.TemporaryDirectory(prefix="swe-rl-practice-") as folder:
        script, fixed = [], []
        ranged = [rng.random() < RANGE_SHARE for _ in snippets]
        commands = [_commands(snippet, without_line) for snippet, without_line in zip(snippets, ranged, strict=True)]
        for index, snippet in enumerate(snippets):
            offset = rng.randint(0, 40)
            lines = list(snippet.lines)
            edit = snippet.edit
            Path(folder, f"{index}.py").write_text("\n" * offset + "\n".join(lines) + "\n")
            lines[edit.line - 1] = lines[edit.line - 1].replace(edit.old, edit.new, 1)
            fixed.append("\n" * offset + "\n".join(lines) + "\n")
            script.append(f"F={index}.py N={offset} R={offset + 1},{offset + len(lines)}")
            script += [f"{command}\nprintf '{MARK}'" for command in commands[index]]
        done = subprocess.run(
            ["bash", "-s"],
            input="\n".join(script),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        outputs = done.stdout.split(MARK)
        if done.returncode or len(outputs) != 3 * len(snippets) + 1:
            raise DataError(f"practice commands failed ({done.returncode}): {done.stderr[-300:]}")
        return [
            Executed(snippet, ranged[index], commands[index], tuple(outputs[3 * index : 3 * index + 3]))
            for index, snippet in enumerate(snippets)
            if Path(folder, f"{index}.py").read_text() == fixed[index]
        ]


def _commands(snippet: Snippet, ranged: bool) -> tuple[str, str, str]:
    return (LOOK, snippet.edit.range_command() if ranged else snippet.edit.command(), SUBMIT)


def executed_snippets(
    make: Callable[[], Snippet | None], count: int, rng: random.Random, *, max_tries_factor: int = 10
) -> Iterator[Executed]:
    """`count` executed snippets from `make`. Raises DataError when too many are unusable."""
    made = tries = 0
    while made < count:
        if tries > count * max_tries_factor + BATCH:
            raise DataError(f"only {made} of {count} practice snippets were usable")
        proposed = [make() for _ in range(BATCH)]
        tries += BATCH
        for done in execute([snippet for snippet in proposed if snippet], rng)[: count - made]:
            made += 1
            yield done

"""Token-form rows of practice material: snippets from packages, renamed variants of them, and drills."""

from __future__ import annotations

import random
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swe_rl.agent.templates import load_prompts
from swe_rl.agent.tokens import chat_format
from swe_rl.errors import DataError
from swe_rl.tasks.synth.issue import LEVELS, issue_text
from swe_rl.tasks.synth.layout import code_modules
from swe_rl.tasks.synth.mutations import sample_mutations
from swe_rl.tasks.synth.practice import Executed, Snippet, drill, executed_snippets, renamed, snippet_of
from swe_rl.tasks.synth.source import read_tree
from swe_rl.tasks.synth.transcript import answer_text, token_demo

MODULES_PER_PACKAGE = 60
MUTATIONS_PER_FUNCTION = 8
RENAMED_SHARE = 0.5
SHORT_SHARE = 0.85  # end after the edit: submitting is soon learned, and tokens are time
LEVEL_WEIGHTS = (0.15, 0.25, 0.6)  # the hardest needs the most practice
ASSERTIONS = (
    "assert {name}({a}) == {b}",
    "assert {name}({a}, {n}) == [{n}, {m}]",
    "assert {a}.{name}({n}) is {b}",
    "assert not {name}({a}, {b})",
    "assert {a}({b}) == {{{n}: {m}}}",
    "self.assertEqual({name}({a}), {n})",
    "self.assertTrue({a}.{name}({b}))",
)
THOUGHTS = ("look", "fix", "done")
_DATA_MODULE = re.compile(r"(^|/)(_mapping|styles|unicode\w*|table_\w+)(/|\.py)|lexers/_|builtins|_version")


def snippets_of(sdist: Path, rng: random.Random) -> list[Snippet]:
    """The snippets of one package; modules that are tables of data are left out."""
    try:
        tree = read_tree(sdist)
    except tarfile.TarError as error:
        raise DataError(f"{sdist}: {error}") from error
    modules = [m for m in code_modules(tree) if not _DATA_MODULE.search(m) and len(tree[m]) < 120_000]
    rng.shuffle(modules)
    found: list[Snippet] = []
    for module in modules[:MODULES_PER_PACKAGE]:
        try:
            source = tree[module].decode()
            mutations = sample_mutations(source, rng, MUTATIONS_PER_FUNCTION)
        except (SyntaxError, UnicodeDecodeError):
            continue
        snippets = (snippet_of(mutation, source, rng) for mutation in mutations)
        found += [snippet for snippet in snippets if snippet is not None and len(snippet.lines) >= 2]
    return found


def practice_rows(
    sdists: list[Path], tokenizer: Any, prompts_name: str, count: int, drills: int, seed: int, step_limit: int
) -> Iterator[dict[str, Any]]:
    """`count` rows from the packages (each weighted by its size to the power 0.7) and `drills` rows of random words."""
    rng = random.Random(seed)
    pools = [pool for pool in (snippets_of(sdist, rng) for sdist in sdists) if pool]
    weights = [len(pool) ** 0.7 for pool in pools]
    words = practice_words(pools, rng)

    def from_package() -> Snippet:
        snippet = rng.choice(rng.choices(pools, weights)[0])
        return renamed(snippet, words, rng) if rng.random() < RENAMED_SHARE else snippet

    chat, prompts = chat_format(tokenizer), load_prompts(prompts_name)
    for make, wanted in ((from_package, count), (lambda: drill(words, rng), drills)):
        if wanted:
            for done in executed_snippets(make, wanted, rng):
                issue, turns = conversation(done, words, rng)
                turns = turns[:2] if rng.random() < SHORT_SHARE else turns
                yield token_demo(chat, prompts, issue, turns, step_limit).row(kind=done.snippet.kind)


def practice_words(pools: list[list[Snippet]], rng: random.Random) -> list[str]:
    """Words to copy: the packages' most frequent ones, and as many invented as a quarter of those."""
    counts = Counter(w for pool in pools for s in pool for line in s.lines for w in re.findall("[A-Za-z]+", line))
    words = [word for word, _ in counts.most_common(4000)]
    letters = "abcdefghijklmnopqrstuvwxyz"
    invented = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(max(1000, len(words) // 4))]
    return words + invented


def conversation(done: Executed, words: list[str], rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """(issue, turns). A drill has no symptom: its issue names the change. Only an edit that uses the line has it named."""
    snippet = done.snippet
    low, middle, high = (0.5, 0.5, 0.0) if snippet.kind == "drill" else LEVEL_WEIGHTS
    level = rng.choices(LEVELS, (0.0 if done.ranged else low, middle, high))[0]
    issue = issue_text(level, snippet.name, snippet.edit, *_symptom(snippet.name, words, rng), rng)
    turns = zip(THOUGHTS, done.commands, done.outputs, strict=True)
    return issue, [(answer_text(thought, command), output) for thought, command, output in turns]


def _symptom(name: str, words: list[str], rng: random.Random) -> tuple[str, str]:
    """(name of a failing test, its assertion or "") of the shapes that tasks have; the words in them are random."""
    a, b, tested = rng.choice(words), rng.choice(words), name.strip("_")
    test = f"test_{tested}" if rng.random() < 0.5 else f"test_{rng.choice([tested, a])}_{b}"
    if rng.random() < 0.5:
        return test, ""
    facts = {"name": name, "a": a, "b": b, "n": rng.randrange(20), "m": rng.randrange(20)}
    return test, rng.choice(ASSERTIONS).format(**facts)

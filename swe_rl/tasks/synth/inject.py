"""Find bugs that tests notice: plant each mutation in a copy of the repository and really run the tests that reach it."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import DataError
from swe_rl.tasks.synth.functions import Function
from swe_rl.tasks.synth.layout import code_modules, is_test_module
from swe_rl.tasks.synth.mutations import Mutation, sample_mutations
from swe_rl.tasks.synth.repository import why_not_text
from swe_rl.tasks.synth.source import write_tree
from swe_rl.tasks.synth.test_runs import TestRun, TestServer

BASELINE_TIMEOUT = 300.0
MUTANT_TIMEOUT = 20.0
REACHED_TESTS, OTHER_TESTS = 30, 6  # a task runs at most so many tests that reach its function, and that do not
MODULE_SECONDS = 4.0  # slower test modules are left out: every grading would pay for them


@dataclass(frozen=True)
class Bug:
    """A mutation that makes tests of one test module fail: `fail_to_pass`; the others there still pass."""

    path: str
    mutation: Mutation
    test_file: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    failure: tuple[str, int] | None  # (test file, line) where the first of `fail_to_pass` broke


class Injector:
    """A repository in a scratch folder with its tests ready to run."""

    def __init__(self, tree: dict[str, bytes], python: str) -> None:
        self.tree = tree
        self._folder = tempfile.TemporaryDirectory(prefix="swe-rl-synth-")
        self.root = Path(self._folder.name).resolve()
        write_tree(tree, self.root)
        self._stamp = int(time.time())
        self.skipped: dict[str, str] = {}  # modules that cannot be used, and why
        self.server = TestServer(python, self.root)
        self.baseline = self._baseline()

    def __enter__(self) -> Injector:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        self._folder.cleanup()

    def _baseline(self) -> TestRun:
        """Run every test module on the code as it is, on its own, so that a broken one does not hide the others."""
        merged = TestRun(0, False, {}, {}, {}, {})
        for module in filter(is_test_module, sorted(self.tree)):
            if why := why_not_text(self.tree[module]):  # the grader's test patch could not bring it
                self.skipped[module] = why
                continue
            run = self.server.run([module], timeout=BASELINE_TIMEOUT, trace=True)
            if sum(run.seconds.values()) > 2 * MODULE_SECONDS:  # tracing doubles it
                continue
            for name in ("tests", "seconds", "failures", "calls"):
                getattr(merged, name).update(getattr(run, name))
        return merged

    def tests_of(self, path: str, function: Function) -> list[str]:
        """Passing tests that call the function."""
        lines = range(function.start_line, function.def_line + 1)
        return [
            name
            for name, calls in self.baseline.calls.items()
            if self.baseline.tests.get(name) == "passed" and any(f == path and line in lines for f, line in calls)
        ]

    def covered_modules(self) -> list[str]:
        called = {path for calls in self.baseline.calls.values() for path, _ in calls}
        return [path for path in code_modules(self.tree) if path in called]

    def try_mutation(self, path: str, mutation: Mutation) -> Bug | None:
        """The bug, or None where no test newly fails or none is left that passes."""
        source = self.tree[path].decode()
        reached = self.tests_of(path, mutation.function)
        if not reached:
            return None
        test_file = _most_common([name.split("::")[0] for name in reached])
        chosen = self.chosen_tests(test_file, [name for name in reached if name.split("::")[0] == test_file])
        self._write(path, mutation.apply(source).encode())
        try:
            run = self.server.run(chosen, timeout=MUTANT_TIMEOUT)
        finally:
            self._write(path, self.tree[path])
        failing = [name for name in chosen if run.tests.get(name) == "failed"]
        passing = [name for name in chosen if run.tests.get(name) == "passed"]
        if run.timed_out or not failing or not passing or len(failing) + len(passing) < len(chosen):
            return None
        return Bug(path, mutation, test_file, tuple(failing), tuple(passing), run.failures.get(failing[0]))

    def _write(self, path: str, data: bytes) -> None:
        """Write a module with a new time stamp: bytecode caches go by size and whole seconds."""
        (self.root / path).write_bytes(data)
        self._stamp += 2
        os.utime(self.root / path, (self._stamp, self._stamp))

    def chosen_tests(self, test_file: str, reached: list[str]) -> list[str]:
        """The tests of one module that a task runs: those that reach the function, and some that do not."""
        others = [n for n in self.baseline.with_status("passed") if n.split("::")[0] == test_file and n not in reached]
        kept = _evenly(reached, REACHED_TESTS)
        return kept + _evenly(others, OTHER_TESTS)


def _evenly(names: list[str], most: int) -> list[str]:
    """At most `most` of `names`, evenly spread over the list."""
    if len(names) <= most:
        return list(names)
    return [names[i * len(names) // most] for i in range(most)]


def _most_common(names: list[str]) -> str:
    return max(sorted(set(names)), key=names.count)


def find_bugs(
    injector: Injector,
    *,
    seed: int,
    count: int,
    per_function: int = 3,
    accept: Callable[[str, Mutation], bool] = lambda source, mutation: True,
    on_try: Callable[[int], None] = lambda tried: None,
) -> Iterator[Bug]:
    """At most `count` bugs in seeded order, no two of which give the same buggy file.

    `accept(source, mutation)` leaves kinds out before any test runs. Modules that cannot be read go to `injector.skipped`.
    Raises DataError where no test passes at all.
    """
    if not injector.baseline.with_status("passed"):
        raise DataError("no test of this repository passes as it is; are its test requirements installed?")
    proposals: list[tuple[str, Mutation]] = []
    for path in injector.covered_modules():
        rng = random.Random(f"{seed}:{path}")
        try:
            source = injector.tree[path].decode()
            sampled = sample_mutations(source, rng, 10_000)
        except UnicodeDecodeError:
            injector.skipped[path] = why_not_text(injector.tree[path])
            continue
        except (SyntaxError, ValueError, RecursionError) as error:  # e.g. code for another Python, or a template
            injector.skipped[path] = str(error)
            continue
        found = [m for m in sampled if accept(source, m)]
        proposals += [(path, m) for m in _spread(found, rng, per_function)]
    random.Random(seed).shuffle(proposals)
    made, seen = 0, set()
    for tried, (path, mutation) in enumerate(proposals, 1):
        if made == count:
            return
        on_try(tried)
        buggy = (path, mutation.apply(injector.tree[path].decode()))
        if buggy in seen:
            continue
        seen.add(buggy)
        bug = injector.try_mutation(path, mutation)
        if bug is not None:
            made += 1
            yield bug


def _spread(found: list[Mutation], rng: random.Random, per_function: int) -> list[Mutation]:
    """At most `per_function` of each function, of different lines where possible."""
    by_function: dict[str, list[Mutation]] = {}
    for mutation in found:
        by_function.setdefault(mutation.function.qualname, []).append(mutation)
    chosen = []
    for group in by_function.values():
        rng.shuffle(group)
        seen: dict[tuple[int, str], int] = {}
        ranked = []
        for mutation in group:
            key = (mutation.line, mutation.kind)
            seen[key] = seen.get(key, 0) + 1
            ranked.append((seen[key], mutation))
        ranked.sort(key=lambda pair: pair[0])
        chosen += [mutation for _, mutation in ranked[:per_function]]
    return chosen

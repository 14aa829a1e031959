"""`swe-rl data synth`: tasks from any repository whose tests run with pytest, by planting bugs and running those tests."""

from __future__ import annotations

import argparse
import random
import re
import sys
import zlib
from pathlib import Path

from rich.progress import Progress

from swe_rl.config.load import load_config, print_and_exit_on_dry_run
from swe_rl.errors import DataError, UsageError
from swe_rl.sandbox.local_tools import ensure_tools_env
from swe_rl.tasks.certify.command import certified_file, certify_file
from swe_rl.tasks.load import write_tasks
from swe_rl.tasks.printable import plain
from swe_rl.tasks.synth.inject import Bug, Injector, find_bugs
from swe_rl.tasks.synth.issue import LEVELS
from swe_rl.tasks.synth.mutations import Mutation
from swe_rl.tasks.synth.recipe import Recipe, build_task, task_tree
from swe_rl.tasks.synth.simple import is_simple
from swe_rl.tasks.synth.source import find_sdist, read_tree


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swe-rl data synth",
        description="Make tasks from a repository with pytest tests: plant one bug, keep it if some test newly fails and others "
        "still pass, write the issue, hide the tests. The repository's tests run on this machine: use code you trust. "
        "The same seed gives the same tasks. Then they are certified, as by `swe-rl data certify`, in sandboxes like those of "
        "a run; a container engine gets the image for tasks that name none, if it lacks it.",
        epilog="Settings of sandboxes and grading are taken too (--sandbox docker, --swe-eval-timeout 900 ...): "
        "see swe-rl train --help.",
    )
    add = parser.add_argument
    add("--from", dest="source", required=True, metavar="SOURCE", help="folder, sdist file, or PyPI NAME[==VERSION]")
    add("--out", required=True, help="folder for tasks.jsonl and archives/")
    add("--count", type=int, default=30, help="tasks to make (default 30)")
    add("--per-function", type=int, default=2, help="most bugs tried in one function (default 2)")
    add(
        "--levels",
        default="L1,L2,L3",
        help="issue levels in turn: L1 line and change, L2 change, L3 symptom (default all)",
    )
    add("--kinds", default="", help="only these kinds of bug, comma-separated (default all)")
    add(
        "--simple",
        action="store_true",
        help="only one-token bugs in functions of at most 9 lines, as in the quickstart",
    )
    add("--seed", type=int, default=1, help="which bugs, which words (default 1)")
    add("--python", default="", help="interpreter that runs the tests (default: the sandboxes' own, with pytest only)")
    add("--no-certify", action="store_true", help="only make the tasks; training takes certified ones")
    add("--repeat", type=int, default=3, help="gradings of each gold patch at certification (default 3)")
    add("--cache", default="~/.cache/swe-rl/sdists", help="folder of downloaded sdists")
    return parser


def make_recipes(
    tree: dict[str, bytes], *, package: str, count: int, seed: int, levels: list[str], python: str, **options: object
) -> list[Recipe]:
    """`count` recipes at most, found by running tests. `options` go to `find_bugs`."""
    recipes: list[Recipe] = []
    with Injector(task_tree(tree), python) as injector, Progress(disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(package, total=count)
        for bug in find_bugs(injector, seed=seed, count=count, **options):  # type: ignore[arg-type]
            level = levels[len(recipes) % len(levels)]
            recipes.append(Recipe.of(bug, id=task_id(package, bug, {r.id for r in recipes}), level=level, seed=seed))
            progress.update(bar, completed=len(recipes))
    _say_skipped(injector.skipped)
    random.Random(seed).shuffle(recipes)
    return recipes


def task_id(package: str, bug: Bug, taken: set[str]) -> str:
    """A name for the task: what is wrong in which function; with a hash of the whole where another task has that name."""
    mutation = bug.mutation
    name = f"{package}__{mutation.function.name}-{mutation.kind}-{mutation.start}-{mutation.new}"
    safe = "".join(c if c.isalnum() or c in "_-." else f"x{ord(c):x}" for c in name)
    if safe[:120] not in taken:
        return safe[:120]
    return f"{safe[:110]}-{zlib.crc32(f'{bug.path} {name}'.encode()):08x}"


def _say_skipped(skipped: dict[str, str]) -> None:
    if skipped:
        print(f"{len(skipped)} modules skipped, the first:", file=sys.stderr)
        for path, why in list(skipped.items())[:5]:
            print(f"  {path}: {plain(why)}", file=sys.stderr)


def main(argv: list[str]) -> int:
    """Exit code 0 where tasks were made and, unless told otherwise, at least one was certified and none is left unknown."""
    args, rest = build_parser().parse_known_args(argv)
    loaded = load_config(rest, prog="swe-rl data synth")
    print_and_exit_on_dry_run(loaded)
    config = loaded.config
    levels = [level for level in args.levels.split(",") if level]
    if not levels or set(levels) - set(LEVELS):
        raise UsageError(f"--levels {args.levels}: allowed are {', '.join(LEVELS)}")
    if args.count < 1 or args.per_function < 1 or args.repeat < 1:
        raise UsageError("--count, --per-function and --repeat must be at least 1")
    kinds = {kind for kind in args.kinds.split(",") if kind}

    def accept(source: str, mutation: Mutation) -> bool:
        return (not kinds or mutation.kind in kinds) and (not args.simple or is_simple(source, mutation))

    source = Path(args.source)
    if not source.is_dir():
        source = find_sdist(args.source, Path(args.cache).expanduser())
    package = package_name(source)
    python = args.python or str(ensure_tools_env() / "bin" / "python")
    tree = read_tree(source)
    recipes = make_recipes(
        tree,
        package=package,
        count=args.count,
        seed=args.seed,
        levels=levels,
        python=python,
        per_function=args.per_function,
        accept=accept,
    )
    if not recipes:
        raise DataError(f"{args.source}: no bug was found that its tests notice; try other --kinds or --per-function")
    out = Path(args.out)
    tasks = [build_task(r, tree, (out / "archives" / f"{r.id}.tar").resolve(), package=package) for r in recipes]
    made = out / "tasks.jsonl"
    write_tasks(made, tasks)
    if args.no_certify:
        print(f"{len(tasks)} tasks in {made}; certify them with: swe-rl data certify {made}")
        return 0
    print(f"{len(tasks)} tasks in {made}", flush=True)
    return certify_file(made, certified_file(made), config, repeat=args.repeat)


def package_name(source: Path) -> str:
    """The name of a folder or an sdist, without its version: `click` of click-8.1.7.tar.gz."""
    return re.sub(r"-\d[^-]*$", "", source.resolve().name.removesuffix(".tar.gz")) or "repository"

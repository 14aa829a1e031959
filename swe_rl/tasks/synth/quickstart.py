"""The quickstart's tasks: built from the recipes in `data/quickstart/recipes`, exactly the same on every machine.

`python -m swe_rl.tasks.synth.quickstart` is what `data/quickstart/build.sh` runs. `--make` is how the recipes were found,
`--certify` runs gold and empty patches through the grader and records the result in the recipes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from swe_rl.errors import DataError, SweRlError
from swe_rl.sandbox.local_tools import ensure_tools_env
from swe_rl.tasks.load import write_tasks
from swe_rl.tasks.synth.certify import certify_recipes
from swe_rl.tasks.synth.command import make_recipes
from swe_rl.tasks.synth.recipe import Recipe, build_task
from swe_rl.tasks.synth.simple import is_simple
from swe_rl.tasks.synth.source import cached_sdist, download_sdist, read_tree, sha256
from swe_rl.types import Task

ROOT = Path("data/quickstart")
SPLITS = ("train", "heldout")
# Half name the change: most can be learned there. One in ten names the line too: the policy starts near its best at those.
LEVELS_IN_TURN = ["L2", "L3", "L2", "L3", "L2", "L1", "L3", "L2", "L3", "L2"]


@dataclasses.dataclass
class PackageRecipes:
    """One file of `data/quickstart/recipes`: a package, pinned, and its tasks."""

    package: str
    version: str
    sha256: str
    license: str
    split: str
    tasks: list[Recipe]

    @classmethod
    def read(cls, file: Path) -> PackageRecipes:
        try:
            raw = json.loads(file.read_text())
            return cls(**{**raw, "tasks": [Recipe(**task) for task in raw["tasks"]]})
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{file}: not a recipe file: {error!r}") from error

    def write(self, file: Path) -> None:
        head = {k: v for k, v in vars(self).items() if k != "tasks"}
        lines = ",\n".join(" " + json.dumps(task.to_dict()) for task in self.tasks)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(head, indent=1)[:-2] + ',\n "tasks": [\n' + lines + "\n ]\n}\n")

    def sdist(self, cache: Path) -> Path:
        """The package's sdist, downloaded by pip unless it is there. Raises DataError where its hash is another."""
        file = cached_sdist(self.package, self.version, cache) or download_sdist(
            f"{self.package}=={self.version}", cache
        )
        if self.sha256 and sha256(file) != self.sha256:
            raise DataError(
                f"{file}: sha256 is {sha256(file)}, the recipes were made from {self.sha256}; remove the file"
            )
        return file


def read_recipes(folder: Path) -> list[PackageRecipes]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: no recipes there; run this from the checkout's top folder")
    return [PackageRecipes.read(file) for file in files]


def build(recipes: list[PackageRecipes], out: Path, cache: Path) -> dict[str, list[Task]]:
    """Download, check and build everything that is not there yet. Returns the tasks by split."""
    total = sum(len(package.tasks) for package in recipes)
    tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
    columns = (*Progress.get_default_columns(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress:
        fetching = progress.add_task("sdists", total=len(recipes))
        with ThreadPoolExecutor(3) as pool:
            files = []
            for file in pool.map(lambda package: package.sdist(cache), recipes):
                files.append(file)
                progress.advance(fetching)
        bar = progress.add_task("tasks", total=total)
        for package, file in zip(recipes, files, strict=True):
            tree = read_tree(file)
            for recipe in package.tasks:
                tasks[package.split].append(_task(recipe, tree, out, package.package))
                progress.advance(bar)
    return tasks


def _task(recipe: Recipe, tree: dict[str, bytes], out: Path, package: str) -> Task:
    """The task, from its finished record where one is there (a build that was interrupted goes on)."""
    archive = (out / "archives" / f"{recipe.id}.tar").resolve()
    record = out / "records" / f"{recipe.id}.json"
    key = f"{zlib.crc32(json.dumps(recipe.to_dict()).encode()):08x} {archive}"
    if record.exists() and archive.exists():
        stored: dict[str, Any] = json.loads(record.read_text())
        if stored["key"] == key:
            return Task(**stored["task"])
    task = build_task(recipe, tree, archive, package=package)
    record.parent.mkdir(parents=True, exist_ok=True)
    beside = record.with_suffix(".tmp")
    beside.write_text(json.dumps({"key": key, "task": dataclasses.asdict(task)}))
    beside.replace(record)
    return task


def make(packages: list[dict[str, Any]], folder: Path, cache: Path, seed: int) -> None:
    """Find bugs for every package of `packages.json` that has no recipe file yet."""
    python = str(ensure_tools_env() / "bin" / "python")
    for entry in packages:
        target = folder / f"{entry['package']}.json"
        if target.exists():
            continue
        found = PackageRecipes(entry["package"], entry["version"], "", entry["license"], entry["split"], [])
        file = found.sdist(cache)
        found.sha256 = sha256(file)
        try:
            found.tasks = make_recipes(
                read_tree(file),
                package=entry["package"],
                count=entry["count"],
                seed=seed,
                levels=LEVELS_IN_TURN,
                python=python,
                per_function=entry.get("per_function", 2),
                accept=is_simple,
            )
        except DataError as error:
            print(f"{entry['package']}: left out: {error}", flush=True)
            continue
        found.write(target)
        print(f"{entry['package']}: {len(found.tasks)} tasks", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="data/quickstart/build.sh", description=__doc__)
    parser.add_argument("--root", default=str(ROOT), help="folder of packages.json and recipes (default %(default)s)")
    parser.add_argument("--out", help="where tasks and archives go (default: ROOT/build)")
    parser.add_argument("--cache", help="folder of sdists (default: ROOT/build/sdists)")
    parser.add_argument("--make", action="store_true", help="find bugs for the packages that have no recipes yet")
    parser.add_argument("--certify", action="store_true", help="grade gold and empty patches; record it in the recipes")
    parser.add_argument(
        "--only", action="append", default=[], help="certify only this package; may be given several times"
    )
    parser.add_argument("--seed", type=int, default=1, help="of --make (default 1)")
    args = parser.parse_args(argv)
    root = Path(args.root)
    out, folder = Path(args.out or root / "build"), root / "recipes"
    cache = Path(args.cache or root / "build" / "sdists")
    if args.make:
        make(json.loads((root / "packages.json").read_text()), folder, cache, args.seed)
    recipes = read_recipes(folder)
    if args.certify:
        for package in (p for p in recipes if not args.only or p.package in args.only):
            file = folder / f"{package.package}.json"
            save = functools.partial(package.write, file)
            certify_recipes(package.tasks, read_tree(package.sdist(cache)), out, package.package, save)
    tasks = build(recipes, out, cache)
    for split in SPLITS:
        write_tasks(out / f"{split}.jsonl", tasks[split])
        print(f"{len(tasks[split])} {split} tasks in {out / f'{split}.jsonl'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SweRlError as error:
        sys.exit(f"build.sh: {error}")

"""The `swebench` package's own spec maker, log parsers and report, without the half gigabyte that it imports beside them.

`import swebench` pulls datasets, docker, modal and requests (7-11 s and 215 MB measured on 2 cores) for image building and
hub access, which is not what is asked of it here. So its modules are loaded from their own source with those imports left
out, under a lock, and taken out of `sys.modules` again: a later ordinary `import swebench` gets the whole package.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.errors import UsageError

_HEAVY = {"datasets", "docker", "modal", "dotenv", "requests", "tqdm", "bs4", "git", "ghapi"}
_BARE_PACKAGES = ("", "harness", "harness.test_spec")  # their __init__ import everything
_LOCK = threading.Lock()


@dataclass(frozen=True)
class SwebenchLibrary:
    """What is used of swebench 4.x. `specs[repo][version]` says how a repository's tests are run."""

    version: str
    specs: dict[str, dict[str, dict[str, Any]]]
    parsers: dict[str, Callable[[str, Any], dict[str, str]]]
    make_test_spec: Callable[..., Any]
    eval_tests_report: Callable[..., dict[str, dict[str, list[str]]]]
    resolution_status: Callable[[dict[str, dict[str, list[str]]]], str]
    fail_only_repos: frozenset[str]


class _LightLoader(importlib.machinery.SourceFileLoader):
    """Runs a module's source without its top-level imports of heavy packages (and `load_dotenv()`)."""

    def get_code(self, fullname: str) -> types.CodeType:
        source = self.get_data(self.path)
        tree = ast.parse(source, self.path)
        tree.body = [node for node in tree.body if not _is_heavy(node)]
        future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0, lineno=1, col_offset=0)
        tree.body.insert(0, future)  # annotations that name what is no longer imported stay text
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _is_heavy(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in _HEAVY for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in _HEAVY
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "load_dotenv"


class _LightFinder:
    """Finds swebench's modules for `_LightLoader`; the packages that import everything are empty shells."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != "swebench":
            return None
        inside = name.partition(".")[2]
        place = self.root.joinpath(*inside.split(".")) if inside else self.root
        if inside in _BARE_PACKAGES:
            shell = importlib.machinery.ModuleSpec(name, None, is_package=True)
            shell.submodule_search_locations = [str(place)]
            return shell
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not file.is_file():
            return None
        locations = [str(place)] if place.is_dir() else None
        return importlib.util.spec_from_file_location(
            name, file, loader=_LightLoader(name, str(file)), submodule_search_locations=locations
        )


@functools.cache
def swebench_library() -> SwebenchLibrary:
    """Load the library once. Raises UsageError where swebench 4.x is not installed."""
    found = importlib.util.find_spec("swebench")
    if found is None or not found.submodule_search_locations:
        raise UsageError("this needs the swebench package: pip install 'swe-rl[swebench]'")
    root = Path(found.submodule_search_locations[0])
    version = importlib.metadata.version("swebench")
    if not (root / "harness" / "test_spec" / "test_spec.py").is_file():
        raise UsageError(f"swebench {version} has no spec maps: pip install 'swebench>=4.1,<5'")
    with _LOCK:
        modules = _import_light(root)
    scripts = modules["test_spec.python"]
    # They only serve the building of environment images, from a git host; the eval script does not depend on them.
    scripts.get_requirements = lambda instance: ""
    scripts.get_environment_yml = lambda instance, env_name: ""
    constants, grading = modules["constants"], modules["grading"]
    return SwebenchLibrary(
        version=version,
        specs=constants.MAP_REPO_VERSION_TO_SPECS,
        parsers=modules["log_parsers"].MAP_REPO_TO_PARSER,
        make_test_spec=modules["test_spec.test_spec"].make_test_spec,
        eval_tests_report=grading.get_eval_tests_report,
        resolution_status=grading.get_resolution_status,
        fail_only_repos=frozenset(constants.FAIL_ONLY_REPOS),
    )


def _import_light(root: Path) -> dict[str, Any]:
    finder = _LightFinder(root)
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "swebench"}
    sys.meta_path.insert(0, finder)
    try:
        names = ("constants", "log_parsers", "test_spec.python", "test_spec.test_spec", "grading")
        return {name: importlib.import_module(f"swebench.harness.{name}") for name in names}
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == "swebench"]:
            del sys.modules[name]
        sys.modules.update(before)

"""The pytest plugin that tells the grader what happened, and whether the code under test meddled with pytest itself.

Loaded by `pytest_runner.py` (not importable by name from a test). Beside each test's outcome it reports
- canaries: tests of its own, in the task's modules, that must fail; where one passes, somebody makes tests pass;
- integrity: functions of pytest, unittest, pluggy and builtins that are no longer those from before the first import of
  the code under test; plugins registered since then;
- outcomes by `pytest.xfail()` or `pytest.skip()` called by code instead of a mark in the tests.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import inspect
import json
import os
import sys
import unittest
import unittest.case
from collections.abc import Generator
from typing import Any

import _pytest.assertion.rewrite
import _pytest.runner
import pluggy
import pytest

# Modules whose functions and classes decide an outcome; pytest's versions differ in which they have.
HARNESS = [
    "_pytest.assertion.rewrite", "_pytest.assertion.util", "_pytest.main", "_pytest.outcomes", "_pytest.python", "_pytest.raises",
    "_pytest.python_api", "_pytest.reports", "_pytest.runner", "_pytest.skipping", "_pytest.unittest", "unittest",
    "unittest.case", "unittest.result", "pytest",
]  # fmt: skip
CLASSES = [
    "_pytest.main.Session", "_pytest.python.Function", "_pytest.reports.TestReport", "_pytest.reports.BaseReport",
    "_pytest.reports.CollectReport", "_pytest.runner.CallInfo", "_pytest.unittest.TestCaseFunction", "unittest.case.TestCase",
    "unittest.result.TestResult",
]  # fmt: skip


def guarded() -> list[Any]:
    """The modules and classes above, as far as this pytest has them, and pluggy's."""
    found: list[Any] = [pluggy.PluginManager, pluggy.HookCaller]
    for name in HARNESS:
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(name))
    for path in CLASSES:
        module, _, name = path.rpartition(".")
        found.append(getattr(sys.modules[module], name))
    return found


GUARDED = guarded()
BUILTINS = ["AssertionError", "BaseException", "Exception", "isinstance", "issubclass", "len", "getattr", "type", "bool", "all",
            "any", "repr", "sorted", "__import__", "compile", "exec", "__build_class__"]  # fmt: skip
MODULES = [
    "pytest",
    "unittest",
    "unittest.case",
    "_pytest.runner",
    "_pytest.reports",
    "_pytest.python",
    "pluggy",
    "builtins",
]
DOCTOR = ("__doc__", "__annotations__", "__abstractmethods__", "_classSetupFailed", "_class_cleanups")


def fingerprint() -> dict[str, tuple[int, ...]]:
    """Identity of every function and class that decides an outcome, and of the code inside the functions."""
    seen: dict[str, tuple[int, ...]] = {}
    for owner in GUARDED:
        label = owner.__name__
        for name, value in list(vars(owner).items()):
            target = getattr(value, "__func__", value)
            if callable(target) or isinstance(value, property):
                code = getattr(target, "__code__", None)
                seen[label + "." + name] = (id(value), id(code), id(getattr(target, "__defaults__", None)))
    for name in BUILTINS:
        seen["builtins." + name] = (id(getattr(builtins, name)),)
    for name in MODULES:
        seen["sys.modules." + name] = (id(sys.modules.get(name)),)
    return seen


def code_of(item: pytest.Item) -> Any:
    """The code that a test will run; None for items that are no functions, and for coroutines, which plugins wrap."""
    function = getattr(item, "function", None)
    return None if inspect.iscoroutinefunction(function) else getattr(function, "__code__", None)


def assertion_canary() -> None:
    assert [1, 2] == [2, 1]


def unittest_canary() -> None:
    unittest.TestCase().assertEqual(1, 2)


def raises_canary() -> None:
    with pytest.raises(KeyError):
        len("")


def approx_canary() -> None:
    if pytest.approx(2.0) != 1.0:
        raise ValueError("differs, as it must")


CANARIES = [assertion_canary, unittest_canary, raises_canary, approx_canary]


class Witness:
    def __init__(self, fd: int, config: dict[str, Any]) -> None:
        self._fd, self._token = fd, config["token"]
        self._write, self._dumps = os.write, json.dumps
        self._number = 0
        self._wanted = set(config["tests"])
        self._canary_names = list(config["canaries"])
        self._canaries: dict[str, str] = {}
        self._original = fingerprint()
        self._keep: list[Any] = [vars(owner).copy() for owner in GUARDED]  # no id may be used again while we compare
        self._classes: dict[int, Any] = {}
        self._marked: dict[str, bool] = {}
        self._code: dict[str, Any] = {}
        self._running = ""  # the test whose own code runs now
        self._trace = sys.gettrace()
        self._loader = _pytest.assertion.rewrite.AssertionRewritingHook
        self._tell("ready")

    def _tell(self, kind: str, **fields: Any) -> None:
        self._number += 1
        line = (self._dumps({"kind": kind, "n": self._number, "token": self._token, **fields}) + "\n").encode()
        while line:
            line = line[self._write(self._fd, line) :]

    def _changed(self, final: bool) -> list[str]:
        """What differs from the start. Fixtures may replace builtins while a test runs; at the end they are back."""
        now = fingerprint()
        names = [name for name, value in self._original.items() if now.get(name) != value]
        return sorted(n for n in names if not n.endswith(DOCTOR) and (final or not n.startswith("builtins.")))

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Before the first conftest.py can import the code under test: pytest's own modules and classes, of which plugins are."""
        modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "_pytest"]
        found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
        plugins = [plugin for _, plugin in early_config.pluginmanager.list_name_plugin() if plugin is not None]
        self._classes = {id(one): one for one in [*modules, *found, *plugins]}

    def _strangers(self, manager: Any) -> list[str]:
        """Plugins that are neither pytest's own nor a conftest.py as pytest loads it, whatever they are called."""
        names = []
        for name, plugin in manager.list_name_plugin():
            if plugin is None or id(plugin) in self._classes or id(type(plugin)) in self._classes:
                continue
            path = str(getattr(plugin, "__file__", "")).rpartition("/")[2]
            loader = getattr(getattr(plugin, "__spec__", None), "loader", None)
            if not (inspect.ismodule(plugin) and path == "conftest.py" and isinstance(loader, self._loader)):
                names.append(f"plugin {name}")
        return names

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self._wanted:
            chosen = [item for item in items if item.nodeid in self._wanted]
            if len(chosen) < len(items):
                config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._wanted])
            items[:] = chosen
        self._tell("collected", tests=[item.nodeid for item in items])
        for item in items:
            self._code[item.nodeid] = code_of(item)
            self._marked[item.nodeid] = item.get_closest_marker("xfail") is not None
            module = getattr(item, "module", None)
            loader = getattr(getattr(module, "__spec__", None), "loader", None)
            if module is not None and not isinstance(loader, self._loader):
                self._tell("meddled", what=["a test module that pytest did not load"], test=item.nodeid)
        modules = list(dict.fromkeys(module for module in (item.getparent(pytest.Module) for item in items) if module))
        for number, name in enumerate(self._canary_names if modules else []):
            module = modules[number % len(modules)]
            item = pytest.Function.from_parent(module, name=name, callobj=CANARIES[number % len(CANARIES)])
            self._canaries[item.nodeid] = name
            items.insert((number * len(items)) // max(1, len(self._canary_names)), item)
        self._tell("canaries", placed=sorted(self._canaries.values()))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell("collect_error", test=report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        name = self._canaries.get(item.nodeid)
        if name is None:
            return None
        reports = _pytest.runner.runtestprotocol(item, log=False, nextitem=nextitem)
        self._tell("canary", name=name, outcomes=[[report.when, report.outcome] for report in reports])
        return True

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, None]:
        self._running = item.nodeid
        try:
            yield
        finally:
            self._running = ""

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, None]:
        outcome = yield
        report = outcome.get_result()
        if item.nodeid in self._canaries:
            return
        if report.when == "call" and self._running == item.nodeid:
            # A part of a test that goes on (subtests): it can fail the test, nothing else.
            self._tell("part", test=item.nodeid, outcome=report.outcome)
            return
        marked = self._marked.get(item.nodeid, False)  # as collected: code can mark its own test
        raised = call.excinfo is not None
        self._tell(
            "phase",
            test=item.nodeid,
            when=report.when,
            outcome=report.outcome,
            xfail=hasattr(report, "wasxfail"),
            marked=marked,
            raised=raised,
        )
        if report.when == "call":
            changed = self._changed(final=False) + self._strangers(item.config.pluginmanager)
            if (code := self._code.get(item.nodeid)) is not None and code is not code_of(item):
                changed.append("the test function itself")
            if sys.gettrace() is not self._trace:
                changed.append("sys.settrace")
            if changed:
                self._tell("meddled", what=changed[:20], test=item.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        changed = self._changed(final=True) + self._strangers(session.config.pluginmanager)
        if changed:
            self._tell("meddled", what=changed[:20], test="")

    def ended(self, code: int) -> None:
        self._tell("ended", code=code)

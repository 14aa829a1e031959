"""The plugin that proves a pytest session of an eval script, with the pytest that is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.grading import evaluate

TESTS = """
import unittest
import pytest
import mod


@pytest.fixture
def patched(monkeypatch):
    monkeypatch.setattr(unittest.TestCase, "assertEqual", lambda *a: None)


def test_a(patched): assert mod.one() == 1
async def test_async(): assert mod.one() == 1
def test_b(): assert mod.one() == 2
@pytest.mark.xfail
def test_c(): assert 0
class TestD(unittest.TestCase):
    def test_e(self): self.assertEqual(mod.one(), 2)
    @unittest.skip("no")
    def test_f(self): pass
"""
# As old versions of pytest-asyncio and others do it.
RUNS_COROUTINES = """
import asyncio
import inspect
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        test = pyfuncitem.obj
        pyfuncitem.obj = lambda: asyncio.run(test())
"""
HONEST = "def one():\n    return 1\n"
CHEATS = {
    "function of pytest": "import _pytest.runner as r\nr.CallInfo = type('CallInfo', (r.CallInfo,), {})\n",
    "code of a function": "import _pytest.python as p\np.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__\n",
    "assertion of unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n",
    "builtin": "import builtins\nbuiltins.AssertionError = KeyError\n",
}


def session(folder: Path, code: str, words: list[str], *more: str) -> tuple[int, list[str]]:
    """Exit code of a session as grade.sh starts it, and what it said after the words."""
    proof = folder / "proof"
    proof.mkdir(exist_ok=True)
    shutil.copy(Path(evaluate.__file__).with_name(evaluate.SESSION_PROOF), proof / "swe_rl_session.py")
    for number, word in enumerate(words):
        (proof / f"word{number}").write_text(word)
    (folder / "test_m.py").write_text(TESTS)
    (folder / "conftest.py").write_text(RUNS_COROUTINES)
    (folder / "mod.py").write_text(code)
    environment = {
        **os.environ, "PYTHONPATH": str(proof), "SWE_RL_PYTHONPATH": "", "PYTEST_ADDOPTS": "-p swe_rl_session",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_m.py", *more]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, [line for line in (done.stdout + done.stderr).split("\n") if line.startswith("word-")]


def test_an_honest_session_says_begin_and_end_and_takes_one_word(tmp_path: Path) -> None:
    code, said = session(tmp_path, HONEST, ["word-a", "word-b"])
    tests = [
        *(f"passed test_m.py::test_{name}" for name in ("a", "async")),
        "failed test_m.py::test_b",
        "passed test_m.py::test_c",
        "failed test_m.py::TestD::test_e",
    ]
    assert (code, said) == (1, [f"word-a {text}" for text in ("begin", *tests, "end 1")])
    assert session(tmp_path, HONEST, [])[1] == [line.replace("word-a", "word-b") for line in said]
    assert session(tmp_path, HONEST, []) == (1, [])


def test_what_honest_plugins_and_tests_do_is_not_told(tmp_path: Path) -> None:
    """An installed plugin that exchanges a function and registers another, a conftest.py that does so, pytest's own classes."""
    (tmp_path / "installed.py").write_text(
        "from _pytest.unittest import TestCaseFunction\nold = TestCaseFunction.addSkip\n"
        "def skip(self, *rest): old(self, *rest)\nclass Late: pass\n"
        "def pytest_configure(config): TestCaseFunction.addSkip = skip\n"
        "def pytest_collection_finish(session): session.config.pluginmanager.register(Late(), 'late')\n"
    )
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "conftest.py").write_text(
        "class Mine: pass\ndef pytest_runtest_setup(item):\n    m = item.config.pluginmanager\n"
        "    m.hasplugin('mine') or m.register(Mine(), 'mine')\n"
    )
    (folder / "test_sub.py").write_text("pytest_plugins = ['helper', 'pytester']\ndef test_sub(h): pass\n")
    (tmp_path / "helper.py").write_text("import pytest\n@pytest.fixture\ndef h(): pass\n")
    assert [line.split()[1] for line in session(tmp_path, HONEST, ["word-a"], "-p", "installed", "sub/test_sub.py")[1]] == [
        "begin", "passed", "passed", "failed", "passed", "failed", "passed", "end",
    ]  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_what_the_code_exchanges_is_told(name: str, tmp_path: Path) -> None:
    said = session(tmp_path, HONEST + CHEATS[name], ["word-a"])[1]
    assert [kind for line in said if (kind := line.split()[1]) not in ("failed", "passed")] == [
        "begin",
        "meddled",
        "end",
    ], said


def test_modules_that_cannot_be_collected_are_told(tmp_path: Path) -> None:
    assert session(tmp_path, "raise ValueError\n", ["word-a"])[1] == [
        "word-a begin",
        "word-a failed test_m.py",
        "word-a end 2",
    ]


def test_a_process_that_leaves_owes_its_end(tmp_path: Path) -> None:
    code, said = session(tmp_path, HONEST + "import os; os._exit(0)\n", ["word-a"])
    assert (code, said) == (0, ["word-a begin"])
    # What the module still holds does not help to say the end.
    look = "import sys\nprint(*map(str, vars(sys.modules['swe_rl_session']).values()), flush=True)\n"
    forged = look + "import os; os._exit(0)\n"
    assert session(tmp_path, HONEST + forged, ["word-a"])[1] == ["word-a begin"]


PASSES_ITSELF = """
import sys
import pytest
from _pytest.reports import TestReport


def one():
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "ihook"):
        frame = frame.f_back
    item = frame.f_locals["self"]
    item.ihook.pytest_runtest_logreport(report=TestReport(item.nodeid, item.location, {}, "passed", None, "call"))
    pytest.exit("done", 0)
"""


def test_what_the_code_reports_of_its_own_test_is_not_seen(tmp_path: Path) -> None:
    code, said = session(tmp_path, PASSES_ITSELF, ["word-a"])
    assert (code, said[-1], [line for line in said if " passed " in line]) == (0, "word-a end 0", [])


def test_failures_that_only_the_code_expects_are_told_apart(tmp_path: Path) -> None:
    """A test the file of which says nothing of it; in the others' (test_m.py), marks and words count."""
    (tmp_path / "test_n.py").write_text("import mod\ndef test_n(): assert mod.two() == 2\n")
    code = HONEST + "def two():\n    import pytest\n    pytest.xfail('known')\n"
    said = session(tmp_path, code, ["word-a"], "test_n.py")[1]
    assert [line for line in said if "xfailed" in line] == ["word-a xfailed test_n.py::test_n"]
    assert "word-a passed test_m.py::test_c" in said


def test_ids_are_those_of_the_summary(tmp_path: Path) -> None:
    """Seen from the folder where pytest was started."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    folder = tmp_path / "sub"
    folder.mkdir()
    assert "word-a passed test_m.py::test_a" in session(folder, HONEST, ["word-a"])[1]


def test_a_plugin_may_exchange_functions_while_a_test_runs(tmp_path: Path) -> None:
    """As flaky does; what is made of a plugin's code is not the plugin's."""
    (tmp_path / "installed.py").write_text(
        "import _pytest.runner as r\nold = r.call_and_report\n"
        "class Plugin:\n    def call(self, item, when, log=True, **kwds): return old(item, when, log, **kwds)\n"
        "def pytest_runtest_setup(item): r.call_and_report = Plugin().call\n"
    )
    for more, kinds in (("", set()), ("import installed, types, _pytest.runner as r\nr.TestReport = types.FunctionType("
                                      "installed.Plugin.call.__code__, {})\n", {"meddled"})):  # fmt: skip
        said = session(tmp_path, HONEST + more, ["word-a"], "-p", "installed")[1]
        assert {line.split()[1] for line in said} - {"begin", "passed", "failed", "end"} == kinds, said


def test_workers_are_not_told_of_the_plugin(tmp_path: Path) -> None:
    """xdist hands on the list of plugins that were asked for."""
    (tmp_path / "other.py").write_text(
        "def pytest_sessionstart(session): open('asked', 'w').write(repr(session.config.option.plugins))\n"
    )
    session(tmp_path, HONEST, ["word-a"], "-p", "other")
    assert (tmp_path / "asked").read_text() == "['no:cacheprovider', 'other']"

"""The plugin that proves a pytest session of an eval script, with the pytest that is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.grading import evaluate
from swe_rl.grading.pytest_sessions import sessions_of

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
A, B = ("a" * 24, "b" * 24)
HONEST = "def one():\n    return 1\n"
CHEATS = {
    "code of a test that puts it back": "import sys\ndef mine():\n    test_b.__code__ = mod.OLD\n"
    "def one():\n    if 'OLD' not in globals():\n        test = sys.modules['test_m'].test_b\n"
    "        globals()['OLD'] = test.__code__\n        test.__code__ = mine.__code__\n    return 1\n",
    "function of pytest": "import _pytest.runner as r\nr.CallInfo = type('CallInfo', (r.CallInfo,), {})\n",
    "code of a function": "import _pytest.python as p\np.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__\n",
    "assertion of unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n",
    "builtin": "import builtins\nbuiltins.AssertionError = KeyError\n",
}


def run_session(folder: Path, code: str, words: list[str], *more: str) -> tuple[int, str]:
    """Exit code and output of a session as grade.sh starts it."""
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
    return done.returncode, done.stdout + done.stderr


def session(folder: Path, code: str, words: list[str], *more: str) -> tuple[int, list[str]]:
    """Exit code of a session, and what it said after the words (24 hexadecimal digits), each thing once."""
    status, output = run_session(folder, code, words, *more)
    return status, [
        f"{word} {text}"
        for word in (A, B)
        for texts in sessions_of(output, [word])[0].sessions
        for text in dict.fromkeys(texts)
    ]


def test_an_honest_session_says_begin_and_end_and_takes_one_word(tmp_path: Path) -> None:
    code, said = session(tmp_path, HONEST, [A, B])
    tests = [
        "failed test_m.py::test_b",
        "failed test_m.py::TestD::test_e",
        *(f"passed test_m.py::test_{name}" for name in ("a", "async", "c")),
    ]
    assert (code, said) == (1, [f"{A} {text}" for text in ("begin", *tests, "end 1")])
    assert session(tmp_path, HONEST, [])[1] == [line.replace(A, B) for line in said]
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
    assert [line.split()[1] for line in session(tmp_path, HONEST, [A], "-p", "installed", "sub/test_sub.py")[1]] == [
        "begin", "failed", "failed", "passed", "passed", "passed", "passed", "end",
    ]  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_what_the_code_exchanges_is_told(name: str, tmp_path: Path) -> None:
    said = session(tmp_path, HONEST + CHEATS[name], [A])[1]
    assert [kind for line in said if (kind := line.split()[1]) not in ("failed", "passed")] == [
        "begin",
        "meddled",
        "end",
    ], said


def test_modules_that_cannot_be_collected_are_told(tmp_path: Path) -> None:
    assert session(tmp_path, "raise ValueError\n", [A])[1] == [
        f"{A} begin",
        f"{A} failed test_m.py",
        f"{A} end 2",
    ]


def test_a_process_that_leaves_owes_its_end(tmp_path: Path) -> None:
    code, said = session(tmp_path, HONEST + "import os; os._exit(0)\n", [A])
    assert (code, said) == (0, [f"{A} begin"])
    # What the module still holds does not help to say the end.
    look = "import sys\nprint(*map(str, vars(sys.modules['swe_rl_session']).values()), flush=True)\n"
    forged = look + "import os; os._exit(0)\n"
    assert session(tmp_path, HONEST + forged, [A])[1] == [f"{A} begin"]


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
    code, said = session(tmp_path, PASSES_ITSELF, [A])
    assert (code, said[-1], [line for line in said if " passed " in line]) == (0, f"{A} end 0", [])


def test_failures_that_only_the_code_expects_are_told_apart(tmp_path: Path) -> None:
    """A test the file of which says nothing of it; in the others' (test_m.py), marks and words count."""
    (tmp_path / "test_n.py").write_text("import mod\ndef test_n(): assert mod.two() == 2\n")
    code = HONEST + "def two():\n    import pytest\n    pytest.xfail('known')\n"
    said = session(tmp_path, code, [A], "test_n.py")[1]
    assert [line for line in said if "xfailed" in line] == [f"{A} xfailed test_n.py::test_n"]
    assert f"{A} passed test_m.py::test_c" in said


def test_ids_are_those_of_the_summary(tmp_path: Path) -> None:
    """Seen from the folder where pytest was started."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    folder = tmp_path / "sub"
    folder.mkdir()
    assert f"{A} passed test_m.py::test_a" in session(folder, HONEST, [A])[1]


def test_a_plugin_may_exchange_functions_while_a_test_runs(tmp_path: Path) -> None:
    """As flaky does; what is made of a plugin's code is not the plugin's."""
    (tmp_path / "installed.py").write_text(
        "import _pytest.runner as r\nold = r.call_and_report\n"
        "class Plugin:\n    def call(self, item, when, log=True, **kwds): return old(item, when, log, **kwds)\n"
        "def pytest_runtest_setup(item): r.call_and_report = Plugin().call\n"
    )
    for more, kinds in (("", set()), ("import installed, types, _pytest.runner as r\nr.TestReport = types.FunctionType("
                                      "installed.Plugin.call.__code__, {})\n", {"meddled"})):  # fmt: skip
        said = session(tmp_path, HONEST + more, [A], "-p", "installed")[1]
        assert {line.split()[1] for line in said} - {"begin", "passed", "failed", "end"} == kinds, said


def test_workers_are_not_told_of_the_plugin(tmp_path: Path) -> None:
    """xdist hands on the list of plugins that were asked for."""
    (tmp_path / "other.py").write_text(
        "def pytest_sessionstart(session): open('asked', 'w').write(repr(session.config.option.plugins))\n"
    )
    session(tmp_path, HONEST, [A], "-p", "other")
    assert (tmp_path / "asked").read_text() == "['no:cacheprovider', 'other']"

"""A pytest plugin for eval scripts that are not ours: says on the script's output how a session began, ended, was meddled with,
and which tests failed and passed.

Code under test can print a whole session's output and leave with os._exit(0); it cannot print the end that this plugin owes,
because the word that starts its lines came from a file that is gone, and is in no environment and no module. Nor can it skip a
test and print that it passed. And code that exchanges functions of pytest or unittest, or a test's own code, or registers a
plugin, is told of.
Of the output of a script the middle may be lost: all that counts is said again at the end, beside pytest's summary, packed.
Loaded through PYTEST_ADDOPTS in whatever Python and pytest the image has: the oldest syntax, and nothing may break a session.
"""

# ruff: noqa: PTH100, PTH108, PTH109, PTH118, PTH119, PTH120, PTH123, PTH208, SIM105, UP004 -- old Pythons

import binascii
import builtins
import importlib
import inspect
import operator
import os
import sys
import zlib

import pytest

MODULES = [
    "_pytest.assertion.rewrite", "_pytest.main", "_pytest.outcomes", "_pytest.python", "_pytest.python_api", "_pytest.raises",
    "_pytest.reports", "_pytest.runner", "_pytest.skipping", "_pytest.unittest", "pytest", "unittest", "unittest.case",
    "unittest.result",
]  # fmt: skip
CLASSES = {
    "_pytest.main": ["Session"], "_pytest.python": ["Function"], "_pytest.reports": ["TestReport", "BaseReport", "CollectReport"],
    "_pytest.runner": ["CallInfo"], "_pytest.unittest": ["TestCaseFunction"], "unittest.case": ["TestCase"],
    "unittest.result": ["TestResult"],
}  # fmt: skip
PIECE = 4000  # bytes of packed text in a line: a pipe takes a line up to 4096 as a whole, whoever else writes
CHANGE_BY_THEMSELVES = ("__doc__", "__annotations__", "__abstractmethods__", "_classSetupFailed", "_class_cleanups")

_OUT = os.dup(2)  # before pytest captures output
# Sessions that tests start themselves are none of ours.
os.environ.pop("PYTEST_ADDOPTS", None)
_PATH = os.environ.pop("SWE_RL_PYTHONPATH", "")
if _PATH:
    os.environ["PYTHONPATH"] = _PATH
else:
    os.environ.pop("PYTHONPATH", None)


def _owners():  # type: ignore[no-untyped-def]
    found = []
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except Exception:  # pytest's versions differ in which they have
            continue
        found.append((name, module))
        found += [(name + "." + one, getattr(module, one)) for one in CLASSES.get(name, []) if hasattr(module, one)]
    return found


def _identities(owners):  # type: ignore[no-untyped-def]
    """Identity of every function and class that decides an outcome, and of the code inside the functions; kept alive."""
    seen = {"builtins.AssertionError": (builtins.AssertionError,)}
    for label, owner in owners:
        for name, value in list(vars(owner).items()):
            target = getattr(value, "__func__", value)
            if (callable(target) or isinstance(value, property)) and name not in CHANGE_BY_THEMSELVES:
                seen[label + "." + name] = (value, getattr(target, "__code__", None))
        if owner is sys.modules.get(label):
            seen["sys.modules." + label] = (owner,)
    return seen


def _same(one, other):  # type: ignore[no-untyped-def]
    return len(one) == len(other) and all(one[i] is other[i] for i in range(len(one)))


def _take_word():  # type: ignore[no-untyped-def]
    """The next word of those that the grader laid beside this file; "" where there is none left."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name in sorted(os.listdir(here)):
        if name.startswith("word"):
            path = os.path.join(here, name)
            try:
                with open(path) as file:
                    word = file.read().strip()
                os.unlink(path)
            except OSError:  # another session, of those that run at the same time, was faster
                continue
            return word
    return ""


def _package(plugin):  # type: ignore[no-untyped-def]
    if inspect.ismodule(plugin):
        return plugin.__name__.partition(".")[0]
    return str((plugin if inspect.isclass(plugin) else type(plugin)).__module__).partition(".")[0]


def _functions(packages):  # type: ignore[no-untyped-def]
    """Functions and methods of these packages, as far as they are loaded, with their code: {id: (function, code)}."""
    found = {}
    for name, module in list(sys.modules.items()):
        for value in list(getattr(module, "__dict__", {}).values()) if name.partition(".")[0] in packages else ():
            for one in [value] + (list(vars(value).values()) if inspect.isclass(value) else []):
                if inspect.isfunction(one):
                    found[id(one)] = (one, one.__code__)
    return found


def _loaders():  # type: ignore[no-untyped-def]
    """Types of what loads test modules: pytest's own and Python's."""
    from _pytest.assertion import rewrite

    found = [type(getattr(getattr(inspect, "__spec__", None), "loader", None))]
    return found + [value for name, value in vars(rewrite).items() if name == "AssertionRewritingHook"]


def _speaks_of_xfail(path):  # type: ignore[no-untyped-def]
    """Whether a file of tests says that some may be expected to fail."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (OSError, ValueError):
        return False
    return b"xfail" in text or b"expectedFailure" in text


def _may_xfail(item, speaks):  # type: ignore[no-untyped-def]
    """Whether a mark, the test's file or that of its function says so. speaks: as `_speaks_of_xfail`."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    files = (str(getattr(item, "fspath", "")), str(getattr(code, "co_filename", "")))
    return "xfail" in item.keywords or any(speaks(path) for path in files)


def _outcome(reports):  # type: ignore[no-untyped-def]
    """ "passed", "xfailed" or "" for anything else, from all reports of one test (of repeated tries, too)."""
    outcomes = [(report.when, report.outcome, hasattr(report, "wasxfail")) for report in reports]
    if any(outcome == "failed" for _, outcome, _ in outcomes):
        return ""
    if any(outcome == "skipped" for _, outcome, _ in outcomes):
        return "xfailed" if all(expected for _, outcome, expected in outcomes if outcome == "skipped") else ""
    return "passed" if ("call", "passed", False) in outcomes else ""


def _make_proof(config):  # type: ignore[no-untyped-def]
    """The plugin object; everything it knows is in its functions alone."""
    manager, start = config.pluginmanager, os.getcwd()
    word, out, write, owners = _take_word(), globals().pop("_OUT"), os.write, _owners()
    before, codes, state = _identities(owners), {}, {"status": -1}
    loaders, told, known, asked, plugins_own = _loaders(), set(), {}, set(), {}
    said, files = {"meddled": [], "failed": [], "passed": [], "xfailed": []}, {}
    compress, encode, code_of = zlib.compress, binascii.b2a_base64, operator.attrgetter("__code__")
    dicts, labels = [vars(owner) for _, owner in owners], [label for label, _ in owners]
    look, same, shown = {"seen": [], "functions": []}, operator.is_, {}
    collected, plugins_functions, running = {}, {}, {"item": None, "inside": False, "reports": [], "elsewhere": False}
    packages = {"_pytest", "pytest"} | {_package(plugin) for plugin in manager.get_plugins()} - {"builtins", "conftest"}

    def say(text):  # type: ignore[no-untyped-def]
        if word:
            write(out, ("\n" + word + " " + text.replace("\n", " ") + "\n").encode("utf-8", "replace"))

    def note(kind, text):  # type: ignore[no-untyped-def]
        said[kind].append(text.replace("\n", " "))
        if kind in ("meddled", "failed"):  # whatever becomes of the session
            say(kind + " " + text)

    def say_all(kind, texts):  # type: ignore[no-untyped-def]
        packed = encode(compress("\n".join(texts).encode("utf-8", "replace"))).decode("ascii").strip()
        if len(packed) > PIECE and len(texts) > 1:
            say_all(kind, texts[: len(texts) // 2])
            say_all(kind, texts[len(texts) // 2 :])
        else:
            say("all " + kind + " " + packed)

    def speaks_of_xfail(path):  # type: ignore[no-untyped-def]
        """As `_speaks_of_xfail` when it was first asked: files are large, and tests may write to them."""
        if path not in files:
            files[path] = _speaks_of_xfail(path)
        return files[path]

    def rooted(nodeid):  # type: ignore[no-untyped-def]
        return os.path.join(str(getattr(config, "rootpath", None) or config.rootdir), nodeid.partition("::")[0])

    def note_test(kind, nodeid):  # type: ignore[no-untyped-def]
        path, colons, rest = nodeid.partition("::")
        if path not in shown:
            try:
                shown[path] = os.path.relpath(rooted(nodeid), start)  # as in pytest's summary
            except Exception:  # no such place: the id stays as pytest has it
                shown[path] = path
        note(kind, shown[path] + colons + rest)

    def note_outcome(nodeid, reports, may_xfail):  # type: ignore[no-untyped-def]
        outcome = _outcome(reports)
        if outcome == "xfailed" and may_xfail:
            outcome = "passed"
        if outcome:
            note_test(outcome, nodeid)

    def seen():  # type: ignore[no-untyped-def]
        """All that `meddled` looks at, as it is: had in a tenth of its time, and asked for after each test."""
        found = [builtins.AssertionError]
        for values in dicts:
            found.extend(values.values())
        found.extend(map(sys.modules.get, labels))
        found.extend(map(code_of, look["functions"]))
        found.extend(manager.get_plugins())
        return found

    def moved():  # type: ignore[no-untyped-def]
        """Whether anything is not as it was at the last look of `meddled`; what equals everything is no other's same."""
        now, last = seen(), look["seen"]
        return len(now) != len(last) or not all(map(same, now, last))

    def meddled():  # type: ignore[no-untyped-def]
        after = _identities(owners)
        targets = [getattr(value[0], "__func__", value[0]) for value in after.values()]
        look["functions"] = [target for target in targets if inspect.isfunction(target)]
        look["seen"] = seen()
        names = []
        for name, value in before.items():
            now = after.get(name, ())
            if not _same(value, now) and not _same(plugins_own.get(name, value), now) and not of_plugin(now):
                names.append(name)
        return names + strangers()

    def of_plugin(now):  # type: ignore[no-untyped-def]
        """Whether it is an installed plugin's own function: some exchange one of pytest's for the time of a test."""
        target = getattr(now[0], "__func__", now[0]) if now else None
        return len(now) == 2 and _same(plugins_functions.get(id(target), ()), (target, now[1]))

    def strangers():  # type: ignore[no-untyped-def]
        """Plugins that came while tests were collected and run, and are no conftest.py's, installed plugin's or asked for."""
        names = []
        for plugin in manager.get_plugins():
            if id(plugin) in known or _package(plugin) in packages:
                continue
            if inspect.ismodule(plugin):
                path = os.path.basename(str(getattr(plugin, "__file__", "")))
                if (
                    path.startswith("conftest.py")
                    and type(getattr(getattr(plugin, "__spec__", None), "loader", None)) in loaders
                ):
                    continue
                if plugin.__name__ in asked:
                    continue
            else:
                path = os.path.basename(str(getattr(sys.modules.get(type(plugin).__module__), "__file__", "")))
                if path.startswith("conftest.py"):
                    continue
            names.append("plugin " + str(manager.get_name(plugin)))
        return names

    def check(tests):  # type: ignore[no-untyped-def]
        """Tell what is not as it was. tests: those to look at, as all of them would take too long after each test."""
        tell(exchanged(tests) + (meddled() if moved() else []))

    def exchanged(tests):  # type: ignore[no-untyped-def]
        found = [codes[id(item)] for item in tests if id(item) in codes]
        return [
            "code of " + item.nodeid
            for item, code in found
            if getattr(getattr(item, "function", None), "__code__", None) is not code
        ]

    def tell(names):  # type: ignore[no-untyped-def]
        names = sorted(name for name in names if name not in told) if names else []
        if names:
            told.update(names)
            note("meddled", ", ".join(names[:5]))

    class Proof(object):
        def pytest_configure(self, config):  # type: ignore[no-untyped-def]
            # xdist hands these to its workers, of which old ones would end at a module that they do not find.
            plugins = getattr(config.option, "plugins", None) or []
            config.option.plugins = [name for name in plugins if name != __name__]
            arguments = getattr(getattr(config, "invocation_params", None), "args", None)
            if isinstance(arguments, list) and __name__ in arguments:
                at = arguments.index(__name__)
                del arguments[at - 1 : at + 1]

        def pytest_sessionstart(self, session):  # type: ignore[no-untyped-def]
            # What conftest.py files and installed plugins registered, and what those plugins exchanged, to do their work.
            plugins_functions.update(_functions(packages - {"_pytest", "pytest"}))
            for name, value in _identities(owners).items():
                scope = getattr(getattr(value[0], "__func__", value[0]), "__globals__", {})
                package = str(scope.get("__name__")).partition(".")[0]
                if package in packages - {"_pytest", "pytest"} and scope is vars(
                    sys.modules.get(scope["__name__"], os)
                ):
                    plugins_own[name] = value
            known.update((id(plugin), plugin) for plugin in manager.get_plugins())
            running["elsewhere"] = manager.hasplugin("dsession")  # xdist: the tests run in other processes

        def pytest_collectstart(self, collector):  # type: ignore[no-untyped-def]
            speaks_of_xfail(str(getattr(collector, "fspath", "")))  # before the module and what it tests are imported

        def pytest_itemcollected(self, item):  # type: ignore[no-untyped-def]
            more = getattr(getattr(item, "module", None), "pytest_plugins", None) or ()
            asked.update([more] if isinstance(more, str) else more)

        def pytest_collection_finish(self, session):  # type: ignore[no-untyped-def]
            for item in session.items:
                collected[id(item)] = (item, item.nodeid, _may_xfail(item, speaks_of_xfail))
                module = getattr(item, "module", None)
                loader = getattr(getattr(module, "__spec__", None), "loader", None)
                if module is not None and type(loader) not in loaders and "loader" not in told:
                    told.add("loader")
                    note("meddled", "the module of " + item.nodeid)
                code = getattr(getattr(item, "function", None), "__code__", None)
                # Plugins that run coroutines put a function of their own in the test's place.
                if code is not None and not inspect.iscoroutinefunction(item.function):
                    codes[id(item)] = (item, code)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item):  # type: ignore[no-untyped-def]
            running["item"], running["reports"] = item, []
            tell(exchanged([item]))  # before it can put its code back itself
            yield
            _, nodeid, may_xfail = collected.get(id(item), (None, None, False))
            if running["item"] is item and item.nodeid == nodeid:
                note_outcome(nodeid, running["reports"], may_xfail)
            running["item"] = None

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_setup(self, item):  # type: ignore[no-untyped-def]
            running["inside"] = True
            yield
            running["inside"] = False

        pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup

        def pytest_runtest_logreport(self, report):  # type: ignore[no-untyped-def]
            # Reports of subtests are of other classes, and repeated tries have another outcome.
            if type(report).__name__ == "TestReport":
                if report.outcome == "failed":
                    note_test("failed", report.nodeid)
                if running["elsewhere"]:
                    may_xfail = "xfail" in report.keywords or speaks_of_xfail(rooted(report.nodeid))
                    note_outcome(report.nodeid, [report], may_xfail)
                # pytest reports between the phases of a test; what comes from within one comes from the code.
                elif not running["inside"] and getattr(running["item"], "nodeid", None) == report.nodeid:
                    running["reports"].append(report)
            if report.when == "teardown":  # what fixtures exchange for a test is back by then
                check([running["item"]])

        def pytest_collectreport(self, report):  # type: ignore[no-untyped-def]
            if report.outcome == "failed":
                note_test("failed", report.nodeid)

        def pytest_sessionfinish(self, session, exitstatus):  # type: ignore[no-untyped-def]
            state["status"] = int(exitstatus)
            look["seen"] = []  # a whole look
            check([item for item, _ in codes.values()])

        def pytest_unconfigure(self, config):  # type: ignore[no-untyped-def]
            for kind, texts in sorted(said.items()):
                for at in range(0, len(texts), 500):
                    say_all(kind, texts[at : at + 500])
            say("end " + str(state["status"]))

    say("begin")
    proof = Proof()
    known[id(proof)] = proof
    return proof


def pytest_load_initial_conftests(early_config):  # type: ignore[no-untyped-def]
    """After the installed plugins, before any conftest.py can have imported the code under test."""
    try:
        early_config.pluginmanager.register(_make_proof(early_config), "swe-rl-proof")
    except Exception:
        pass  # no proof is asked of a session that did not begin to give one

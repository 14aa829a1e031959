"""For every repository that swebench knows: its log is read, and no line that code under test can print stops the reading."""

from __future__ import annotations

import pytest

from swe_rl.grading.logs import parse_log
from swe_rl.grading.report import judge
from swe_rl.tasks.swebench_library import swebench_library
from swe_rl.types import Task, Verdict

START, END = "+ : '>>>>> Start Test Output'\n", "+ : '>>>>> End Test Output'\n"
# Parser of swebench: a log of the good test, and the name it reads. Python's have tests of their own (test_official_harness).
LOGS = {
    "parse_log_calypso": ("x ./node_modules/.bin/jest a\n  suite\n    ✓ good\n", "suite - good"),
    "parse_log_jest": ("  ✓ good (3 ms)\n", "good"),
    "parse_log_jest_json": ("[PASSED] good\n", "good"),
    "parse_log_vitest": (" ✓ good 3ms\n", "good"),
    "parse_log_tap": ("ok 1 good\n", "good"),
    "parse_log_karma": ("Starting browser Chrome\n  suite\n    ✔ good\n", "suite > good"),
    "parse_log_react_pdf": ("PASS good (3ms)\n", "good"),
    "parse_log_maven": ("+ mvn test -Dtest=good\n[INFO] BUILD SUCCESS\n", "good"),
    "parse_log_ant": ("[junit] [PASS] good\n", "good"),
    "parse_log_gradle_custom": ("good PASSED\n", "good"),
    "parse_log_gotest": ("--- PASS: good (0.01s)\n", "good"),
    "parse_log_phpunit": ("Suite (x)\n ✔ good\n", "Suite > good"),
    "parse_log_cargo": ("test good ... ok\n", "good"),
    "parse_log_minitest": ("good. = 0.1 s = .\n", "good"),
    "parse_log_cucumber": ("good ...\n", "good"),
    "parse_log_ruby_unit": ("good: .\n", "good"),
    "parse_log_rspec_transformed_json": ("good - passed\n", "good"),
    "parse_log_redis": ("[ok]: good\n", "good"),
    "parse_log_jq": ("PASS: good\n", "good"),
    "parse_log_doctest": (
        '<doctest><TestCase name="a"><SubCase name="good"><Expression success="true"/></SubCase></TestCase></doctest>\n',
        "a > good",
    ),
    "parse_log_micropython_test": ("pass  good\n", "good"),
    "parse_log_marked": ("Started\n..\n\n9 specs, 0 failures\nFinished in 1.2 seconds\n", "good"),
    "parse_log_p5js": ("\x1b[32m  9 passing\x1b[0m (2s)\n", "good"),
    "parse_log_googletest": ("[   OK ] good (1 ms)\n", "good"),
}
FAIL_ONLY = (
    "parse_log_chart_js",
    "parse_log_marked",
    "parse_log_p5js",
)  # read failures only: their logs name no good test
BY_INSTANCE = {  # these two choose a parser by the number of the pull request
    "immutable-js__immutable-js-2006": "parse_log_jest",
    "immutable-js__immutable-js-2005": "parse_log_jest_json",
    "jekyll__jekyll-9141": "parse_log_minitest",
    "jekyll__jekyll-8761": "parse_log_cucumber",
}
# Lines on which one parser or another raises, alone or after the others.
HOSTILE = [
    "PASSED", "FAILED", " ERROR ", "XFAIL", "SKIPPED -", "a - broken", "a - pending", "x: Q", "✓", "  ✓", "✕(1ms)", "↩",
    "x ./node_modules/.bin/jest \n✓x", "<doctest </doctest>", "<doctest><a></doctest>", "Starting browser", " a", "    ✖ b",
    "...", "... ok", "FAIL:", "ERROR: x (", "Testing against Django installed in", "\x00", "1)", "--- PASS: ", "[junit]",
    "-Dtest=", "BUILD SUCCESS", "\ud800", "🙂" * 3000,
]  # fmt: skip


def task_of(repo: str, instance_id: str, test: str) -> Task:
    return Task(instance_id, "s", repo=repo, version="1", base_commit="a" * 40, fail_to_pass=[test], test_patch="x")


def ids_of(repo: str) -> list[str]:
    name = repo.replace("/", "__")
    return [instance_id for instance_id in BY_INSTANCE if instance_id.startswith(name)] or [f"{name}-1"]


def test_a_log_of_every_repository() -> None:
    others = {repo: p for repo, p in swebench_library().parsers.items() if not p.__module__.endswith(".python")}
    assert len(others) > 40
    for repo, parser in others.items():
        for instance_id in ids_of(repo):
            log, name = LOGS.get(BY_INSTANCE.get(instance_id, parser.__name__), ("all is well\n", "good"))
            task = task_of(repo, instance_id, name)
            parsed = parse_log(task, START + log + END, returncode=0)
            assert parsed.tests == ({} if parser.__name__ in FAIL_ONLY else {name: "PASSED"}), instance_id
            judgement = judge(task, parsed, 0)
            assert (judgement.verdict, judgement.resolved) == (Verdict.RESOLVED, True), (
                instance_id,
                judgement.problems,
            )


def test_logs_that_name_failures_only() -> None:
    """Without a required test among the failures, the exit code decides: a run that broke before its tests names none."""
    tasks = [
        (task_of(repo, ids_of(repo)[0], "good"), failure)
        for repo, failure in {
            "chartjs/Chart.js": "Chrome 1.2 (Linux) {}FAILED\n",
            "markedjs/marked": "1) {}\n",
            "processing/p5.js": "  1) {}:\n",
        }.items()
    ]
    assert {task.repo for task, _ in tasks} == swebench_library().fail_only_repos
    for task, failure in tasks:
        other, good = failure.format("x"), failure.format("good")
        count = "  9 passing (2s)" if "p5" in task.repo else "9 specs, 0 failures"
        if "Chart" not in task.repo:  # Chart.js' tests run in a browser, and cannot end karma with 0
            for broken in ("Fatal error\n", "", "0 specs, 0 failures\n", "  0 passing\n"):
                parsed = parse_log(task, f"{START}{broken}{END}", returncode=0)
                assert judge(task, parsed, 0).verdict is Verdict.UNRESOLVED
        for text, code, expected in (
            ("", 0, Verdict.RESOLVED),
            (other, 0, Verdict.RESOLVED),
            (other, 1, Verdict.UNRESOLVED),
            ("", 1, Verdict.UNRESOLVED),
            ("", None, Verdict.UNRESOLVED),
            (good, 0, Verdict.UNRESOLVED),
            (good, 1, Verdict.UNRESOLVED),
        ):
            judgement = judge(task, parse_log(task, f"{START}{count}\n{text}{END}", returncode=code), code)
            assert judgement.verdict is expected, (task.repo, text, code)
            assert judgement.resolved is (text != good)  # the official harness does not look at the exit code


def test_lines_that_are_cut_mean_nothing_else() -> None:
    """XML in which one value fills a line, and JSON on one line: cut in the middle, both would be read as something else."""
    task = task_of("nlohmann/json", "nlohmann__json-1", "a > good")
    xml = LOGS["parse_log_doctest"][0].replace("<Expression", f"<Expanded>{'&quot;' * 2000}</Expanded><Expression")
    assert judge(task, parse_log(task, f"{START}{xml}{END}", returncode=0), 0).verdict is Verdict.RESOLVED
    task = task_of("processing/p5.js", "processing__p5.js-1", "good")
    log = f"{START}{'x' * 4999}{{}} x\n  1) good:\n{END}"  # a line that ends with "{" opens a block that is not read
    assert parse_log(task, log, returncode=1).tests == {"good": "FAILED"}


def test_no_line_ends_the_reading() -> None:
    """Whatever a line does to the parser, it is nobody's infrastructure failure: the verdict stays one about the patch."""
    for repo in swebench_library().parsers:
        for instance_id in ids_of(repo):
            task = task_of(repo, instance_id, "never there")
            for text in [*HOSTILE, "\n".join(HOSTILE), "\n".join(reversed(HOSTILE))]:
                judgement = judge(task, parse_log(task, f"{START}{text}\n{END}", returncode=1), 1)
                assert judgement.verdict is Verdict.UNRESOLVED, (instance_id, text)


def test_hostile_output_does_not_stall_the_parser_that_reads_on() -> None:
    """p5.js' takes minutes for 400 kB of these; the test's own time limit is the judge."""
    task = task_of("processing/p5.js", "processing__p5.js-1", "good")
    for filler in ("<a>\n", "\n", " \n"):
        log = f"{START}{filler * (400_000 // len(filler))}{LOGS['parse_log_p5js'][0]}  1) good:\n{END}"
        judgement = judge(task, parse_log(task, log, returncode=0), 0)
        assert judgement.verdict is Verdict.UNRESOLVED
        assert any("not read" in problem for problem in judgement.problems) is ("<" in filler)
    log = f"{START}{'<a></a>' * 100}{'x' * 1000}\n{LOGS['parse_log_p5js'][0]}{END}"
    assert judge(task, parse_log(task, log, returncode=0), 0).verdict is Verdict.RESOLVED


def test_a_good_line_counts_beside_one_that_stumbles() -> None:
    task = task_of("nlohmann/json", "nlohmann__json-1", "a > good")
    log = f"{START}<doctest </doctest>\n{LOGS['parse_log_doctest'][0]}{END}"
    assert parse_log(task, log, returncode=0).tests == {"a > good": "PASSED"}


@pytest.mark.parametrize("instance_id", ["jekyll__jekyll-1", "jekyll", "immutable-js__immutable-js-1"])
def test_what_the_library_has_no_parser_for_is_said(instance_id: str) -> None:
    repo = "jekyll/jekyll" if "jekyll" in instance_id else "immutable-js/immutable-js"
    task = task_of(repo, instance_id, "good")
    judgement = judge(task, parse_log(task, f"{START}  ✓ good\n{END}", returncode=0), 0)
    assert judgement.verdict is Verdict.UNRESOLVED and not judgement.resolved
    assert any(problem.startswith("log cannot be read") for problem in judgement.problems)

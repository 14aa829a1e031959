"""Certification: the judgement on runs, the journal, and real gradings of one task of each kind."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from swe_rl import cli
from swe_rl.tasks.certify.journal import Journal, task_key
from swe_rl.tasks.certify.outcome import Outcome, Run, apply_outcome, judge_runs
from swe_rl.tasks.load import load_tasks, write_tasks
from swe_rl.types import Task
from tests.tasks.local_tasks import kinds

TASK = Task("a-1", "s", fail_to_pass=["f"], pass_to_pass=["p"])
GOOD = Run("resolved", {"f": "PASSED", "p": "PASSED"}, 2.0)
EMPTY = Run("unresolved", {"f": "FAILED", "p": "PASSED"})


@pytest.mark.parametrize(
    ("gold", "empty", "status", "words"),
    [
        ([GOOD, GOOD, GOOD], EMPTY, "certified", ""),
        ([GOOD, Run("unresolved", {"f": "PASSED", "p": "FAILED"}), GOOD], EMPTY, "flaky", "2x resolved, 1x unresolved"),
        ([Run("unresolved", {"f": s, "p": "FAILED"}) for s in ("PASSED", "FAILED")], EMPTY, "flaky", "1 tests differ"),
        (
            [Run("unresolved", {"f": "FAILED"})] * 2,
            EMPTY,
            "broken",
            "2 required tests did not pass, the first f (FAILED)",
        ),
        ([Run("patch_rejected", reason="does not apply")] * 2, EMPTY, "broken", "patch_rejected: does not apply"),
        ([GOOD, GOOD], GOOD, "broken", "pass without any fix"),
        ([GOOD, Run("infra_error", reason="node died")], EMPTY, "unknown", "node died"),
        ([GOOD], Run("infra_error"), "unknown", "lost"),
    ],
)
def test_judgement(gold: list[Run], empty: Run, status: str, words: str) -> None:
    outcome = judge_runs(TASK, gold, [empty])
    assert (outcome.status, words in outcome.reason) == (status, True), outcome.reason
    done = apply_outcome(TASK, outcome)
    expected = {"certified": (True, False), "flaky": (False, True), "broken": (False, False), "unknown": (None, None)}
    assert (done.certified, done.flaky) == expected[status]


def test_flaky_tests_are_named_and_weak_tests_noted() -> None:
    flaky = judge_runs(TASK, [GOOD, dataclasses.replace(GOOD, tests={"f": "PASSED"})], [EMPTY])
    assert (flaky.status, flaky.tests) == ("flaky", ["p"])
    task = dataclasses.replace(TASK, fail_to_pass=["f", "g"])
    gold = Run("resolved", {"f": "PASSED", "g": "PASSED", "p": "PASSED"})
    noted = judge_runs(task, [gold], [Run("unresolved", {"f": "FAILED", "g": "PASSED", "p": "PASSED"})])
    assert noted.status == "certified" and "1 of FAIL_TO_PASS pass without the fix: g" in noted.notes[0]


def test_journal_survives_a_cut_line_and_keeps_no_unknowns(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.add("k1", Outcome("a", "certified", seconds=1.5))
        journal.add("k2", Outcome("b", "unknown"))
    path.write_bytes(path.read_bytes() + b'not json\n{"key": "k3", "outco')
    with Journal(path) as journal:
        assert list(journal.finished) == ["k1"] and journal.finished["k1"].seconds == 1.5
        journal.add("k4", Outcome("d", "broken"))
    with Journal(path) as journal:
        assert list(journal.finished) == ["k1", "k4"]


def test_key_changes_with_what_is_graded_only() -> None:
    key = task_key(TASK, 3, "pool")
    assert key == task_key(
        dataclasses.replace(TASK, certified=True, metadata={"a": 1}, problem_statement="other"), 3, "pool"
    )
    for other in (dataclasses.replace(TASK, test_patch="x"), dataclasses.replace(TASK, image="i")):
        assert task_key(other, 3, "pool") != key
    assert len({key, task_key(TASK, 2, "pool"), task_key(TASK, 3, "docker")}) == 3


@pytest.mark.slow
def test_one_task_of_each_kind_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real repositories, sandboxes and pytest; then the same command again, which has nothing left to do."""
    write_tasks(tmp_path / "t.jsonl", kinds(tmp_path / "made"))
    out = tmp_path / "out.jsonl"
    call = ["data", "certify", str(tmp_path / "t.jsonl"), "--out", str(out), "--repeat", "2"]
    call += ["--sandbox", "process", "--swe-eval-timeout", "60"]
    assert cli.main(call) == 0
    found = {task.instance_id: task for task in load_tasks(out).tasks}
    status = {name: task.metadata["certification"]["status"] for name, task in found.items()}
    assert status == {
        "good": "certified", "flaky": "flaky", "wrong-gold": "broken", "passes-anyway": "broken", "no-gold": "broken",
    }  # fmt: skip
    assert found["flaky"].metadata["certification"]["tests"] == ["tests/test_calc.py::test_twice"]
    assert "test_add (FAILED)" in found["wrong-gold"].metadata["certification"]["reason"]
    assert found["good"].metadata["certification"]["gold"] == ["resolved"] * 2
    assert [task.instance_id for task in load_tasks(out, only_certified=True).tasks] == ["good"]
    page = (tmp_path / "out.html").read_text()
    assert page.count("<tr>") == 6 and "tests/test_calc.py::test_twice" in page
    assert "certified 1  flaky 1  broken 3" in capsys.readouterr().out
    journal = (tmp_path / "out.jsonl.journal").read_bytes()
    counter = (tmp_path / "made" / "counter").read_text()
    assert cli.main(call) == 0
    assert (tmp_path / "out.jsonl.journal").read_bytes() == journal and (
        tmp_path / "made" / "counter"
    ).read_text() == counter


def test_digests_of_images() -> None:
    from swe_rl.tasks.certify.digests import digest_in

    sha = "sha256:" + "a" * 64
    pulled = {"tags": ["sweb/x:latest"], "digests": [f"other/x@{sha[:-1]}b", f"sweb/x@{sha}"], "id": "sha256:1"}
    built = {"tags": ["local/y:1"], "digests": [], "id": "sha256:2"}
    rows = [{"tags": [], "digests": [], "id": "sha256:0"}, pulled, built]
    assert digest_in(rows, "sweb/x") == digest_in(rows, "docker.io/sweb/x:latest") == f"sweb/x@{sha}"
    assert digest_in(rows, f"sweb/x@{sha}") == f"sweb/x@{sha}"
    assert digest_in(rows, "local/y:1") == "sha256:2" and digest_in(rows, "z") == ""


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"instance_id": "a", "problem_statement": "s", "eval_script": "true"}))
    assert cli.main(["data", "certify", str(tmp_path / "t.jsonl"), "--repeat", "0"]) == 2
    assert cli.main(["data", "certify", str(tmp_path / "t.jsonl"), "--no-such-flag"]) == 2
    assert "no-such-flag" in capsys.readouterr().err


def test_report_escapes_what_the_dataset_says(tmp_path: Path) -> None:
    from swe_rl.tasks.certify.report import write_html

    outcome = Outcome("<script>alert(1)</script>", "broken", reason="<b>", tests=["<i>"])
    write_html(tmp_path / "r.html", [outcome], source="<s>", sandbox="x", repeat=1)
    page = (tmp_path / "r.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>&" not in page and "<i>" not in page

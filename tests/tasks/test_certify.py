"""Certification: the judgement on runs, the journal, and real gradings of one task of each kind."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from swe_rl import cli
from swe_rl.config import Config
from swe_rl.config.sandbox import SandboxSettings
from swe_rl.grading.cache import grader_version
from swe_rl.sandbox import starting_state
from swe_rl.tasks import swe_gym
from swe_rl.tasks.certify import digests
from swe_rl.tasks.certify import journal as certify_journal
from swe_rl.tasks.certify.command import certified_file
from swe_rl.tasks.certify.journal import Journal, task_key
from swe_rl.tasks.certify.outcome import Outcome, Run, apply_outcome, judge_runs
from swe_rl.tasks.eval_script import eval_script_for
from swe_rl.tasks.load import find_task, load_tasks, write_tasks
from swe_rl.tasks.swebench_library import swebench_library
from swe_rl.types import Task
from tests.tasks.local_tasks import FIX, GOOD_TESTS, kinds, make_archive, make_task

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


def test_key_changes_with_what_is_graded_only(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    key = task_key(TASK, 3, "pool", config)
    same = dataclasses.replace(TASK, certified=True, metadata={"a": 1}, problem_statement="other")
    assert key == task_key(same, 3, "pool", config) == task_key(TASK, 3, "pool", Config(lr=0.5, verdict_cache=False))
    tasks = [{"test_patch": "x"}, {"image": "i"}, {"metadata": {"python": "/opt/py"}}, {"metadata": {"bug_patch": "b"}}]
    settings: list[dict[str, Any]] = [
        {"swe_eval_timeout": 5}, {"swe_strict_no_test_patch": True}, {"swe_strict_no_config_patch": True},
        {"swe_test_patch_policy_scope": "all_tests"}, {"swe_max_patch_bytes": 9}, {"swe_docker_registry": "r.example"},
        {"sandbox_memory_mb": 64},
    ]  # fmt: skip
    others = [task_key(dataclasses.replace(TASK, **changes), 3, "pool", config) for changes in tasks]
    others += [task_key(TASK, 3, "pool", Config(**changes)) for changes in settings]
    others += [task_key(TASK, 2, "pool", config), task_key(TASK, 3, "docker", config)]
    monkeypatch.setattr(certify_journal, "grader_version", lambda: "another")
    others.append(task_key(TASK, 3, "pool", config))
    assert len({key, *others}) == 1 + len(others)


def test_key_changes_with_scripts_that_we_make(cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without a script: what swebench or we make of them is graded, and so is the state that is laid out."""
    moto, dask, conan = (dataclasses.replace(t, eval_script="") for t in load_tasks(cases / "swegym_3.jsonl").tasks)
    django = find_task(cases / "swebench_lite_80.jsonl", "django__django-11099")
    unknown = dataclasses.replace(django, version="99.9")

    def keys() -> list[str]:
        return [task_key(task, 3, "pool", Config()) for task in (dask, moto, conan, django, unknown)]

    before = keys()
    monkeypatch.setitem(swe_gym._COMMANDS, "dask/dask", "pytest -q")
    assert [a == b for a, b in zip(before, keys(), strict=True)] == [False, True, True, True, True]
    monkeypatch.undo()
    monkeypatch.setitem(swebench_library().specs["django/django"]["3.0"], "test_cmd", "pytest -q")
    assert [a == b for a, b in zip(before, keys(), strict=True)] == [True, True, True, False, True]
    monkeypatch.undo()
    made = dataclasses.replace(dask, eval_script=eval_script_for(dask))
    assert task_key(made, 3, "pool", Config()) == before[0]
    another = tmp_path / "starting_state.sh"
    another.write_bytes(starting_state.SCRIPT.read_bytes() + b"# another\n")
    monkeypatch.setattr(starting_state, "SCRIPT", another)
    grader_version.cache_clear()
    assert not set(before) & set(keys())
    grader_version.cache_clear()


@pytest.mark.slow
def test_another_time_limit_certifies_again(tmp_path: Path) -> None:
    """A task that was broken for want of time is not broken for good."""
    archive, base = make_archive(tmp_path / "made")
    slow = GOOD_TESTS.replace("    assert twice", "    import time\n\n    time.sleep(7)\n    assert twice")
    write_tasks(tmp_path / "t.jsonl", [make_task(archive, base, "slow", tests=slow)])
    call = ["data", "certify", str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "o.jsonl"), "--repeat", "1"]
    call += ["--sandbox", "process", "--swe-eval-timeout"]
    assert cli.main([*call, "6"]) == 1
    assert "test_timeout" in load_tasks(tmp_path / "o.jsonl").tasks[0].metadata["certification"]["reason"]
    assert cli.main([*call, "60"]) == 0
    assert load_tasks(tmp_path / "o.jsonl").tasks[0].certified


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


def test_a_row_whose_test_patch_does_not_fit_is_broken(tmp_path: Path) -> None:
    """Not `unknown`: no sandbox and no other run would make it apply."""
    archive, base = make_archive(tmp_path / "made")
    task = make_task(archive, base, "unfit")
    task.test_patch = FIX.replace(" def add(a, b):", " def sum(a, b):")
    write_tasks(tmp_path / "t.jsonl", [task, make_task(archive, base, "good")])
    out = tmp_path / "o.jsonl"
    call = ["data", "certify", str(tmp_path / "t.jsonl"), "--out", str(out), "--repeat", "1", "--sandbox", "process"]
    assert cli.main(call) == 0
    found = {task.instance_id: task for task in load_tasks(out).tasks}
    assert (found["unfit"].certified, found["good"].certified) == (False, True)
    certification = found["unfit"].metadata["certification"]
    assert certification["status"] == "broken" and "the test patch does not apply: error:" in certification["reason"]
    assert len((tmp_path / "o.jsonl.journal").read_text().splitlines()) == 2


def test_digests_of_images() -> None:
    from swe_rl.tasks.certify.digests import digest_in

    sha = "sha256:" + "a" * 64
    pulled = {"tags": ["sweb/x:latest"], "digests": [f"other/x@{sha[:-1]}b", f"sweb/x@{sha}"], "id": "sha256:1"}
    built = {"tags": ["local/y:1"], "digests": [], "id": "sha256:2"}
    rows = [{"tags": [], "digests": [], "id": "sha256:0"}, pulled, built]
    assert digest_in(rows, "sweb/x") == digest_in(rows, "docker.io/sweb/x:latest") == f"sweb/x@{sha}"
    assert digest_in(rows, f"sweb/x@{sha}") == f"sweb/x@{sha}"
    assert digest_in(rows, "local/y:1") == "sha256:2" and digest_in(rows, "z") == ""


def test_a_server_that_does_not_answer_costs_the_digest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the certification: on Python 3.10, asyncio's TimeoutError is another class than the built-in one."""
    monkeypatch.setattr(digests, "_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = SandboxSettings(swe_exec_server_urls=[f"http://127.0.0.1:{silent.getsockname()[1]}"])
        assert asyncio.run(digests.image_digest(config, "pool", "x")) == ""


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"instance_id": "a", "problem_statement": "s", "eval_script": "true"}))
    assert cli.main(["data", "certify", str(tmp_path / "t.jsonl"), "--repeat", "0"]) == 2
    assert cli.main(["data", "certify", str(tmp_path / "t.jsonl"), "--no-such-flag"]) == 2
    assert "no-such-flag" in capsys.readouterr().err


def test_each_dataset_has_its_own_result() -> None:
    for source, out in {
        "d/train.jsonl": "d/train.certified.jsonl",
        "d/train.certified.jsonl": "d/train.certified.jsonl",
        "swe.lite.jsonl": "swe.lite.certified.jsonl",
        "swe.verified.jsonl.gz": "swe.verified.certified.jsonl",
        "v1.2": "v1.2.certified.jsonl",
        "a.parquet": "a.certified.jsonl",
        ".jsonl": "tasks.certified.jsonl",
    }.items():
        assert certified_file(Path(source)) == Path(out)
    here = Path().resolve()
    assert certified_file(Path()) == here.with_name(f"{here.name}.certified.jsonl")


def test_the_source_is_not_replaced_by_a_part_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = tmp_path / "train.certified.jsonl"
    row = {"problem_statement": "s", "eval_script": "true"}
    good = "".join(json.dumps({**row, "instance_id": name}) + "\n" for name in ("a", "b"))
    for text, more in ((good, ["--limit", "1"]), (good + "null\n", [])):
        tasks.write_text(text)
        assert cli.main(["data", "certify", str(tasks), "--sandbox", "process", *more]) == 2
        assert "would lose 1 of its rows; name another file with --out" in capsys.readouterr().err
        assert tasks.read_text() == text


def test_report_escapes_what_the_dataset_says(tmp_path: Path) -> None:
    from swe_rl.tasks.certify.report import write_html

    outcome = Outcome("<script>alert(1)</script>", "broken", reason="<b>", tests=["<i>"])
    write_html(tmp_path / "r.html", [outcome], source="<s>", sandbox="x", repeat=1)
    page = (tmp_path / "r.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>&" not in page and "<i>" not in page

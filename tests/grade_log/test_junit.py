"""JUnit reports: pytest's own, damaged ones and hostile ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl import cli
from swe_rl.errors import DataError
from swe_rl.grading.logs_junit import junit_key, parse_junit

TESTS = """
import pytest
@pytest.fixture
def late():
    yield
    raise ValueError
class TestA:
    class TestInner:
        def test_deep(self): pass
    @pytest.mark.parametrize("x", ["a b", "a::b", "<&>", "ä", "\\x01", "x[1]"])
    def test_ids(self, x): assert x != "ä"
def test_error(missing): pass
def test_teardown(late): pass
def test_skip(): pytest.skip("no")
@pytest.mark.xfail
def test_xfail(): assert False
@pytest.mark.xfail(strict=True)
def test_strict(): pass
def lower(): pass
"""


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_pytests_report_by_node_id(tmp_path: Path, family: str) -> None:
    folder = tmp_path / "pkg" / "tests"
    folder.mkdir(parents=True)
    (folder / "test_m.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", f"junit_family={family}", "--rootdir=."]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    listed = subprocess.run(
        [*command, "--collect-only", "-q"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    ids = [line for line in listed.stdout.splitlines() if "::" in line]
    assert len(ids) == 12
    subprocess.run([*command, "--junitxml=r.xml", "-q"], cwd=tmp_path, env=env, capture_output=True, check=False)
    report = (tmp_path / "r.xml").read_bytes()
    expected = dict.fromkeys(ids, "PASSED")
    for name in ids:
        for part, status in (
            ("\\xe4", "FAILED"),
            ("error", "ERROR"),
            ("teardown", "ERROR"),
            ("skip", "SKIPPED"),
            ("test_xfail", "XFAIL"),
            ("strict", "FAILED"),
        ):
            if part in name:
                expected[name] = status
    assert parse_junit(report, ids) == expected
    guessed = parse_junit(report)
    assert (
        sorted(guessed.values()) == sorted(expected.values())
        and "pkg/tests/test_m.py::TestA::TestInner::test_deep" in guessed
    )


def test_node_id_to_key() -> None:
    assert junit_key("a/b/test_c.py::TestD::test_e[x/y.py::z]") == ("a.b.test_c.TestD", "test_e[x/y.py::z]")


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><testsuite><testcase name="&b;"/></testsuite>'


@pytest.mark.parametrize(
    ("xml", "words"),
    [
        (b"", "damaged"),
        (b"<testsuite><testcase name='a'>", "damaged"),
        (b"<html/>", "no testsuite"),
        (BOMB.encode(), "document type"),
        (b"\xff\xfe\x00", "damaged"),
        (b"<testsuite/>" * 2, "damaged"),
    ],
)
def test_what_is_no_report_is_refused(xml: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        parse_junit(xml)


def test_a_test_reported_twice_has_its_worst_status() -> None:
    twice = b"<testcase classname='t' name='a'/><testcase classname='t' name='a'><error/></testcase>"
    xml = b"<testsuites><testsuite>" + twice + b"</testsuite></testsuites>"
    assert parse_junit(xml, ["t.py::a"]) == {"t.py::a": "ERROR"}
    assert parse_junit(xml.replace(b"<testcase classname='t' name='a'/>", b""), ["t.py::a"]) == {"t.py::a": "ERROR"}


@given(st.binary(max_size=200))
def test_random_bytes(content: bytes) -> None:
    for data in (content, b"<testsuite>" + content + b"</testsuite>"):
        try:
            assert isinstance(parse_junit(data), dict)
        except DataError:
            continue


def test_grade_log_takes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"instance_id": "a-1", "log_parser": "junit", "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": ["t.py::b"]}
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    call = ["grade-log", "--tasks", str(tmp_path / "t.jsonl"), "--instance-id", "a-1", "--log", str(tmp_path / "r.xml")]
    for b, verdict in (("", "resolved"), ("<failure/>", "unresolved")):
        tests = f"<testcase classname='t' name='a'/><testcase classname='t' name='b'>{b}</testcase>"
        (tmp_path / "r.xml").write_text(f"<?xml version='1.0'?><testsuite>{tests}</testsuite>")
        assert cli.main(call) == 0
        assert json.loads(capsys.readouterr().out)["a-1"]["verdict"] == verdict

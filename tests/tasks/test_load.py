"""Every form of the design, from every kind of file, and everything that can be wrong with a file."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_rl.errors import DataError
from swe_rl.tasks import load
from swe_rl.tasks.forms import task_from_row
from swe_rl.tasks.load import RowError, find_task, iter_tasks, load_tasks, write_tasks
from swe_rl.types import Task

PLAIN = {
    "instance_id": "own__project-1",
    "repo": "own/project",
    "base_commit": "a" * 40,
    "patch": "diff --git a/m.py b/m.py\n",
    "test_patch": "diff --git a/tests/test_m.py b/tests/test_m.py\n--- a/tests/test_m.py\n+++ b/tests/test_m.py\n",
    "problem_statement": "It is broken.\r\nBadly.",
    "version": "1.0",
    "FAIL_TO_PASS": '["tests/test_m.py::test_a"]',
    "PASS_TO_PASS": "[]",
}
SCRIPT = "#!/bin/bash\npytest -rA tests/test_m.py\n"
FORMS: dict[str, dict[str, Any]] = {
    "1 text and metadata": {"text": "Issue.", "metadata": {"instance": PLAIN, "data_source": "swe_gym"}},
    "2 prompt and instance": {
        "data_source": "swe-gym",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Chat."}],
        "instance": {**PLAIN, "eval_script": SCRIPT, "FAIL_TO_PASS": ["tests/test_m.py::test_a"], "PASS_TO_PASS": []},
    },
    "2 instance as text": {"prompt": "p", "instance": json.dumps(PLAIN)},
    "3 plain": PLAIN,
    "4 areal": {"instance_id": "own__project-1", "problem_statement": "Issue.", "eval_script": SCRIPT, "image": "i:1"},
    "5 slime": {
        "prompt": "Do it.",
        "label": "",
        "metadata": {
            "instance_id": "own__project-1",
            "image": "reg.example/i:1",
            "workdir": "/app",
            "eval_cmd": "make test",
        },
    },
}


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("suffix", ["jsonl", "json", "jsonl.gz", "parquet"])
def test_every_form_in_every_file(tmp_path: Path, name: str, suffix: str) -> None:
    path, row = tmp_path / f"d.{suffix}", FORMS[name]
    if suffix == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    elif suffix == "json":
        path.write_text(json.dumps([row], indent=2))
    elif suffix == "jsonl.gz":
        path.write_bytes(gzip.compress(json.dumps(row).encode()))
    else:
        lines(path, [row])
    found = load_tasks(path)
    assert not found.rejected
    (task,) = found.tasks
    assert task.instance_id == "own__project-1"
    assert task.problem_statement
    if name[0] in "123":
        assert task.fail_to_pass == ["tests/test_m.py::test_a"] and task.pass_to_pass == []
        assert task.test_files == ["tests/test_m.py"] and task.problem_statement == PLAIN["problem_statement"]
        assert task.image == "swebench/sweb.eval.x86_64.own_1776_project-1:latest" or "xingyaoww" in task.image
    if name[0] == "4":
        assert (task.image, task.workdir, task.log_parser) == ("i:1", "/testbed", "exit_code")
        assert task.eval_script == SCRIPT
    if name[0] == "5":
        assert (task.image, task.workdir, task.log_parser) == ("reg.example/i:1", "/app", "exit_code")
        assert "\nmake test\n" in task.eval_script and task.eval_script.endswith("exit $swe_rl_status\n")


def test_rows_without_an_id_are_named_by_file_and_row(tmp_path: Path) -> None:
    row = {"prompt": "p", "label": "x", "metadata": {"eval_cmd": "true"}}
    found = load_tasks(lines(tmp_path / "coding.train.jsonl", [row, row]))
    assert [task.instance_id for task in found.tasks] == ["coding-1", "coding-2"]


def test_chat_without_statement_gives_the_last_user_message(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "old"}, {"role": "user", "content": [{"type": "text", "text": "new"}]}]
    row = {"prompt": prompt, "instance": {k: v for k, v in PLAIN.items() if k != "problem_statement"}}
    assert load_tasks(lines(tmp_path / "d.jsonl", [row])).tasks[0].problem_statement == "new"


def test_round_trip_keeps_every_field(tmp_path: Path) -> None:
    task = Task(
        "a__b-1", "s\n", repo="a/b", base_commit="abc", image="i:1", workdir="/w", eval_script=SCRIPT, patch="p",
        test_patch="t", fail_to_pass=["x [ä 1]"], pass_to_pass=["y"], test_files=["t.py"], log_parser="pytest", version="2",
        archive="/a.tar", data_source="d", certified=True, flaky=False, network=True, env={"A": "1"}, metadata={"level": 2},
    )  # fmt: skip
    assert write_tasks(tmp_path / "out.jsonl", [task]) == 1
    assert load_tasks(tmp_path / "out.jsonl").tasks == [task]


def test_tasks_in_parquet_have_their_own_variables_only(tmp_path: Path) -> None:
    rest = {"eval_script": SCRIPT, "fail_to_pass": ["t"], "log_parser": "pytest"}
    tasks = [
        Task("a-1", "s", env={"A": "1", "EMPTY": ""}, metadata={"level": 2}, **rest),
        Task("b-2", "s", env={"B": "2"}, metadata={"edit": {"old": "x"}}, **rest),
    ]
    write_tasks(tmp_path / "t.jsonl", tasks)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert load_tasks(tmp_path / "t.parquet").tasks == load_tasks(tmp_path / "t.jsonl").tasks == tasks


def test_write_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old")

    def broken() -> Any:
        yield Task("a", "b")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write_tasks(path, broken())
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


def test_refused_rows_name_file_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    good = json.dumps(PLAIN)
    rows = [
        good,
        "{broken",
        "",
        "[1]",
        json.dumps({**PLAIN, "instance_id": "../../etc"}),
        json.dumps({**PLAIN, "instance_id": "b-1", "problem_statement": " "}),
        json.dumps({**PLAIN, "instance_id": "c-1", "FAIL_TO_PASS": "[1]"}),
        json.dumps({**PLAIN, "instance_id": "d-1", "version": "", "test_patch": ""}),
        good,
        json.dumps({**PLAIN, "instance_id": "e-1", "base_commit": "$(reboot)"}),
        json.dumps({**PLAIN, "instance_id": "g-1", "archive": "/" + "x" * 256}),
        json.dumps({**PLAIN, "instance_id": "h-1", "archive": "/x" * 2048}),
        good.replace("own__project-1", "f-1")[:-20],
    ]
    path.write_text("\n".join(rows))
    found = load_tasks(path)
    assert [task.instance_id for task in found.tasks] == ["own__project-1"]
    by_line = {error.line: error.reason for error in found.rejected}
    assert sorted(by_line) == [2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    for line, words in {
        2: "not JSON", 4: "list, not an object", 5: "instance_id", 6: "problem_statement", 7: "FAIL_TO_PASS",
        8: "no way to grade", 9: f"already read at {path}:1", 10: "base_commit", 11: "longer than any path",
        12: "longer than any path", 13: "the file ends inside this row",
    }.items():  # fmt: skip
        assert words in by_line[line]
    assert str(found.rejected[0]).startswith(f"{path}:2: ")
    assert "11 rows rejected" in found.summary()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"A B": "1"}, "env: 'A B' is not a variable name"),
        ({"": "1"}, "not a variable name"),
        ({"A": "x\0"}, "A must not contain NUL"),
        ({"A": "ä" * 65_535}, "A is longer than"),
        ({f"A{i}": "x" * 100_000 for i in range(3)}, "262144 characters in all"),
        ({f"A{i}": "" for i in range(1001)}, "more than 1000 variables"),
    ],
)
def test_an_environment_that_no_sandbox_takes_is_refused(tmp_path: Path, env: dict[str, str], words: str) -> None:
    path = lines(tmp_path / "d.jsonl", [PLAIN, {**PLAIN, "instance_id": "a-1", "env": env}])
    found = load_tasks(path)
    assert [task.instance_id for task in found.tasks] == ["own__project-1"]
    assert str(found.rejected[0]).startswith(f"{path}:2: env: ") and words in found.rejected[0].reason


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\x7fELF\x00\x01", "neither JSON lines"),
        (b"instance_id,repo\na,b\n", "neither JSON lines"),
        (b"PAR1junk", "damaged Parquet"),
        (b"\x1f\x8b\x08broken", "damaged gzip"),
        (b"\xff\xfe{\x00", "UTF-16"),
        (b"{}\n{}\n", "none of its 2 rows"),
        (b"[]", "none of its 0 rows"),
        (b"{" * 5000, "none of its 1 rows"),
        (b"[" * 100_000, "none of its"),
    ],
)
def test_a_file_with_nothing_usable_is_one_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        load_tasks(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "first",
    [
        "null",
        '"x"',
        "# comment",
        'blem_statement": "cut"}',
        "{",
        '{"cut',
        "[1]",
        "[]",
        '[{"a": 1}]',
        "\n\n[1]",
        "x" * 5000,
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_bad_first_line_costs_one_row(tmp_path: Path, first: str, suffix: str) -> None:
    path = tmp_path / f"d.{suffix}"
    text = "\n".join([first, json.dumps(PLAIN), json.dumps({**PLAIN, "instance_id": "b-2"}), ""])
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    found = load_tasks(path)
    assert [task.instance_id for task in found.tasks] == ["own__project-1", "b-2"]
    assert [error.line for error in found.rejected] == [1 + first.count("\n")]


@pytest.mark.parametrize("after", ["{}", "]", "x", ', {"a": 1}', "\n\n" + " " * 3_000_000 + "[1]"])
def test_what_follows_an_array_is_a_row_error(tmp_path: Path, after: str) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps([PLAIN], indent=1) + after)
    found = load_tasks(path)
    assert len(found.tasks) == 1 and "follows the array's end" in found.rejected[0].reason
    path.write_text(json.dumps([PLAIN], indent=1) + " \n" * 2_000_000)
    assert load_tasks(path).rejected == []


def test_text_that_is_no_dataset_is_given_up_early(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("a,b\n" * 5000)
    rows = []
    with pytest.raises(DataError, match="neither JSON lines"):
        for row in iter_tasks(path):
            rows.append(row)
    assert len(rows) <= 1000


def test_missing_path_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_tasks(tmp_path / "nope.jsonl")
    with pytest.raises(DataError, match=r"no \.jsonl"):
        load_tasks(tmp_path)


def test_bom_crlf_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(PLAIN).encode() + b"\r\n\r\n" + b" \r\n")
    assert len(load_tasks(path).tasks) == 1


def test_pretty_printed_objects_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps({**PLAIN, "instance_id": f"x-{i}"}, indent=1) for i in range(3)))
    assert [task.instance_id for task in load_tasks(path).tasks] == ["x-0", "x-1", "x-2"]


def test_array_across_chunks_with_cut_characters(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    rows = [{**PLAIN, "instance_id": f"x-{i}", "problem_statement": "ä€😀" * 4001} for i in range(80)]
    path.write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    assert [task.problem_statement for task in load_tasks(path).tasks] == [row["problem_statement"] for row in rows]


def test_array_that_is_cut_keeps_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps([PLAIN, {**PLAIN, "instance_id": "b-2"}])[:-30])
    found = load_tasks(path)
    assert len(found.tasks) == 1 and found.rejected[0].line == 2
    path.write_text(json.dumps([PLAIN])[:-1])
    assert "ends inside the array" in load_tasks(path).rejected[0].reason


def test_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines(tmp_path / "data" / "a.jsonl", [{**PLAIN, "instance_id": "a-1"}])
    parquet.write_table(pyarrow.Table.from_pylist([{**PLAIN, "instance_id": "b-1"}]), tmp_path / "data" / "b.parquet")
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / "README.md").write_text("x")
    assert {task.instance_id for task in load_tasks(tmp_path).tasks} == {"a-1", "b-1"}


def test_only_certified_says_what_it_left_out(tmp_path: Path) -> None:
    def task(name: str, certified: bool | None, flaky: bool | None) -> Task:
        return Task(name, "s", eval_script=SCRIPT, fail_to_pass=["t"], certified=certified, flaky=flaky)

    kinds = [task("a", True, False), task("b", None, None), task("c", False, True), task("d", False, False)]
    write_tasks(tmp_path / "t.jsonl", kinds)
    found = load_tasks(tmp_path / "t.jsonl", only_certified=True)
    assert [t.instance_id for t in found.tasks] == ["a"]
    assert found.left_out == {"b": "not certified", "c": "flaky", "d": "broken"}
    assert found.summary() == "1 tasks; 3 left out (1 not certified, 1 flaky, 1 broken)"
    write_tasks(tmp_path / "t.jsonl", kinds[1:])
    with pytest.raises(DataError, match="swe-rl data certify"):
        load_tasks(tmp_path / "t.jsonl", only_certified=True)


def test_a_report_names_the_first_rejected_rows(tmp_path: Path) -> None:
    path = lines(tmp_path / "d.jsonl", [PLAIN])
    with path.open("ab") as file:
        file.write(b"{broken [red]\x1b[2J\n" * 25)
    said = load_tasks(path).report().splitlines()
    assert said[0] == "1 tasks; 25 rows rejected" and said[-1] == "  and 5 more rejected rows" and len(said) == 22
    assert said[1].startswith(f"  rejected {path}:2: ") and "\x1b" not in said[1]


def test_find_task_reads_no_further(tmp_path: Path) -> None:
    path = lines(tmp_path / "d.jsonl", [PLAIN])
    with path.open("ab") as file:
        file.write(b"{broken\n")
    assert find_task(path, "own__project-1").instance_id == "own__project-1"
    with pytest.raises(DataError, match=r"no task 'nope' among 1 .*1 rows were refused"):
        find_task(path, "nope")


def test_scripts_are_made_or_the_row_is_rejected(tmp_path: Path, cases: Path) -> None:
    rows = [json.loads(line) for line in (cases / "swebench_lite_80.jsonl").read_text().splitlines()[:2]]
    path = lines(tmp_path / "d.jsonl", [*rows, PLAIN])
    found = load_tasks(path, with_scripts=True)
    assert len(found.tasks) == 2 and all("git apply" in task.eval_script for task in found.tasks)
    assert "swebench" in found.rejected[0].reason and "own/project" in found.rejected[0].reason
    assert str(found.rejected[0]).startswith(f"{path}:3: ")


@pytest.mark.parametrize("name", FORMS)
def test_a_row_is_left_as_it_was(name: str) -> None:
    row = json.loads(json.dumps(FORMS[name]))
    first = task_from_row(row)
    assert row == FORMS[name] and task_from_row(row) == first


def test_a_reader_that_stumbles_costs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbling(row: dict[str, Any], **options: Any) -> Task:
        return [][row["instance_id"] == "a-1"] if row["instance_id"] == "a-1" else task_from_row(row, **options)

    monkeypatch.setattr(load, "task_from_row", stumbling)
    path = lines(tmp_path / "d.jsonl", [PLAIN, {**PLAIN, "instance_id": "a-1"}])
    found = load_tasks(path)
    assert len(found.tasks) == 1 and str(found.rejected[0]) == f"{path}:2: IndexError: list index out of range"


def test_real_datasets(cases: Path) -> None:
    lite, gym = load_tasks(cases / "swebench_lite_80.jsonl"), load_tasks(cases / "swegym_3.jsonl")
    assert (len(lite.tasks), len(gym.tasks), lite.rejected + gym.rejected) == (80, 3, [])
    assert all(task.fail_to_pass and task.base_commit and task.test_files for task in lite.tasks + gym.tasks)
    assert gym.tasks[0].image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5876:latest"
    assert lite.tasks[0].image == "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=400))
@pytest.mark.parametrize("prefix", [b"", b"{", b"[", b"[{}", b"PAR1", b"\x1f\x8b", b'{"instance_id": "a", '])
def test_random_bytes_give_tasks_row_errors_or_one_data_error(tmp_path: Path, prefix: bytes, content: bytes) -> None:
    path = tmp_path / "d.bin"
    path.write_bytes(prefix + content)
    try:
        for item in iter_tasks(path):
            assert isinstance(item, (Task, RowError))
    except DataError as error:
        assert str(path) in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*PLAIN, "metadata", "x"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*PLAIN, "prompt", "instance", "metadata", "text", "eval_cmd", "env", "test_files"]), JSON
    )
)
def test_random_values_in_known_fields(tmp_path: Path, values: dict[str, Any]) -> None:
    path = lines(tmp_path / "d.jsonl", [{**PLAIN, **values}])
    for item in iter_tasks(path):
        assert isinstance(item, (Task, RowError))


_MEMORY = """
import resource, sys
from swe_rl.tasks.load import iter_tasks
import pyarrow.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(1 for _ in iter_tasks(sys.argv[1]))
print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json"])
def test_large_files_are_streamed(tmp_path: Path, suffix: str) -> None:
    """58 MB of rows in one row group, one array or one file of lines: at most 40 MB are held."""
    path = tmp_path / f"big.{suffix}"
    noise = "".join(chr(97 + (i * 7919) % 26) for i in range(39_000))
    rows = ({**PLAIN, "instance_id": f"x-{i}", "problem_statement": f"{i} {noise}"} for i in range(1500))
    if suffix == "parquet":
        parquet.write_table(
            pyarrow.Table.from_pylist(list(rows)), path, row_group_size=10_000, compression="none", use_dictionary=False
        )
    else:
        with path.open("w") as file:
            file.write("[" if suffix == "json" else "")
            for number, row in enumerate(rows):
                file.write(("," if suffix == "json" and number else "") + json.dumps(row) + "\n")
            file.write("]" if suffix == "json" else "")
    done = subprocess.run([sys.executable, "-c", _MEMORY, str(path)], capture_output=True, text=True, check=True)
    count, megabytes = map(int, done.stdout.split())
    assert count == 1500
    assert megabytes < 40

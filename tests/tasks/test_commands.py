"""`swe-rl data inspect` and `data convert`, and the converter under the name the field knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl import cli
from swe_rl.tasks.load import load_tasks
from tests.tasks.test_load import FORMS

ROOT = Path(__file__).resolve().parents[2]


def test_inspect_counts(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "inspect", str(cases / "swebench_lite_80.jsonl"), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert (counts["rows"], counts["usable"], counts["rejected"]) == (80, 80, 0)
    assert counts["repos"]["django/django"] == 60 and counts["distinct_repos"] == 6
    assert counts["missing_fields"] == {"eval_script": 80, "pass_to_pass": 1}
    assert counts["certification"] == {"not certified": 80} and counts["forms"] == {"swebench": 80}
    assert counts["fail_to_pass"] == {"min": 1, "median": 1, "p95": 4, "max": 12}


def test_inspect_says_which_scripts_can_be_made(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lite = json.loads((cases / "swebench_lite_80.jsonl").read_text("utf-8").splitlines()[0])
    gym = json.loads((cases / "swegym_3.jsonl").read_text("utf-8").splitlines()[0])
    rows = [
        lite,
        {**lite, "instance_id": "a__b-1", "repo": "a/b"},
        {**lite, "instance_id": "a__b-2", "repo": "a/b"},
        {**lite, "instance_id": "astropy__astropy-9", "version": "99.9"},
        {**lite, "instance_id": "own-1", "eval_script": "true"},
        {**gym, "eval_script": ""},
    ]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["data", "inspect", str(tmp_path / "d.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval_scripts"] == {
        "made by swebench": 1,
        "none can be made": 3,
        "in the row": 1,
        "made for SWE-Gym's repositories": 1,
    }


def test_inspect_names_the_form_of_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [json.dumps(row).replace("own__project-1", f"own__project-{n}") for n, row in enumerate(FORMS.values())]
    text = "\n".join(texts)
    (tmp_path / "d.jsonl").write_text(text)
    assert cli.main(["data", "inspect", str(tmp_path / "d.jsonl"), "--json"]) == 0
    forms = json.loads(capsys.readouterr().out)["forms"]
    assert forms == {"swe-rl": 1, "instance-column": 2, "swebench": 1, "areal": 1, "slime": 1}


def test_inspect_prints_tables_and_no_markup_of_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "instance_id": "a-1",
        "problem_statement": "[bold]x[/nope] \x1b[31m",
        "eval_script": "true",
        "repo": "[red]r[/red]",
    }
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n{\n")
    assert cli.main(["data", "inspect", str(tmp_path / "d.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "[bold]x[/nope]" in out and "[red]r[/red]" in out and "appears twice" in out
    assert "3 rows" in out and "\x1b[31m" not in out


def test_inspect_of_nothing_usable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.jsonl").write_text("{}\n")
    assert cli.main(["data", "inspect", str(tmp_path / "d.jsonl")]) == 1
    assert cli.main(["data", "inspect", str(tmp_path / "nope")]) == 1
    assert "no such file" in capsys.readouterr().err


def test_convert_writes_our_form_with_scripts(cases: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "t.jsonl"
    call = [
        "data",
        "convert",
        "--input",
        str(cases / "swebench_lite_80.jsonl"),
        "--output",
        str(out),
        "--data-source",
        "lite",
    ]
    assert cli.main([*call, "--eval-scripts", "--registry", "m.example", "--limit", "3"]) == 0
    tasks = load_tasks(out).tasks
    assert len(tasks) == 3
    for task in tasks:
        assert task.eval_script.startswith("#!/bin/bash") and task.data_source == "lite"
        assert task.image.startswith("m.example/swebench/")
    row = json.loads(out.read_text().splitlines()[0])
    assert set(row) == {"text", "metadata"} and set(row["metadata"]) == {"instance", "data_source"}


def test_convert_selects_and_templates(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.jsonl"
    call = ["data", "convert", str(cases / "swegym_3.jsonl"), "-o", str(out)]
    assert cli.main([*call, "--instance-ids", "dask__dask-9378,nope", "--image-template", "r/{id_s}:{version}"]) == 0
    assert [task.image for task in load_tasks(out).tasks] == ["r/dask_s_dask-9378:2022.8"]
    assert "1 tasks written, 0 rows rejected, 2 left out" in capsys.readouterr().out
    many = ",".join(["dask__dask-9378", *(f"own__project-of-a-long-name-{n}" for n in range(20))])
    (tmp_path / "ids").write_text(many.replace(",", "\n"))
    for ids in (many, str(tmp_path / "ids")):
        assert cli.main([*call, "--instance-ids", ids]) == 0
        assert [task.instance_id for task in load_tasks(out).tasks] == ["dask__dask-9378"]


def test_convert_errors(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.jsonl"
    lite = str(cases / "swebench_lite_80.jsonl")
    for arguments, code, words in (
        (["-o", str(out)], 2, "give one source"),
        ([lite, "--dataset", "a/b", "-o", str(out)], 2, "give one source"),
        ([lite], 2, "(--output), or the folder it goes in (--output-dir)"),
        ([lite, "-o", str(out), "--output-dir", str(tmp_path)], 2, "(--output), or the folder"),
        ([lite, "-o", lite, "--limit", "1"], 2, "is the file that is read"),
        (["princeton-nlp/SWE-bench", "-o", str(out)], 2, "--dataset princeton-nlp/SWE-bench"),
        ([lite, "-o", str(out), "--limit", "-1"], 2, "--limit -1"),
        ([lite, "-o", str(out), "--instance-ids", "nope"], 1, "none usable"),
        ([lite, "-o", str(out), "--image-template", "{nope}"], 2, "known fields are"),
    ):
        assert cli.main(["data", "convert", *arguments]) == code
        assert words in capsys.readouterr().err
        assert not out.exists()
    bad = tmp_path / "bad.jsonl"
    bad.write_text(Path(lite).read_text().splitlines()[0] + "\n{}\n")
    assert cli.main(["data", "convert", str(bad), "-o", str(out), "--strict"]) == 1 and not out.exists()
    assert cli.main(["data", "convert", str(bad), "-o", str(out)]) == 0 and out.exists()


def test_the_script_of_the_field(cases: Path, tmp_path: Path) -> None:
    call = [sys.executable, str(ROOT / "data" / "preprocess_swe_dataset.py"), "--output", str(tmp_path / "t.jsonl")]
    done = subprocess.run(
        [*call, "--input", str(cases / "swegym_3.jsonl")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "3 tasks written" in done.stdout
    done = subprocess.run([*call, "--input", "nope.jsonl"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no such file" in done.stderr and "Traceback" not in done.stderr

"""The files of an evaluation: what the official harness reads of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swe_rl.config import Config
from swe_rl.evaluate.outputs import RESULT_FIELDS, write_outputs


def record(folder: Path, instance_id: str, index: int) -> dict[str, Any]:
    attempt = folder / "attempts" / f"{instance_id}__{index}"
    attempt.mkdir(parents=True)
    (attempt / "patch.diff").write_bytes(f"{instance_id} {index}\n".encode())
    own = {"instance_id": instance_id, "index": index, "verdict": "resolved", "attempt_dir": str(attempt)}
    return {**dict.fromkeys(RESULT_FIELDS), **own}


@pytest.mark.parametrize("attempts", [1, 3])
def test_each_file_of_predictions_has_one_of_a_task(attempts: int, tmp_path: Path) -> None:
    """swebench reads a file as `{instance_id: prediction}`: of two, one would be lost."""
    tasks = ["b-2", "a-1"]
    records = [record(tmp_path, task, index) for task in tasks for index in range(attempts)]
    write_outputs(tmp_path, Config(hf_checkpoint="/models/policy"), records, {"n": len(records)})
    names = ["preds.jsonl", *(f"preds.{index}.jsonl" for index in range(1, attempts))]
    assert sorted(names) == sorted(path.name for path in tmp_path.glob("preds*"))
    for index, name in enumerate(names):
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert rows == [
            {"instance_id": task, "model_name_or_path": "policy", "model_patch": f"{task} {index}\n"} for task in tasks
        ]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == len(records)


def test_an_evaluation_without_an_attempt_still_has_its_file(tmp_path: Path) -> None:
    write_outputs(tmp_path, Config(hf_checkpoint="/models/policy"), [], {"n": 0})
    assert (tmp_path / "preds.jsonl").read_text() == ""

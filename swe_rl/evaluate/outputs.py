"""What an evaluation leaves on disk: summary.json, results.jsonl, and its patches in SWE-bench's prediction form.

The official harness keeps one prediction per instance of a file, the last, and says nothing of the others. So preds.jsonl holds
the first attempt at each task, preds.1.jsonl the second, and so on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from swe_rl.config import Config
from swe_rl.evaluate.intervals import pass_at_k
from swe_rl.run_folder import write_atomically, write_json
from swe_rl.types import Verdict

RESULT_FIELDS = (
    *(
        "instance_id",
        "index",
        "verdict",
        "reward",
        "exit_status",
        "turns",
        "sampled_tokens",
        "seconds",
        "retries",
        "error",
    ),
    *("attempt_dir", "timings", "task_metadata"),
)


def write_outputs(
    folder: Path, config: Config, records: list[dict[str, Any]], result: dict[str, Any]
) -> dict[str, Any]:
    """Write results, predictions and the summary below `folder`, and return the summary."""
    rows = [{name: record[name] for name in RESULT_FIELDS} for record in records]
    write_atomically(folder / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    name = config.run_name or Path(config.hf_checkpoint).name
    predictions: dict[int, list[str]] = {0: []}
    for record in records:
        predictions.setdefault(record["index"], []).append(json.dumps(prediction(record, name)) + "\n")
    for index, lines in predictions.items():
        write_atomically(folder / (f"preds.{index}.jsonl" if index else "preds.jsonl"), "".join(lines))
    summary = {
        "hf_checkpoint": config.hf_checkpoint,
        "tasks_file": config.eval_prompt_data,
        "temperature": config.eval_temperature,
        "seed": config.seed,
        **result,
        "pass_at_k": mean_pass_at_k(records),
    }
    write_json(folder / "summary.json", summary)
    return summary


def prediction(record: dict[str, Any], model_name: str) -> dict[str, str]:
    """One row for the official harness: instance_id, model_name_or_path, model_patch (the bytes as UTF-8, losses marked)."""
    file = Path(record["attempt_dir"]) / "patch.diff"
    patch = file.read_bytes() if record["attempt_dir"] and file.exists() else b""
    return {
        "instance_id": record["instance_id"],
        "model_name_or_path": model_name,
        "model_patch": patch.decode("utf-8", "replace"),
    }


def mean_pass_at_k(records: list[dict[str, Any]]) -> dict[str, float]:
    """Mean over tasks of the unbiased pass@k, for every k that all tasks have attempts for (infra_errors left out)."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for record in records:
        if record["verdict"] != Verdict.INFRA_ERROR.value:
            outcomes[record["instance_id"]].append(record["verdict"] == Verdict.RESOLVED.value)
    if not outcomes:
        return {}
    fewest = min(len(values) for values in outcomes.values())
    return {
        str(k): sum(pass_at_k(sum(v), len(v), k) for v in outcomes.values()) / len(outcomes)
        for k in range(1, fewest + 1)
    }

"""`swe-rl eval` with a real engine and real sandboxes: what it says of its tasks, where it writes, what it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from swe_rl import cli
from swe_rl.config import Config
from swe_rl.errors import ConfigError, EngineError, UsageError
from swe_rl.evaluate.command import evaluate
from swe_rl.run_folder import RunFolder
from swe_rl.tasks.load import write_tasks
from tests.agent.repository import build_task, local_config
from tests.rollout.test_real_engine import checkpoint, engine_server  # noqa: F401


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A task, one that nobody certified, and a row that is none."""
    task = build_task(tmp_path)
    file = tmp_path / "tasks.jsonl"
    write_tasks(file, [task, dataclasses.replace(task, instance_id="demo__clamp-2", certified=None)])
    file.write_text(file.read_text() + '{"no": "task"}\n')
    return file


async def test_it_tells_what_it_leaves_out(engine_server, checkpoint, tasks, tmp_path, capsys):  # noqa: F811
    config = local_config(
        tmp_path,
        engine_urls=[str(engine_server.make_url("/"))],
        hf_checkpoint=str(checkpoint),
        eval_prompt_data=str(tasks),
        run_dir=str(tmp_path / "run"),
        swe_agent_config="quickstart",
        rollout_max_context_len=420,
        rollout_max_response_len=40,
        step_limit=2,
        n_samples_per_eval_prompt=2,
        eval_greedy=True,
        use_wandb=True,
        wandb_mode="offline",
        progress="plain",
    )
    summary = await asyncio.to_thread(evaluate, config)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["n"], summary["left_out"], summary["rejected"]) == (2, 1, 1)
    assert summary["greedy"]["n"] == 1
    said = capsys.readouterr().err
    assert "evaluating 1 of 1 tasks; 1 rows rejected; 1 left out (1 not certified)" in said
    assert f"rejected {tasks}:3: " in said
    attempts = sorted(p.name for p in (tmp_path / "attempts").iterdir())  # the folder that swe_save_traj_dir names
    assert len(attempts) == 3 and attempts[-1] == "eval-greedy" and not (tmp_path / "run" / "attempts").exists()
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    with pytest.raises(ConfigError, match="finished evaluation"):
        evaluate(config)


def test_the_folder_of_another_run_is_left_alone(tasks: Path, tmp_path: Path) -> None:
    """`--config export/x/config.yaml` names that run: neither its settings nor its end are overwritten."""
    config = Config(run_name="x", export_root=str(tmp_path), eval_prompt_data=str(tasks), hf_checkpoint="m")
    run = RunFolder.open(config)
    before = (run.path / "config.yaml").read_bytes()
    with pytest.raises(UsageError, match="in use by another process"):
        evaluate(config)
    run.close()
    with pytest.raises(ConfigError, match=f"--run-dir {run.path}: holds a training run"):
        evaluate(config.model_copy(update={"seed": 7}))
    assert (run.path / "config.yaml").read_bytes() == before and not run.summary.exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("seed: 3\n")
    with pytest.raises(ConfigError, match=r"other settings \(.*seed"):
        evaluate(config.model_copy(update={"run_dir": str(other)}))
    assert (other / "config.yaml").read_text() == "seed: 3\n"


def test_the_engines_have_all_gpus(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_gpu = {"engine": "sglang", "num_gpus_per_node": 1, "sglang_python": "/bin/echo"}
    flags = [word for name, value in one_gpu.items() for word in (f"--{name}", str(value))]
    assert cli.main(["eval", *flags, "--hf-checkpoint", "/no/such"]) == 2  # sizes are checked before it
    assert "--hf-checkpoint: no folder /no/such" in capsys.readouterr().err
    config = Config(**one_gpu, run_dir=str(tmp_path / "run"), eval_prompt_data=str(tasks), hf_checkpoint="m")
    with pytest.raises(EngineError, match=r"--base-gpu-id 0\b"):  # the log's end: what echo was told
        evaluate(config)


def test_a_training_checkpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "--load", "run/checkpoints/step_000010"]) == 2
    assert "--load run/checkpoints/step_000010: an evaluation serves a Hugging Face folder" in capsys.readouterr().err

"""`swe-rl eval`: the same attempts and the same grader as in training, for a checkpoint or a running endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import os
import sys
from pathlib import Path
from typing import Any

from swe_rl.cluster.supervise import run_supervised, stop_on_signals, supervised
from swe_rl.config import Config
from swe_rl.config.check import check_checkpoint_folder, check_context, check_data_file, check_sizes
from swe_rl.config.load import dump_yaml, load_config, print_and_exit_on_dry_run
from swe_rl.engine.launch import launch_engines
from swe_rl.errors import ConfigError
from swe_rl.evaluate.held_out import choose, rates
from swe_rl.evaluate.intervals import Rate
from swe_rl.evaluate.outputs import write_outputs
from swe_rl.observe.logs import set_up_logging
from swe_rl.observe.progress import Display
from swe_rl.rollout.data_source import TaskSource
from swe_rl.rollout.functions import load_functions
from swe_rl.rollout.rollouts import Rollouts
from swe_rl.rollout.runtime import open_runtime, set_runtime
from swe_rl.run_folder import write_atomically
from swe_rl.tasks.load import load_tasks
from swe_rl.types import Task

DESCRIPTION = (
    "Evaluate --hf-checkpoint (or the engines of --engine-urls) on --eval-prompt-data: resolve rate with its 95% interval, "
    "results.jsonl, preds.jsonl for the official harness, and a folder for every attempt, all in --run-dir."
)


def main(argv: list[str]) -> int:
    """Check the settings, then evaluate below a supervisor that owns every process started."""
    loaded = load_config(argv, prog="swe-rl eval", description=DESCRIPTION)
    print_and_exit_on_dry_run(loaded)
    config = loaded.config
    check_sizes(config)
    check_checkpoint_folder(config.hf_checkpoint, "--hf-checkpoint")
    check_context(config)
    check_data_file(config.eval_prompt_data, "--eval-prompt-data")
    if not supervised():
        return run_supervised([sys.executable, "-m", "swe_rl", "eval", *argv])
    stop_on_signals()
    evaluate(config)
    return 0


def evaluate(config: Config) -> dict[str, Any]:
    """Run the evaluation that `config` describes, write its outputs and return the summary."""
    set_up_logging(config)
    stamp = os.environ.get("RUN_TIMESTAMP") or datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
    folder = Path(config.run_dir or Path(config.export_root) / (config.run_name or f"eval_{stamp}")).resolve()
    if (folder / "summary.json").exists():
        raise ConfigError(f"--run-dir {folder}: holds a finished evaluation; choose another --run-dir or --run-name")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "config.yaml", dump_yaml(config))
    tasks, attempts = choose(
        load_tasks(
            config.eval_prompt_data,
            only_certified=config.only_certified,
            with_scripts=True,
            image_template=config.swe_image_template,
        ).tasks,
        config,
    )
    fleet = launch_engines(config, config.hf_checkpoint, log_dir=folder / "logs")
    display = Display(config, total_steps=1)
    try:
        bound = config.model_copy(
            update={"engine_urls": fleet.urls, "run_dir": str(folder), "swe_save_traj_dir": str(folder / "attempts")}
        )
        records = asyncio.run(_attempts(bound, tasks, attempts, display))
    finally:
        fleet.stop()
        display.close()
    result = rates(records, seed=config.seed)
    summary = write_outputs(folder, config, records, result)
    rate = Rate(result["resolve_rate"], tuple(result["ci95"]), result["n"], result["tasks"])
    display.console.print(f"resolved {rate}; everything is in {folder}")
    return summary


async def _attempts(config: Config, tasks: list[Task], attempts: int, display: Display) -> list[dict[str, Any]]:
    """Attempt records, with the progress shown while they are made."""
    runtime = await open_runtime(config)
    set_runtime(runtime)
    try:
        rollouts = Rollouts(runtime, load_functions(config), TaskSource(tasks, seed=config.seed, shuffle=False))
        work = asyncio.ensure_future(
            rollouts.evaluate(tasks, attempts=attempts, temperature=config.eval_temperature, label="eval")
        )
        with display.stage("evaluating") as show:
            try:
                while not (await asyncio.wait([work], timeout=0.5))[0]:
                    show(runtime.progress.snapshot())
            finally:
                work.cancel()  # does nothing to finished work; ends the attempts if this was interrupted
                await asyncio.wait([work])
        metadata = {task.instance_id: task.metadata for task in tasks}
        return [{**dataclasses.asdict(r), "task_metadata": metadata[r.instance_id]} for r in work.result()]
    finally:
        set_runtime(None)
        await runtime.aclose()

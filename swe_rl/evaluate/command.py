"""`swe-rl eval`: the same attempts and the same grader as in training, for a checkpoint or a running endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from swe_rl.cluster.preflight import check_attempts
from swe_rl.cluster.supervise import run_supervised, stop_on_signals, supervised
from swe_rl.config import Config
from swe_rl.config.check import check_checkpoint_folder, check_context, check_data_file, check_sizes
from swe_rl.config.load import load_config, naming_sources, print_and_exit_on_dry_run
from swe_rl.engine.launch import launch_engines
from swe_rl.errors import ConfigError
from swe_rl.evaluate.folder import attempts_folder, claim, folder_of
from swe_rl.evaluate.held_out import choose, rates
from swe_rl.evaluate.intervals import Rate
from swe_rl.evaluate.outputs import write_outputs
from swe_rl.observe.logs import set_up_logging
from swe_rl.observe.metrics import MetricsLog, check_wandb
from swe_rl.observe.progress import Display
from swe_rl.rollout.data_source import TaskSource
from swe_rl.rollout.functions import load_functions
from swe_rl.rollout.rollouts import Rollouts
from swe_rl.rollout.runtime import open_runtime, set_runtime
from swe_rl.tasks.load import load_tasks
from swe_rl.types import Task

DESCRIPTION = (
    "Evaluate --hf-checkpoint (or the engines of --engine-urls) on --eval-prompt-data: resolve rate with its 95% interval, "
    "results.jsonl, preds.jsonl for the official harness, and a folder for every attempt, all in --run-dir."
)
Records = list[dict[str, Any]]


def main(argv: list[str]) -> int:
    """Check the settings, then evaluate below a supervisor that owns every process started."""
    loaded = load_config(argv, prog="swe-rl eval", description=DESCRIPTION)
    config = loaded.config
    with naming_sources(loaded):
        check_sizes(config, training=False)
        print_and_exit_on_dry_run(loaded)
        check_no_load(config)
        check_checkpoint_folder(config.hf_checkpoint, "--hf-checkpoint")
        check_context(config)
        check_data_file(config.eval_prompt_data, "--eval-prompt-data")
    if not supervised():
        return run_supervised([sys.executable, "-m", "swe_rl", "eval", *argv])
    stop_on_signals()
    evaluate(config)
    return 0


def check_no_load(config: Config) -> None:
    """Raise ConfigError for `--load`: it names the state of a training run, which engines cannot serve."""
    if config.load:
        raise ConfigError(
            f"--load {config.load}: an evaluation serves a Hugging Face folder, not a checkpoint; give "
            "--hf-checkpoint <run>/hf (an interrupted run writes it when it is continued and ends), and no --load"
        )


def evaluate(config: Config) -> dict[str, Any]:
    """Run the evaluation that `config` describes, write its outputs and return the summary."""
    set_up_logging(config)
    folder = folder_of(config)
    loaded = load_tasks(
        config.eval_prompt_data,
        only_certified=config.only_certified,
        with_scripts=True,
        image_template=config.swe_image_template,
    )
    check_attempts(config)
    check_wandb(config)
    with claim(folder, config), ExitStack() as stack:
        display = Display(config, total_steps=1)
        stack.callback(display.close)
        tasks, attempts = choose(loaded.tasks, config)
        display.say(f"evaluating {len(tasks)} of {loaded.report()}")
        log = MetricsLog(folder / "metrics.jsonl", config, run_name=folder.name)
        stack.callback(log.close)
        fleet = launch_engines(config, config.hf_checkpoint, log_dir=folder / "logs", training=False)
        stack.callback(fleet.stop)
        places = {"run_dir": str(folder), "swe_save_traj_dir": str(attempts_folder(folder, config))}
        bound = config.model_copy(update={"engine_urls": fleet.urls, **places})
        sampled, greedy = asyncio.run(_attempts(bound, tasks, attempts, display))
        result = rates(sampled, seed=config.seed)
        result |= {"left_out": len(loaded.left_out), "rejected": len(loaded.rejected)}
        if greedy:
            result["greedy"] = rates(greedy, seed=config.seed)
        summary = write_outputs(folder, config, sampled, result)
        log.log("eval", 0, {name: result[name] for name in ("resolve_rate", "ci95", "n", "left_out", "rejected")})
        for name, one in (("resolved", result), ("greedy", result.get("greedy"))):
            if one:
                display.say(f"{name} {Rate(one['resolve_rate'], tuple(one['ci95']), one['n'], one['tasks'])}")
        display.say(f"everything is in {folder}")
    return summary


async def _attempts(config: Config, tasks: list[Task], attempts: int, display: Display) -> tuple[Records, Records]:
    """Records of the sampled and, if asked for, of the greedy attempts; progress is shown while they are made."""
    runtime = await open_runtime(config)
    set_runtime(runtime)
    try:
        rollouts = Rollouts(runtime, load_functions(config), TaskSource(tasks, seed=config.seed, shuffle=False))
        metadata = {task.instance_id: task.metadata for task in tasks}

        async def run(label: str, attempts: int, temperature: float, attempts_dir: str = "") -> Records:
            work = asyncio.ensure_future(
                rollouts.evaluate(
                    tasks, attempts=attempts, temperature=temperature, label=label, attempts_dir=attempts_dir
                )
            )
            with display.stage(f"evaluating {label}") as show:
                try:
                    while not (await asyncio.wait([work], timeout=0.5))[0]:
                        show(runtime.progress.snapshot())
                finally:
                    work.cancel()  # does nothing to finished work; ends the attempts if this was interrupted
                    await asyncio.wait([work])
            return [{**dataclasses.asdict(r), "task_metadata": metadata[r.instance_id]} for r in work.result()]

        sampled = await run("eval", attempts, config.eval_temperature)
        if not config.eval_greedy:
            return sampled, []
        return sampled, await run("eval-greedy", 1, 0.0, str(Path(config.swe_save_traj_dir) / "eval-greedy"))
    finally:
        set_runtime(None)
        await runtime.aclose()

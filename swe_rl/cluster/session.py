"""Everything a training run starts, in one place: engines, Ray, training processes, the rollout manager, and their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from swe_rl.cluster.local_ray import ray_cluster
from swe_rl.cluster.processes import record_processes
from swe_rl.cluster.supervise import private_folder
from swe_rl.config import Config
from swe_rl.engine.launch import EngineFleet, launch_engines
from swe_rl.rollout.remote import RemoteRollouts
from swe_rl.run_folder import RunFolder
from swe_rl.trainer.group import TrainerGroup


@dataclass
class Session:
    """The parts of a run, ready to be used."""

    engines: EngineFleet
    trainer: TrainerGroup
    rollouts: RemoteRollouts


@contextmanager
def training_session(config: Config, run: RunFolder) -> Iterator[Session]:
    """Start all parts; on exit, whatever happened, end them in the reverse order."""
    ray_folder = private_folder() / "ray"
    ray_folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        engines = launch_engines(config, config.hf_checkpoint, log_dir=run.logs)
        stack.callback(engines.stop)
        stack.enter_context(ray_cluster(config, ray_folder))
        record_processes(run.processes)
        rollouts = RemoteRollouts(config.model_copy(update={"engine_urls": engines.urls}))
        stack.callback(rollouts.close)
        trainer = TrainerGroup(config)
        stack.callback(trainer.close)
        record_processes(run.processes)
        yield Session(engines, trainer, rollouts)
    run.processes.unlink(missing_ok=True)

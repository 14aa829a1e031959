"""The trainer as the driver sees it: one object over all training processes (Ray actors).

A dead process would leave the others waiting in a collective until its timeout. Here the first failure of any rank ends
the call at once, and the group with it: the run continues from its last checkpoint.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from swe_rl.config import Config
from swe_rl.errors import SweRlError
from swe_rl.trainer.batch import plan_steps, training_batch
from swe_rl.trainer.checkpoint import describe
from swe_rl.trainer.checkpoint_folder import (
    commit,
    partial_folder,
    prune,
    read_manifest,
    read_state,
    require_space,
    write_json,
)
from swe_rl.trainer.errors import CheckpointError, TrainerDied, TrainerError
from swe_rl.trainer.worker import TrainWorker
from swe_rl.types import Sample

log = logging.getLogger(__name__)
DEATH_NOTICE = 5.0  # seconds that Ray may need to notice a death after other processes have felt it


class TrainerGroup:
    """Starts the training processes and loads the model; Ray must be initialised. `close()` ends the processes.

    Methods block; call them through `asyncio.to_thread` from async code. Raises TrainerDied where a process is gone or
    silent, and whatever typed error a rank raised.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.world_size = config.actor_num_nodes * config.actor_num_gpus_per_node
        self.optimizer_steps = 0
        actor: Any = ray.remote(TrainWorker).options(
            num_cpus=0, num_gpus=1 if config.num_gpus_per_node else 0, max_restarts=0, max_task_retries=0
        )
        self._workers: list[Any] = [actor.remote(config, rank, self.world_size) for rank in range(self.world_size)]
        try:
            address, port = self._gather([self._workers[0].host_rendezvous.remote()], "rendezvous")[0]
            self.vocab_size: int = self._call("start", address, port)[0]
        except BaseException:
            self.close()
            raise

    def train(self, step: int, samples: Sequence[Sample]) -> dict[str, float]:
        """Train on the samples of rollout `step` and return its metrics (`train/...`, `seconds/...`).

        Where no group has spread nothing is trained, and `train/optimizer_steps` stays as it was.
        Raises DataError for samples that cannot be trained, TrainerError where the loss stays non-finite.
        """
        config, started = self.config, time.perf_counter()
        batch = training_batch(samples, config, self.vocab_size)
        plan = plan_steps(
            batch,
            steps=config.num_steps_per_rollout,
            aggregation=config.loss_aggregation,
            max_tokens=config.max_tokens_per_gpu,
            ranks=self.world_size,
            seed=(config.seed, step),
        )
        refs = [worker.train.remote(part) for worker, part in zip(self._workers, plan, strict=True)]
        metrics = batch.metrics | self._gather(refs, "train")[0]
        self.optimizer_steps = int(metrics["train/optimizer_steps"])
        seconds = time.perf_counter() - started
        metrics["seconds/train"] = seconds
        metrics["train/tokens_per_second"] = batch.metrics["train/tokens"] / seconds
        return metrics

    def push_weights(self, engine_urls: Sequence[str], version: int) -> None:
        """Send the policy to the engines as weight version `version` (by `engine_update`: tensors, or a folder)."""
        shared = self.config.run_dir or tempfile.gettempdir()
        self._call("push_weights", list(engine_urls), version, shared)

    def save(self, path: str | Path, extra_state: dict[str, Any], *, spare: Collection[Path] = ()) -> None:
        """Write a whole checkpoint to the folder `path` (see `checkpoint_folder`) and prune older ones beside it.

        extra_state: JSON values that `load` gives back. spare: checkpoints that stay however old they are.
        Raises CheckpointError (disk full, say) with `path` and every other checkpoint as they were.
        """
        final = Path(path).resolve()
        partial = partial_folder(final)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            require_space(partial, self._call("checkpoint_bytes")[0])
            steps = self._call("save", str(partial))[0]
            write_json(partial / "state.json", extra_state)
            commit(partial, final, {"optimizer_steps": steps, "world_size": self.world_size})
        except (OSError, CheckpointError, TypeError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            reason = error if isinstance(error, CheckpointError) else describe(error)
            raise CheckpointError(f"checkpoint '{final}': {reason}; older checkpoints are intact") from error
        prune(final.parent, self.config.save_keep, spare=spare)

    def load(self, path: str | Path, *, weights_only: bool = False) -> dict[str, Any]:
        """Continue from a checkpoint folder on any number of processes; returns its `extra_state`.

        weights_only: take the model and start optimizer and counters afresh.
        Raises CheckpointError for a folder that is missing, half-written, damaged or of another model.
        """
        folder = Path(path).resolve()
        read_manifest(folder)
        state = read_state(folder)
        self.optimizer_steps = self._call("load", str(folder), weights_only)[0]
        return state

    def restart(self) -> None:
        """Go back to the weights of `hf_checkpoint` with a new optimizer, as at the start of the run."""
        self.optimizer_steps = self._call("restart")[0]

    def export_hf(self, path: str | Path) -> Path:
        """Write the policy as a Hugging Face folder and return it."""
        folder = Path(path).resolve()
        self._call("export_hf", str(folder))
        return folder

    def close(self) -> None:
        """End the training processes. Can be called again."""
        workers, self._workers = self._workers, []
        for worker in workers:
            ray.kill(worker, no_restart=True)

    def __enter__(self) -> TrainerGroup:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _call(self, method: str, *args: Any) -> list[Any]:
        if not self._workers:
            raise TrainerDied(f"{method}: the training processes have ended")
        return self._gather([getattr(worker, method).remote(*args) for worker in self._workers], method)

    def _gather(self, refs: list[Any], what: str) -> list[Any]:
        """All results in order; the first failure of any rank ends the wait."""
        deadline = time.monotonic() + self.config.train_timeout
        waiting = list(refs)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                self.close()
                raise TrainerDied(f"{what}: no answer within train_timeout ({self.config.train_timeout} s)")
            self._raise_failure(done[0], what, refs)
        return ray.get(refs, timeout=60.0)

    def _raise_failure(self, ref: Any, what: str, refs: list[Any]) -> None:
        rank = refs.index(ref)
        try:
            ray.get(ref, timeout=60.0)
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, SweRlError):
                raise cause from None
            said = f"training process {rank} failed: {type(cause).__name__}: {cause}"
            dead = self._dead_rank(refs)
            self.close()
            if dead is not None:
                raise TrainerDied(f"{what}: training process {dead} is gone; before that was known, {said}") from error
            raise TrainerError(f"{what}: {said}") from error
        except (RayActorError, GetTimeoutError, RayError) as error:
            self.close()
            raise TrainerDied(f"{what}: training process {rank} is gone ({type(error).__name__})") from error

    def _dead_rank(self, refs: list[Any]) -> int | None:
        """The process that is gone: the others' collectives may break before Ray has noticed it."""
        waiting, deadline = list(refs), time.monotonic() + DEATH_NOTICE
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                return None
            try:
                ray.get(done[0], timeout=60.0)
            except RayActorError:
                return refs.index(done[0])
            except RayError:  # another broken collective
                continue
        return None

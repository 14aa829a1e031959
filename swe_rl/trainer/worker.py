"""One training process: a rank of the process group with its share of the model. `TrainerGroup` calls all of them."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from swe_rl.config import Config
from swe_rl.trainer import checkpoint, distributed, push
from swe_rl.trainer.backends.base import TrainBackend
from swe_rl.trainer.checkpoint_folder import read_manifest, write_json
from swe_rl.trainer.errors import CheckpointError
from swe_rl.trainer.export import export_hf
from swe_rl.trainer.packing import TrainingSequence
from swe_rl.trainer.step import StepRunner


class TrainWorker:
    """Construct on every rank, let rank 0 `host_rendezvous`, then `start` all at once. Every other method is collective."""

    def __init__(self, config: Config, rank: int, world_size: int) -> None:
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self._store: dist.TCPStore | None = None

    def host_rendezvous(self) -> tuple[str, int]:
        """Rank 0: open the rendezvous store; the address and port at which the others find it."""
        address = _own_address() if self.config.ray_address else "127.0.0.1"
        self._store = distributed.host_store(address, self.world_size, self.config.process_group_timeout)
        return address, self._store.port

    def start(self, address: str, port: int) -> int:
        """Join the process group and load the model. Returns the size of the vocabulary."""
        config = self.config
        device = distributed.training_device(config.num_gpus_per_node > 0)
        if device.type == "cpu":
            processes = min(self.world_size, config.actor_num_gpus_per_node)
            torch.set_num_threads(config.trainer_threads or max(1, (os.cpu_count() or 1) // processes))
        if self._store is None:
            self._store = distributed.join_store(address, port, self.world_size, config.process_group_timeout)
        distributed.init_process_group(
            device, self._store, self.rank, self.world_size, timeout=config.process_group_timeout
        )
        self._device = device
        self._begin()
        return self.backend.vocab_size

    def restart(self) -> int:
        """Go back to the weights of `hf_checkpoint`, a new optimizer and step 0. Returns the optimizer steps: 0."""
        del self.backend, self.runner  # before the new ones are made: two policies at once may not fit
        gc.collect()
        self._begin()
        return self.runner.optimizer_steps

    def _begin(self) -> None:
        torch.manual_seed(self.config.seed + self.rank)
        self.backend: TrainBackend = _make_backend(self.config, self._device)
        self.runner = StepRunner(self.config, self.backend)

    def train(self, steps: Sequence[Sequence[Sequence[TrainingSequence]]]) -> dict[str, float]:
        """See `StepRunner.run`."""
        return self.runner.run(steps)

    def checkpoint_bytes(self) -> int:
        """How much a checkpoint of all ranks takes on the disk, without its small files."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.backend.state_tensors().values())

    def save(self, partial: str) -> int:
        """Write this rank's part of a checkpoint into the folder `partial`. Returns the number of optimizer steps."""
        folder = Path(partial)
        tensors = self.backend.state_tensors() | {self._rng_name: torch.get_rng_state()}
        try:
            checkpoint.save_tensors(tensors, folder / "dist")
            if self.rank == 0:
                write_json(folder / "config.json", _public(self.config))
        except checkpoint.FAILURES as error:
            free = shutil.disk_usage(folder.parent).free
            raise CheckpointError(
                f"'{partial}' was not written: {checkpoint.describe(error)} ({free / 1e6:.1f} MB free on its disk)"
            ) from error
        return self.runner.optimizer_steps

    def load(self, folder: str, weights_only: bool) -> int:
        """Fill model and optimizer from a checkpoint; with `weights_only` the model alone. Returns the optimizer steps."""
        steps = int(read_manifest(folder)["optimizer_steps"])
        tensors = self.backend.state_tensors()
        if weights_only:
            tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
            checkpoint.load_tensors(tensors, Path(folder) / "dist")
            return self.runner.optimizer_steps
        rng_state = torch.get_rng_state()
        loaded = checkpoint.load_tensors(
            tensors | {self._rng_name: rng_state}, Path(folder) / "dist", optional="random."
        )
        if self._rng_name in loaded:
            torch.set_rng_state(rng_state)
        self.runner.optimizer_steps, self.runner.nonfinite_in_a_row = steps, 0
        return steps

    @property
    def _rng_name(self) -> str:
        return f"random.rank{self.rank}"

    def export_hf(self, folder: str) -> None:
        """Rank 0 writes a Hugging Face folder; see `swe_rl.trainer.export`."""
        weights = self.backend.full_weights()
        if self.rank == 0:
            export_hf(self.backend, weights, self.config.hf_checkpoint, Path(folder))

    def push_weights(self, engine_urls: Sequence[str], version: int, shared_folder: str) -> None:
        """Rank 0 sends the weights to the engines: as tensors, or through a folder that the engines see too."""
        weights = self.backend.full_weights()  # all ranks take part; only then can rank 0 fail without a hang
        if self.rank != 0:
            return
        timeout = self.config.process_group_timeout
        if self.config.engine_update == "tensor":
            processes = self.config.rollout_num_gpus_per_engine
            push.push_tensors(weights, engine_urls, version, timeout, tensor_parallel=processes)
            return
        folder = Path(shared_folder) / f"weights_{version:06d}"
        if self.config.run_dir:  # a folder of this run alone
            push.remove_leftovers(folder.parent)
        export_hf(self.backend, weights, self.config.hf_checkpoint, folder)
        try:
            push.push_folder(folder, engine_urls, version, timeout)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _make_backend(config: Config, device: torch.device) -> TrainBackend:
    from swe_rl.trainer.backends.fsdp.backend import FsdpBackend

    return FsdpBackend(config, device)


def _public(config: Config) -> dict[str, Any]:
    """The settings as JSON values, secrets masked."""
    values = config.model_dump(mode="json")
    for name, info in type(config).model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and extra.get("secret") and values[name]:
            values[name] = "***"
    return values


def _own_address() -> str:
    """This node's address as Ray knows it, reachable from the other nodes."""
    import ray

    return str(ray.util.get_node_ip_address())

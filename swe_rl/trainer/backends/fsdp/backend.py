"""The FSDP2 backend: any transformers causal LM, data parallel with sharded state, on GPUs (NCCL) or CPUs (gloo)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from swe_rl.config import Config
from swe_rl.trainer.backends.base import LossFunction
from swe_rl.trainer.backends.fsdp.sharding import shard_policy
from swe_rl.trainer.optimizer import build_optimizer, optimizer_step
from swe_rl.trainer.packing import MicroBatch
from swe_rl.trainer.policy import PackedPolicy, load_policy

_ADAM_STATE = ("exp_avg", "exp_avg_sq", "step")


class FsdpBackend:
    """Implements `swe_rl.trainer.backends.base.TrainBackend`. torch.distributed must be initialised before."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.device = device
        self.world_size = dist.get_world_size()
        self.dtype = getattr(torch, config.dtype)
        self.chunk_size = config.log_prob_chunk_size
        self.clip_grad = config.clip_grad
        # At temperature 0 engines report the log-probs of temperature 1.
        self.temperature = config.rollout_temperature or 1.0
        self.mesh = init_device_mesh(device.type, (self.world_size,), mesh_dim_names=("dp",))
        self.policy = self._load(config.hf_checkpoint, checkpointing=config.gradient_checkpointing)
        self.reference: PackedPolicy | None = None
        if config.kl_loss_coef > 0:
            self.reference = self._load(config.ref_load or config.hf_checkpoint).requires_grad_(False)
        self.optimizer = build_optimizer(self.policy.parameters(), config)
        self.vocab_size: int = self.policy.model.config.get_text_config().vocab_size

    def _load(self, folder: str, *, checkpointing: bool = False) -> PackedPolicy:
        policy = load_policy(folder, device=self.device, compute_dtype=self.dtype, gradient_checkpointing=checkpointing)
        return shard_policy(policy, self.mesh, self.dtype)

    def _run(self, policy: PackedPolicy, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return policy(batch.to(self.device), temperature=self.temperature, chunk_size=self.chunk_size)

    @torch.no_grad()
    def log_probs(self, batches: Sequence[MicroBatch], *, reference: bool) -> list[torch.Tensor]:
        policy = self.reference if reference else self.policy
        if policy is None:
            raise RuntimeError("no reference was loaded: kl_loss_coef is 0")
        return [self._run(policy, batch)[0].cpu() for batch in batches]

    def forward_backward(self, batches: Sequence[MicroBatch], loss_function: LossFunction) -> dict[str, float]:
        totals: dict[str, torch.Tensor] = {}
        for batch in batches:
            log_probs, entropy = self._run(self.policy, batch)
            fields = {name: values.to(self.device) for name, values in batch.fields.items()}
            loss, sums = loss_function(log_probs, entropy, fields)
            (loss * self.world_size).backward()  # FSDP averages gradients over ranks; the loss is a sum over them
            totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
        stacked = torch.stack([totals[name] for name in sorted(totals)])
        dist.all_reduce(stacked)
        return dict(zip(sorted(totals), stacked.tolist(), strict=True))

    def optimizer_step(self, lr: float, loss: float) -> tuple[float, bool]:
        return optimizer_step(self.optimizer, lr, self.clip_grad, loss)

    def reduce_max(self, value: float) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.policy.model.named_parameters():
            tensors[f"model.{name}"] = parameter.detach()
            for key, value in self._adam_state(parameter).items():
                tensors[f"optimizer.{key}.{name}"] = value
        return tensors

    def _adam_state(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        """AdamW's state of a parameter, made (as its first step would make it) where no step has been taken yet."""
        state = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=self.device)
            state["exp_avg"] = torch.zeros_like(parameter.detach())
            state["exp_avg_sq"] = torch.zeros_like(parameter.detach())
        return {key: state[key] for key in _ADAM_STATE}

    @torch.no_grad()
    def full_weights(self) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = {}
        for name, parameter in self.policy.model.named_parameters():
            full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
            if dist.get_rank() == 0:
                # With one rank full_tensor() can be the parameter itself: without a copy, training would change it.
                weights[name] = full.to("cpu", self.dtype, copy=True)
        return weights

    def save_hf(self, folder: Path, weights: dict[str, torch.Tensor]) -> None:
        self.policy.model.save_pretrained(folder, state_dict=dict(weights), is_main_process=True)
        # save_pretrained names the dtype of the parameters, which are fp32 whatever the weights are
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")

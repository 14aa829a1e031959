"""FSDP2 on a packed policy: parameters, gradients and optimizer state are split over the data-parallel ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from swe_rl.trainer.policy import PackedPolicy


def shard_policy(policy: PackedPolicy, mesh: DeviceMesh, dtype: torch.dtype) -> PackedPolicy:
    """Shard in place: one unit per decoder layer, embeddings and head (tied or not) in the root unit.

    Parameters stay fp32; with bfloat16 the layers compute in it and gradients are reduced in fp32: an update of a
    bfloat16 weight would vanish below a learning rate of about 1e-3 of the weight.
    """
    precision = MixedPrecisionPolicy()
    if dtype != torch.float32:
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    layers = policy.decoder.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    return policy

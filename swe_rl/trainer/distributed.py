"""Process group of the trainer: NCCL on GPUs, gloo on CPUs, a bound on every operation, no race for a port."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist


def training_device(use_gpu: bool) -> torch.device:
    """The device this process trains on. Ray shows each training process its own GPU only, as number 0."""
    if not use_gpu:
        return torch.device("cpu")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def host_store(address: str, world_size: int, timeout: float) -> dist.TCPStore:
    """The rendezvous store, listening on a port that the system chose (`store.port`). Kept alive by rank 0."""
    return dist.TCPStore(
        address, 0, world_size, True, timeout=datetime.timedelta(seconds=timeout), wait_for_workers=False
    )


def join_store(address: str, port: int, world_size: int, timeout: float) -> dist.TCPStore:
    """Another rank's connection to rank 0's store."""
    return dist.TCPStore(address, port, world_size, False, timeout=datetime.timedelta(seconds=timeout))


def init_process_group(device: torch.device, store: dist.Store, rank: int, world_size: int, timeout: float) -> None:
    """Join the group. An operation that a dead peer never finishes raises after `timeout` seconds."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )

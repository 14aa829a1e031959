"""Settings: how nodes and GPUs are divided between training and rollouts."""

from __future__ import annotations

from typing import ClassVar

from swe_rl.config.setting import Area, setting


class ClusterSettings(Area):
    area: ClassVar[str] = "cluster"

    num_nodes: int = setting(
        1, "machines that train and serve; more than 1 does not work yet", env=("NUM_NODES",), ge=1
    )
    num_gpus_per_node: int = setting(0, "GPUs of a node; 0 = train and serve on CPUs", env=("NUM_GPUS_PER_NODE",), ge=0)
    actor_num_nodes: int = setting(1, "nodes that train", ge=1)
    actor_num_gpus_per_node: int = setting(1, "training processes (GPUs) per node", env=("ACTOR_GPUS_PER_NODE",), ge=1)
    rollout_num_gpus: int = setting(
        1, "GPUs that serve the policy, over all nodes (CPU engines: processes)", env=("ROLLOUT_GPUS_PER_NODE",), ge=1
    )
    rollout_num_gpus_per_engine: int = setting(
        1, "GPUs per engine (its tensor parallel size)", env=("ROLLOUT_NUM_GPUS_PER_ENGINE",), ge=1
    )
    ray_address: str = setting(
        "", "address of a running Ray cluster; empty = start a private local one", env=("RAY_ADDRESS",)
    )
    ray_object_store_mb: int = setting(200, "object store of a private local Ray, in MB", ge=80)
    trainer_threads: int = setting(0, "torch threads per training process; 0 = cores divided by processes", ge=0)
    process_group_timeout: float = setting(600.0, "seconds before a torch.distributed operation gives up", gt=0)

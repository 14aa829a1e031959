"""Training processes without Ray, for tests: `python -m tests.trainer.rank_program MODEL FOLDER`.

Imports once, then forks the ranks of each run: three steps on 1, 2 and 3 processes, and one step more from each other's
checkpoints. What rank 0 saw lies in FOLDER/<run>.pt.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import torch

from swe_rl.trainer.checkpoint_folder import commit
from swe_rl.trainer.worker import TrainWorker
from tests.trainer.conftest import make_config
from tests.trainer.test_worker_resume import plan

STEPS = 2
RUNS = {  # name: (processes, checkpoint to continue from)
    "one": (1, ""),
    "two": (2, ""),
    "one_from_two": (1, "two"),
    "two_from_one": (2, "one"),
    "two_from_two": (2, "two"),
}


def run_rank(name: str, rank: int, model: Path, folder: Path, addresses: multiprocessing.Queue) -> None:
    world, source = RUNS[name]
    config = make_config(model, kl_loss_coef=0.1, num_steps_per_rollout=2, loss_aggregation="trajectory_mean")
    worker = TrainWorker(config, rank, world)
    if rank == 0:
        address = worker.host_rendezvous()
        for _ in range(world - 1):
            addresses.put(address)
    else:
        address = addresses.get(timeout=120)
    worker.start(*address)
    seen = {}
    if source:
        worker.load(str(folder / source), weights_only=False)
    else:
        seen["metrics"] = [worker.train(plan(config, step, world)[rank]) for step in range(STEPS)]
        seen["weights"] = worker.backend.full_weights()
        steps = worker.save(str(folder / f"partial_{name}"))
        torch.distributed.barrier()
        if rank == 0:
            commit(folder / f"partial_{name}", folder / name, {"optimizer_steps": steps})
        torch.distributed.barrier()
    seen["next_metrics"] = worker.train(plan(config, STEPS, world)[rank])
    seen["next_weights"] = worker.backend.full_weights()
    if world > 1:  # one sequence only: the other ranks run a placeholder
        sequence = plan(config, 9, world)[0][0][0][:1]
        lonely = [[sequence if rank == 0 else []]]
        seen["lonely"] = worker.train(lonely)
    if rank == 0:
        torch.save(seen, folder / f"{name}.pt")
    worker.stop()


def main() -> int:
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    for name, (world, _) in RUNS.items():
        addresses = fork.Queue()
        ranks = [fork.Process(target=run_rank, args=(name, r, model, folder, addresses)) for r in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(timeout=300)
        if any(process.exitcode != 0 for process in ranks):
            for process in ranks:
                process.kill()
            print(f"{name}: {[p.exitcode for p in ranks]}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

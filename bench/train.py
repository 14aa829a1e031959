"""One training step of ours against a plain padded transformers loop, on the same ragged agent trajectories.

    python bench/train.py [--json PATH] [--sequences 32] [--repeats 3]

Goals: at least 1.5 times the tokens per second, and no more peak memory. Both sides run the same tiny Qwen3 in fp32 on
one thread, each in a process of its own (so that peak resident memory is its own), and compute the same thing: the run
fails where their losses or gradient norms differ. Tokens are the trajectories' own; padding counts for nothing.

The alternative is what a first implementation does: eight sequences at a time padded to the longest, SDPA with a mask,
fp32 log-softmax over the whole vocabulary, the mean over the tokens of the batch, clip, AdamW.
Seconds are CPU seconds of the process, which a busy machine disturbs less than wall time; both are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from json_file import json_file

GOAL_SPEED, GOAL_MEMORY = 1.5, 1.0
VOCAB, PADDED_ROWS, PACKED_TOKENS = 1024, 8, 4096


def make_samples(count: int, seed: int = 0) -> list[Any]:
    """Attempts of 150 to 1,500 tokens (lognormal): a prompt, then sampled turns (40%) between observations (60%)."""
    from swe_rl.types import Sample

    rng = np.random.default_rng(seed)
    samples = []
    for index in range(count):
        length = int(np.clip(rng.lognormal(6.2, 0.6), 150, 1500))
        response = length - 100
        mask = np.concatenate([np.r_[np.ones(24, int), np.zeros(36, int)] for _ in range(response // 60 + 1)])[
            :response
        ]
        samples.append(
            Sample(
                group_index=index // 8,
                index=index,
                rollout_id=index,
                tokens=rng.integers(0, VOCAB, length).tolist(),
                response_length=response,
                loss_mask=mask.tolist(),
                rollout_log_probs=(-7.0 * mask).tolist(),
                reward=float(index % 3 == 0),
                status=Sample.Status.COMPLETED,
            )
        )
    return samples


def make_model(folder: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def make_config(model: str) -> Any:
    from swe_rl.config import Config

    return Config(
        hf_checkpoint=model, lr=1e-4, use_tis=False, max_tokens_per_gpu=PACKED_TOKENS, trainer_threads=1, num_rollout=10
    )


def packed_step(model: str, samples: list[Any]) -> Callable[[], tuple[float, float]]:
    """Our step, through the same worker as in a run (gloo, world size 1)."""
    from swe_rl.trainer.batch import plan_steps, training_batch
    from swe_rl.trainer.worker import TrainWorker

    config = make_config(model)
    worker = TrainWorker(config, 0, 1)
    worker.start(*worker.host_rendezvous())

    def step() -> tuple[float, float]:
        batch = training_batch(samples, config, VOCAB)
        plan = plan_steps(batch, steps=1, aggregation="token_mean", max_tokens=PACKED_TOKENS, ranks=1, seed=(0,))
        metrics = worker.train(plan[0])
        return metrics["train/loss"], metrics["train/grad_norm"]

    return step


def padded_step(model: str, samples: list[Any]) -> Callable[[], tuple[float, float]]:
    """The plain loop; advantages are taken from our code, everything else is written out."""
    import torch
    from transformers import AutoModelForCausalLM

    from swe_rl.advantages import group_advantages

    policy = AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa")
    decay, plain = ([p for p in policy.parameters() if (p.ndim >= 2) == big] for big in (True, False))
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.98), fused=True)

    def step() -> tuple[float, float]:
        advantages = group_advantages(samples, normalise_std=True).advantages
        total = sum(sum(s.loss_mask) for s in samples)
        loss_sum = 0.0
        for start in range(0, len(samples), PADDED_ROWS):
            rows = samples[start : start + PADDED_ROWS]
            longest = max(len(s.tokens) for s in rows)
            ids, attention, trained = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(3))
            advantage = torch.zeros(len(rows), 1)
            for i, s in enumerate(rows):
                ids[i, : len(s.tokens)] = torch.tensor(s.tokens)
                attention[i, : len(s.tokens)] = 1
                trained[i, len(s.tokens) - s.response_length : len(s.tokens)] = torch.tensor(s.loss_mask)
                advantage[i] = advantages[start + i]
            logits = policy(input_ids=ids, attention_mask=attention, use_cache=False).logits
            log_p = torch.log_softmax(logits[:, :-1].float(), dim=-1)
            log_probs = log_p.gather(2, ids[:, 1:, None]).squeeze(2)
            ratio = torch.exp(log_probs - log_probs.detach())
            token_loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            loss = (token_loss * trained[:, 1:]).sum() / total
            loss.backward()
            loss_sum += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss_sum, float(norm)

    return step


def child(side: str, model: str, count: int, repeats: int) -> None:
    """Run one side and print its figures. The first step is the warm-up and the one whose numbers are compared."""
    import torch

    torch.set_num_threads(1)
    samples = make_samples(count)
    step = (packed_step if side == "packed" else padded_step)(model, samples)
    loss, norm = step()
    cpu, wall = [], []
    for _ in range(repeats):
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        step()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    print(
        json.dumps(
            {
                "loss": loss,
                "grad_norm": norm,
                "cpu_seconds": statistics.median(cpu),
                "wall_seconds": statistics.median(wall),
                "tokens": sum(len(s.tokens) for s in samples),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


def measure(side: str, model: str, count: int, repeats: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", side, "--model", model]
    command += ["--sequences", str(count), "--repeats", str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=1800, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    result["tokens_per_second"] = result["tokens"] / result["cpu_seconds"]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=json_file, help="write the figures to this file")
    parser.add_argument("--sequences", type=int, default=32, help="trajectories of the step, a multiple of 8")
    parser.add_argument("--repeats", type=int, default=3, help="measured steps per side after one warm-up")
    parser.add_argument("--child", choices=["packed", "padded"], help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.model, args.sequences, args.repeats)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        sides = {side: measure(side, folder, args.sequences, args.repeats) for side in ("padded", "packed")}
    ours, plain = sides["packed"], sides["padded"]
    speed = ours["tokens_per_second"] / plain["tokens_per_second"]
    memory = ours["peak_mb"] / plain["peak_mb"]
    same = all(abs(ours[n] - plain[n]) <= 1e-3 * abs(plain[n]) + 1e-6 for n in ("loss", "grad_norm"))
    print(f"{'':8}{'tokens/s':>10}{'CPU s':>9}{'wall s':>9}{'peak MB':>9}{'loss':>11}{'grad norm':>11}")
    for name, r in sides.items():
        print(
            f"{name:8}{r['tokens_per_second']:10.0f}{r['cpu_seconds']:9.2f}{r['wall_seconds']:9.2f}{r['peak_mb']:9.0f}"
            f"{r['loss']:11.6f}{r['grad_norm']:11.6f}"
        )
    passed = speed >= GOAL_SPEED and memory <= GOAL_MEMORY and same
    print(
        f"packed / padded: {speed:.2f} times the tokens per second (goal {GOAL_SPEED}), {memory:.2f} times the memory"
    )
    print(f"same loss and gradient norm: {same}    goal {'met' if passed else 'MISSED'}")
    if args.json:
        args.json.write_text(
            json.dumps(
                {**sides, "speed_ratio": speed, "memory_ratio": memory, "same": same, "passed": passed}, indent=1
            )
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

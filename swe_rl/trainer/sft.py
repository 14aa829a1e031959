"""`swe-rl sft`: warm-start a policy on demonstration trajectories in token form.

One process, plain causal-LM training: answer tokens count fully, everything else by `--context-weight` (a little language
modelling of the code that the policy reads helps it to see what is wrong with it). Batches are rows of similar length, so
right padding is small and attention needs no mask. Interrupted runs continue from the last saved state.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from swe_rl.errors import DataError, UsageError
from swe_rl.trainer.sft_copy import copy_batch
from swe_rl.trainer.sft_data import Batch, Demonstrations, load_demonstrations

COPY_LENGTH = 96  # tokens of one copy drill
RESERVED = 3  # special tokens stay out of copy drills


def schedule(step: int, total: int, warmup: int, peak: float, floor: float) -> float:
    """Linear warm-up, then a cosine from `peak` to `floor` at `total` steps."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * share))


def weighted_loss(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(weighted mean loss, mean loss of the answer tokens): logits of only the positions that carry weight."""
    hidden = model.get_decoder()(input_ids=batch.tokens).last_hidden_state[:, :-1]
    targets, weights = batch.tokens[:, 1:], batch.weights[:, 1:]
    kept = weights > 0
    losses = torch.nn.functional.cross_entropy(
        model.get_output_embeddings()(hidden[kept]).float(), targets[kept], reduction="none"
    )
    weights = weights[kept]
    answers = weights == 1.0
    return (losses * weights).sum() / weights.sum(), losses[answers].mean().detach()


class SftRun:
    """Model, optimizer and the place in the data; `step` counts optimizer steps that are done."""

    def __init__(self, args: argparse.Namespace, data: Demonstrations) -> None:
        torch.manual_seed(args.seed)
        self.args, self.data = args, data
        self.model = AutoModelForCausalLM.from_pretrained(args.hf_checkpoint, dtype=torch.float32)
        self.model.train()
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        others = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": args.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
        self.batches = [b for epoch in range(args.epochs) for b in data.plan(args.batch_tokens, args.seed + epoch)]
        self.total = args.copy_steps + len(self.batches)
        if args.max_steps:
            self.total = min(self.total, args.max_steps)
        self.step, self.tokens, self.seconds = 0, 0, 0.0

    @property
    def state_file(self) -> Path:
        return Path(self.args.out) / "state.pt"

    def save(self) -> None:
        """Write the state beside the old one and rename: an interrupted save leaves the old one whole."""
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "batches": self.total,
            "seed": self.args.seed,
        }
        self.state_file.parent.mkdir(parents=True, exist_ok=True)
        beside = self.state_file.with_suffix(".tmp")
        torch.save(state, beside)
        beside.replace(self.state_file)

    def resume(self) -> bool:
        """Continue from the saved state, if there is one. Raises DataError where it belongs to another run."""
        if not self.state_file.exists():
            return False
        state = torch.load(self.state_file, weights_only=True)
        if (state["batches"], state["seed"]) != (self.total, self.args.seed):
            raise DataError(
                f"{self.state_file}: made with other data, batches or seed; give another --out or remove it"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        return True

    def steps(self) -> Iterator[dict[str, float]]:
        """Train to the end, yielding one record a step; the state is saved every `save_interval` steps."""
        args, total = self.args, self.total
        while self.step < total:
            started = time.monotonic()
            rate = schedule(self.step, total, args.warmup, args.lr, args.min_lr)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            batch = self._batch()
            loss, answer_loss = weighted_loss(self.model, batch)
            loss.backward()
            if args.copy_rows and self.step >= args.copy_steps:
                weighted_loss(self.model, self._drills(args.copy_rows))[0].backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), args.clip_grad)
            if not torch.isfinite(norm):
                raise DataError(f"sft: the gradient is not finite at step {self.step}; lower --lr (now {args.lr})")
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
            self.tokens += batch.real_tokens
            self.seconds += time.monotonic() - started
            if self.step % args.save_interval == 0:
                self.save()
            yield {"step": self.step, "loss": float(loss.detach()), "answer_loss": float(answer_loss), "lr": rate}

    def _batch(self) -> Batch:
        """Copy drills alone first, then the demonstrations."""
        place = self.step - self.args.copy_steps
        if place < 0:
            return self._drills(self.args.batch_tokens // COPY_LENGTH)
        return self.data.batch(self.batches[place], self.args.context_weight)

    def _drills(self, rows: int) -> Batch:
        rng = random.Random(f"{self.args.seed}:{self.step}")
        return copy_batch(rows, COPY_LENGTH, self.model.config.vocab_size, RESERVED, rng)

    def export(self) -> None:
        """Write the Hugging Face folder: weights (safetensors), config, tokenizer and how it was made."""
        out = Path(self.args.out)
        dtype = getattr(torch, self.args.export_dtype)
        self.model.to(dtype).save_pretrained(out)
        self.model.float()
        AutoTokenizer.from_pretrained(self.args.hf_checkpoint).save_pretrained(out)
        record = {"steps": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1), **vars(self.args)}
        (out / "sft.json").write_text(json.dumps(record, indent=1, default=str) + "\n")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swe-rl sft",
        description="Warm-start a policy on demonstrations (JSONL of tokens, prompt_length, loss_mask), as made by "
        "`swe-rl data demos` with the same tokenizer. Run it again to continue an interrupted run.",
    )
    add = parser.add_argument
    add(
        "--hf-checkpoint",
        required=True,
        help="Hugging Face folder to start from (see swe-rl's policy.make for a new one)",
    )
    add("--data", required=True, action="append", help="demonstrations; may be given several times")
    add("--out", required=True, help="folder of the trained policy; also holds the state of an unfinished run")
    add("--epochs", type=int, default=1, help="passes over the data (default 1)")
    add("--max-steps", type=int, default=0, help="end after so many steps; 0 = all data (default 0)")
    add("--lr", type=float, default=1e-3, help="peak learning rate (default 1e-3)")
    add("--min-lr", type=float, default=1e-4, help="learning rate at the end (default 1e-4)")
    add("--warmup", type=int, default=50, help="steps of linear warm-up (default 50)")
    add("--batch-tokens", type=int, default=8192, help="tokens of one optimizer step (default 8192)")
    add(
        "--context-weight", type=float, default=0.1, help="weight of tokens that are not answers, below 1 (default 0.1)"
    )
    add("--copy-steps", type=int, default=0, help="steps of copy drills alone before the demonstrations (default 0)")
    add("--copy-rows", type=int, default=0, help="copy drills of 96 random tokens added to each step (default 0)")
    add("--weight-decay", type=float, default=0.05, help="AdamW weight decay of matrices (default 0.05)")
    add("--clip-grad", type=float, default=1.0, help="gradient norm bound (default 1)")
    add("--seed", type=int, default=1, help="order of the data (default 1)")
    add("--save-interval", type=int, default=100, help="steps between saved states (default 100)")
    add("--max-tokens", type=int, default=1024, help="longer demonstrations are left out (default 1024)")
    add("--export-dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the exported weights")
    add("--threads", type=int, default=1, help="torch threads (default 1)")
    add("--log", default="", help="also write one JSON line a step to this file")
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    if not 0 <= args.context_weight < 1:
        raise UsageError(f"--context-weight {args.context_weight}: allowed is 0 <= weight < 1")
    if not (Path(args.hf_checkpoint) / "config.json").is_file():
        raise UsageError(f"--hf-checkpoint {args.hf_checkpoint}: no config.json there; give a Hugging Face folder")
    torch.set_num_threads(args.threads)
    data = load_demonstrations(args.data, max_tokens=args.max_tokens)
    run = SftRun(args, data)
    if run.resume():
        print(f"continuing at step {run.step} of {run.total}")
    print(f"{len(data)} demonstrations ({data.dropped} too long), {data.total_tokens} tokens, {run.total} steps")
    columns = (
        TextColumn("sft"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} answer loss {task.fields[loss]}"),
    )
    average = float("nan")
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("sft", total=run.total, completed=run.step, loss="-")
        for record in run.steps():
            new = record["answer_loss"]
            average = new if math.isnan(average) else 0.95 * average + 0.05 * new
            progress.update(bar, completed=run.step, loss=f"{average:.4f}")
            if args.log:
                with Path(args.log).open("a") as stream:
                    stream.write(json.dumps(record) + "\n")
    run.save()
    run.export()
    rate = run.tokens / max(run.seconds, 1e-9)
    print(f"{run.tokens} tokens in {run.seconds:.0f} s ({rate:.0f}/s), answer loss {average:.4f}; policy in {args.out}")
    return 0

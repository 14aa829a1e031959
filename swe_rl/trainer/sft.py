"""`swe-rl sft`: warm-start a policy on demonstration trajectories in token form.

The trainer's own worker, packing and log-probs with another loss: answer tokens count fully, everything else by
`--context-weight` (a little language modelling of the code that the policy reads helps it to see what is wrong with it).
Interrupted runs continue from the last saved state.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from swe_rl.config import Config
from swe_rl.errors import DataError
from swe_rl.trainer.checkpoint_folder import (
    commit,
    finish_commits,
    partial_folder,
    read_manifest,
    read_state,
    write_json,
)
from swe_rl.trainer.export import export_hf
from swe_rl.trainer.packing import TrainingSequence, make_micro_batch, plan_micro_batches
from swe_rl.trainer.schedule import lr_at
from swe_rl.trainer.sft_copy import copy_drills
from swe_rl.trainer.sft_data import Demonstrations, load_demonstrations, normalised
from swe_rl.trainer.sft_settings import COPY_LENGTH, check_arguments, require_same, vocabulary_of, what_decides
from swe_rl.trainer.worker import TrainWorker

RESERVED = 3  # special tokens stay out of copy drills


def cross_entropy(
    log_probs: torch.Tensor, entropy: torch.Tensor, fields: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Weighted sum of -log p (the weights of a step add up to 1 per kind of row), and the sums for the mean over answers."""
    loss = -(fields["weight"] * log_probs).sum()
    answers = fields["answer"]
    sums = {"loss": loss, "answer_loss": -(answers * log_probs).sum(), "answers": answers.sum()}
    return loss, {name: value.detach().double() for name, value in sums.items()}


class SftRun:
    """The training process and the place in the data; `step` counts optimizer steps that are done. `close` ends it."""

    def __init__(self, args: argparse.Namespace, data: Demonstrations) -> None:
        self.args, self.data = args, data
        self.batches = [b for epoch in range(args.epochs) for b in data.plan(args.batch_tokens, args.seed + epoch)]
        self.total = args.copy_steps + len(self.batches)
        if args.max_steps:
            self.total = min(self.total, args.max_steps)
        self.config = Config(
            hf_checkpoint=args.hf_checkpoint,
            lr=args.lr,
            min_lr=args.min_lr,
            lr_warmup_iters=args.warmup,
            lr_decay_style="cosine",
            lr_decay_iters=self.total,
            weight_decay=args.weight_decay,
            clip_grad=args.clip_grad,
            max_tokens_per_gpu=args.row_tokens,
            gradient_checkpointing=args.gradient_checkpointing,
            dtype=args.dtype,
            trainer_threads=args.threads,
            seed=args.seed,
        )
        self.worker = TrainWorker(self.config, 0, 1)
        self.vocabulary = self.worker.start(*self.worker.host_rendezvous())
        self.step, self.tokens, self.seconds = 0, 0, 0.0

    def close(self) -> None:
        self.worker.stop()

    @property
    def state_folder(self) -> Path:
        return Path(self.args.out) / "state"

    def save(self) -> None:
        """Write the state beside the old one and rename: an interrupted save leaves the old one whole.

        Raises CheckpointError where it cannot be written.
        """
        partial = partial_folder(self.state_folder)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self.worker.save(str(partial))
            place = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}
            write_json(partial / "state.json", {**place, "made_with": what_decides(self.args, self.data.sha256)})
            commit(partial, self.state_folder, {"optimizer_steps": self.step, "world_size": 1})
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def resume(self) -> bool:
        """Continue from the saved state, if there is one. Raises DataError where it was made with other settings."""
        finish_commits(self.state_folder.parent)
        if not self.state_folder.is_dir():
            return False
        read_manifest(self.state_folder)
        state = read_state(self.state_folder)
        require_same(state.get("made_with"), what_decides(self.args, self.data.sha256), self.state_folder)
        self.worker.load(str(self.state_folder), weights_only=False)
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        return True

    def steps(self) -> Iterator[dict[str, float]]:
        """Train to the end, yielding one record a step; the state is saved every `save_interval` steps."""
        args, backend = self.args, self.worker.backend
        while self.step < self.total:
            started = time.monotonic()
            rate = lr_at(self.step, self.config, self.total)
            sequences = self._sequences()
            lengths = [len(sequence.tokens) for sequence in sequences]
            rows = plan_micro_batches(lengths, args.row_tokens)[0]
            packed = [make_micro_batch([sequences[i] for i in row]) for row in rows]
            sums = backend.forward_backward(packed, cross_entropy)
            _, stepped = backend.optimizer_step(rate, sums["loss"])
            if not stepped:
                raise DataError(f"sft: loss or gradient is not finite at step {self.step}; lower --lr (now {args.lr})")
            self.step += 1
            self.tokens += sum(lengths)
            self.seconds += time.monotonic() - started
            if self.step % args.save_interval == 0:
                self.save()
            answer_loss = sums["answer_loss"] / sums["answers"] if sums["answers"] else math.nan
            yield {"step": self.step, "loss": sums["loss"], "answer_loss": answer_loss, "lr": rate}

    def _sequences(self) -> list[TrainingSequence]:
        """Copy drills alone first, then the demonstrations (and some drills beside them)."""
        args, place = self.args, self.step - self.args.copy_steps
        if place < 0:
            return normalised(self._drills(args.batch_tokens // COPY_LENGTH))
        rows = normalised(self.data.sequences(self.batches[place], args.context_weight))
        if args.copy_rows:
            for drill in normalised(self._drills(args.copy_rows)):
                drill.fields["answer"][:] = 0.0  # their loss is not that of answers
                rows.append(drill)
        return rows

    def _drills(self, rows: int) -> list[TrainingSequence]:
        rng = random.Random(f"{self.args.seed}:{self.step}")
        return copy_drills(rows, COPY_LENGTH, self.vocabulary, RESERVED, rng)

    def export(self) -> None:
        """Write the Hugging Face folder: weights (safetensors), config, tokenizer and how it was made."""
        out, beside = Path(self.args.out), Path(self.args.out) / ".export"
        dtype = getattr(torch, self.args.export_dtype)
        weights = {name: tensor.to(dtype) for name, tensor in self.worker.backend.full_weights().items()}
        export_hf(self.worker.backend, weights, self.args.hf_checkpoint, beside)
        for file in beside.iterdir():
            file.replace(out / file.name)
        beside.rmdir()
        record = {"steps": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1), **vars(self.args)}
        write_json(out / "sft.json", record)


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
    add("--row-tokens", type=int, default=4096, help="tokens packed into one forward pass (default 4096)")
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
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="what layers compute in (default float32)")
    add("--gradient-checkpointing", action="store_true", help="less memory, a third more time")
    add("--export-dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the exported weights")
    add("--threads", type=int, default=1, help="torch threads (default 1)")
    add("--log", default="", help="also write one JSON line a step to this file")
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    check_arguments(args)
    vocabulary = vocabulary_of(args.hf_checkpoint)
    data = load_demonstrations(args.data, max_tokens=args.max_tokens, vocabulary=vocabulary)
    run = SftRun(args, data)
    try:
        return _train(run)
    finally:
        run.close()


def _train(run: SftRun) -> int:
    args, data = run.args, run.data
    if run.resume():
        print(f"continuing at step {run.step} of {run.total}")
    print(f"{len(data)} demonstrations ({data.dropped} too long), {data.total_tokens} tokens, {run.total} steps")
    columns = (
        TextColumn("sft"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} answer loss {task.fields[loss]}"),
    )
    recent: deque[float] = deque(maxlen=20)
    average = math.nan
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("sft", total=run.total, completed=run.step, loss="-")
        for record in run.steps():
            new = record["answer_loss"]
            if not math.isnan(new):
                recent.append(new)
            average = sum(recent) / len(recent) if recent else math.nan
            progress.update(bar, completed=run.step, loss=f"{average:.4f}")
            if args.log:
                with Path(args.log).open("a") as stream:
                    stream.write(json.dumps(record) + "\n")
    run.save()
    run.export()
    speed = f"{run.tokens / max(run.seconds, 1e-9):.0f}/s"
    loss = f"answer loss {average:.4f} over the last {len(recent)} steps"
    print(f"{run.tokens} tokens in {run.seconds:.0f} s ({speed}), {loss}; policy in {args.out}")
    return 0

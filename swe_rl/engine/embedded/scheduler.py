"""Continuous batching: one thread that admits, computes, samples and finishes, step by step.

The event loop never waits for the model and the model never waits for HTTP. Everything that changes the engine (new
requests, aborts, pauses, weight updates) is a command that runs between two steps on this thread, so nothing is locked.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from swe_rl.engine.embedded.admission import next_admissible
from swe_rl.engine.embedded.batch import RunningBatch
from swe_rl.engine.embedded.prefix_cache import PrefixCache
from swe_rl.engine.embedded.runner import ModelRunner
from swe_rl.engine.embedded.sampler import sample
from swe_rl.engine.embedded.sequence import Sequence
from swe_rl.engine.embedded.stopping import StopRules
from swe_rl.engine.wire import NamedTensors
from swe_rl.errors import EngineError

log = logging.getLogger(__name__)
T = TypeVar("T")


class Scheduler(threading.Thread):
    """Owns the model, the KV rows and all sequences.

    max_batch: sequences computed together. cache_tokens: the most cells of the KV tensor (running sequences x the most
    tokens that the longest can reach), and as many tokens again that finished ones may leave in the prefix cache.
    prefill_budget: prompt tokens computed per step.
    """

    def __init__(
        self, runner: ModelRunner, stops: StopRules, *, max_batch: int, cache_tokens: int, prefill_budget: int = 512
    ) -> None:
        super().__init__(name="engine-scheduler", daemon=True)
        self.runner = runner
        self.stops = stops
        self.max_batch = max_batch
        self.cache_tokens = cache_tokens
        self.prefill_budget = prefill_budget
        self.rows = runner.new_rows(cache_tokens)
        self.batch = RunningBatch(self.rows)
        self.cache = PrefixCache(cache_tokens)
        self.waiting: deque[Sequence] = deque()
        self.version = "default"
        self.kv_epoch = 0  # counts weight changes: KV of another epoch is never shared or kept
        self.paused = False
        self.updating = False  # between begin_weight_update and end_weight_update
        self.mixed = False  # the weights are those of an update that is not complete
        self.poisoned = False  # a NaN was computed: rows may hold it
        self.failure: BaseException | None = None
        self.steps = 0
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False

    # ---- called from other threads -------------------------------------------------------------------------------

    def call(self, command: Callable[[], T]) -> Future[T]:
        """Run `command` on the scheduler's thread between two steps; its result or exception arrives in the future."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(command())
            except Exception as error:  # handed to whoever asked
                future.set_exception(error)

        with self._wake:
            if self._stopping:
                future.set_exception(EngineError("the engine is shutting down"))
                return future
            self._commands.append(run)
            self._wake.notify()
        return future

    def stop(self, timeout: float = 10.0) -> None:
        """End the thread after the current step; everything unfinished is aborted."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout)

    # ---- commands: they run on the scheduler's thread ------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        if self.failure is not None:
            self._finish(sequence, _abort(f"the engine failed: {self.failure}", status=500))
        else:
            self.waiting.append(sequence)

    def abort(self, matches: Callable[[Sequence], bool]) -> None:
        """End all sequences that match, with what they have sampled so far."""
        for sequence in [s for s in (*self.batch.running, *self.waiting) if matches(s)]:
            self._finish(sequence, _abort("Abort requested by a client"))

    def pause(self, mode: str) -> None:
        """Stop computing. Sequences end (`abort`), or wait and later recompute (`retract`) or keep (`in_place`) their KV."""
        self.paused = True
        if mode == "abort":
            self.abort(lambda _sequence: True)
        elif mode == "retract":
            self._retract_all()

    def resume(self) -> None:
        self.paused = False

    def end_update(self) -> None:
        """Serve again. Raises EngineError, and serves nothing any more, where only a part of the update has come."""
        self.updating = False
        if self.mixed:
            self.fail("a weight update ended before its last part: the weights are a mixture of two versions")
            raise EngineError(str(self.failure))

    def fail(self, message: str) -> None:
        """Refuse everything from now on and end what runs: what this engine would sample cannot be trusted."""
        log.error("engine failed: %s", message)
        self.failure = EngineError(message)
        for sequence in [*self.batch.running, *self.waiting]:
            self._finish(sequence, _abort(f"the engine failed: {message}", status=500))

    def flush_cache(self) -> None:
        """Drop what finished sequences left. Running ones keep their rows."""
        self.cache.clear()

    def update(self, named: NamedTensors, version: str | None) -> None:
        """Change weights in place. No KV of the old weights serves anything after this, except sequences that an
        `in_place` pause holds: they asked to go on with it, and it is not shared or kept when they end."""
        self.runner.update(named)
        self.mixed = self.updating and version is None  # the last bucket of a session names the version
        self.cache.clear()
        self.kv_epoch += 1
        if not self.paused:
            self._retract_all()
        if self.poisoned:
            self.rows.heal()
            self.poisoned = False
        if version is not None:
            self.version = version

    # ---- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while self._next_commands():
                if not self.paused and not self.updating:
                    self.step()
        except Exception as error:
            log.exception("engine step failed")
            self.failure = error
        message = f"the engine failed: {self.failure}" if self.failure else "the engine is shutting down"
        # the last row first: then no row moves, and where there was no memory for a row, it is not read
        for sequence in [*reversed(self.batch.running), *self.waiting]:
            self._finish(sequence, _abort(message, status=500 if self.failure else 503))
        while self.failure and self._next_commands():  # go on answering: submit() now refuses
            continue

    def _next_commands(self) -> bool:
        """Run what was asked; wait while there is nothing to compute. False when the thread must end."""
        while True:
            with self._wake:
                idle = self.paused or self.updating or not (self.batch.running or self.waiting)
                if not self._commands and not self._stopping and (idle or self.failure):
                    self._wake.wait()
                commands, self._commands = self._commands, deque()
                stopping = self._stopping
            for command in commands:
                command()
            if stopping or not commands:
                return not stopping

    def step(self) -> None:
        """Admit, run one forward pass, sample one token for each sequence whose prompt is complete."""
        self._admit()
        if not self.batch.running:
            return
        tokens, positions, batch = self.batch.plan(self.prefill_budget)
        sampling = list(self.batch.running[: self.batch.decoding])
        wanted = list(range(len(sampling)))
        scoring: list[tuple[Sequence, int, range]] = []  # prompt tokens whose log-probs were asked for
        joining: list[Sequence] = []
        for sequence, chunk, offset in self.batch.chunk_owners(batch):
            first = max(sequence.logprob_start - chunk.start, 0) if sequence.logprob_start >= 0 else chunk.length
            if sequence.output_length == 0 and first < chunk.length:
                scoring.append((sequence, chunk.start + first, range(offset + first, offset + chunk.length)))
            if sequence.pending == chunk.length:
                joining.append(sequence)
                wanted.append(offset + chunk.length - 1)
            sequence.computed += chunk.length
        for _, _, packed in scoring:
            wanted.extend(packed)
        logits = self.runner.forward(tokens, positions, batch, wanted)
        self.steps += 1
        for sequence in sampling:
            sequence.computed += 1
        sampling += joining
        self._score_prompts(logits[len(sampling) :], scoring)
        for sequence in joining:
            self.batch.start_decoding(sequence)
            if sequence.kv_epoch == self.kv_epoch:
                self.cache.share(sequence)
        if sampling:
            self._sample(logits[: len(sampling)], sampling)

    def _admit(self) -> None:
        while sequence := next_admissible(
            self.waiting, self.batch.running, self.cache, max_batch=self.max_batch, max_tokens=self.cache_tokens
        ):
            self.batch.add(sequence)
            sequence.kv_epoch = self.kv_epoch
            limit = len(sequence.tokens) - 1
            if sequence.logprob_start >= 0 and sequence.output_length == 0:
                limit = min(limit, sequence.logprob_start)
            prefix, length = self.cache.find(sequence, limit)
            if prefix is not None and prefix.kv is not None:
                self.rows.copy_in(sequence.row, prefix.kv, length)
            elif prefix is not None and prefix.owner is not None:
                self.rows.copy_row(prefix.owner.row, sequence.row, length)
            sequence.computed = length
            if not sequence.started:
                sequence.cached_tokens, sequence.started = length, True

    def _sample(self, logits: Any, sequences: list[Sequence]) -> None:
        uniforms = [0.0 if s.params.greedy else s.uniform() for s in sequences]
        tokens, log_probs = sample(logits, [s.params for s in sequences], uniforms)
        for sequence, token, log_prob in zip(sequences, tokens, log_probs, strict=True):
            if not math.isfinite(log_prob):
                self.poisoned = True
                self._finish(sequence, _abort("NaN or infinite logits: the served weights are broken", status=500))
                continue
            if sequence.params.max_new_tokens:
                sequence.append(token, log_prob, self.version)
            reason = self.stops.finish_reason(sequence)
            if reason is not None:
                self._finish(sequence, reason)
            elif sequence.stream:
                sequence.on_progress(sequence)

    def _score_prompts(self, logits: Any, scoring: list[tuple[Sequence, int, range]]) -> None:
        """Log-probs of prompt tokens: the logits at position p score the token at p + 1."""
        done = 0
        for sequence, start, packed in scoring:
            count = len(packed)
            scaled = logits[done : done + count].float() / sequence.params.temperature
            done += count
            following = sequence.tokens[start + 1 : start + count + 1]
            table = scaled.log_softmax(dim=-1)
            sequence.prompt_log_probs += [float(table[i, token]) for i, token in enumerate(following)]

    # ---- leaving the batch ---------------------------------------------------------------------------------------

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        self.cache.unshare(sequence)
        if keep and sequence.kv_epoch == self.kv_epoch and not self.poisoned and self.failure is None:
            self.cache.store(sequence, self.rows)
        self.batch.remove(sequence)

    def _retract_all(self) -> None:
        for sequence in reversed(list(self.batch.running)):
            self._leave(sequence, keep=False)
            sequence.computed = 0
            if sequence.output_length == 0:
                sequence.prompt_log_probs.clear()  # of the old weights, and perhaps of a part of the prompt only
            self.waiting.appendleft(sequence)

    def _finish(self, sequence: Sequence, reason: dict[str, Any]) -> None:
        if sequence.row >= 0:
            self._leave(sequence, keep=True)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.finish = reason
        sequence.on_progress(sequence)


def _abort(message: str, *, status: int | None = None) -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": status}

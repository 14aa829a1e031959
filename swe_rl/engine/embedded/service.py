"""The bridge between asyncio handlers and the scheduler's thread."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

from swe_rl.engine.embedded.protocol import GenerateRequest, Prompt, answer, parse_request
from swe_rl.engine.embedded.scheduler import Scheduler
from swe_rl.engine.embedded.sequence import Sequence

T = TypeVar("T")


class EngineBusy(Exception):
    """The queue is full (HTTP 503): the client waits and tries again."""


class RequestFailed(Exception):
    """The engine ended a request with an error. `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class EngineService:
    """Turns checked requests into sequences and waits for them without blocking the event loop.

    max_queued: sequences that may be unfinished at once. seed: of requests that bring no `sampling_seed`.
    """

    def __init__(self, scheduler: Scheduler, *, max_queued: int, seed: int, tokenizer: Any | None) -> None:
        self.scheduler = scheduler
        self.max_queued = max_queued
        self.tokenizer = tokenizer
        self.open = 0
        self._seeds = random.Random(seed)

    def parse(self, body: Any) -> GenerateRequest:
        runner = self.scheduler.runner
        return parse_request(
            body,
            vocabulary=runner.vocabulary,
            context_length=runner.context_length,
            cache_tokens=self.scheduler.cache_tokens,
            tokenizer=self.tokenizer,
        )

    async def command(self, command: Callable[[], T]) -> T:
        """Run a command on the scheduler's thread and wait for its result."""
        return await asyncio.wrap_future(self.scheduler.call(command))

    async def generate(self, request: GenerateRequest) -> Any:
        """The whole answer: one object, or a list in the order of prompts and samples.

        Raises EngineBusy, or RequestFailed where a sequence ended with an error. A cancelled call aborts its sequences.
        """
        started = time.monotonic()
        async with _Flight(self, request) as flight:
            async for _ in flight.events():
                pass
            answers = [self._answer(sequence, started) for sequence in flight.sequences]
        return answers[0] if request.single else answers

    async def stream(self, request: GenerateRequest) -> AsyncIterator[dict[str, Any]]:
        """Answers so far, one after each sampled token, with `index` telling the sample apart."""
        started = time.monotonic()
        async with _Flight(self, request) as flight:
            async for sequence, snapshot in flight.events():
                part = snapshot or self._answer(sequence, started)
                yield part if request.single else part | {"index": flight.sequences.index(sequence)}

    def _answer(self, sequence: Sequence, started: float) -> dict[str, Any]:
        status = (sequence.finish or {}).get("status_code")
        if status:
            raise RequestFailed(str((sequence.finish or {})["message"]), status)
        scheduler = self.scheduler
        return answer(sequence, scheduler.stops, version=scheduler.version, started=started)

    def sequences(self, prompt: Prompt, *, stream: bool, on_progress: Callable[[Sequence], None]) -> list[Sequence]:
        """The n samples of one prompt; sample i of a seeded request uses seed + i."""
        n, seed = prompt.params.n, prompt.params.sampling_seed
        return [
            Sequence(
                rid=prompt.rid if n == 1 else f"{prompt.rid}_{i}",
                tokens=list(prompt.ids),
                params=prompt.params,
                seed=self._seeds.getrandbits(63) if seed is None else seed + i,
                on_progress=on_progress,
                stream=stream,
                return_logprob=prompt.return_logprob,
                logprob_start=prompt.logprob_start,
            )
            for i in range(n)
        ]


class _Flight:
    """The sequences of one request while they run: submitted on entry, aborted on exit where they have not ended."""

    def __init__(self, service: EngineService, request: GenerateRequest) -> None:
        self.service = service
        self.loop = asyncio.get_running_loop()
        self.started = time.monotonic()
        self._queue: asyncio.Queue[tuple[Sequence, dict[str, Any] | None]] = asyncio.Queue()
        self.sequences = [
            sequence
            for prompt in request.prompts
            for sequence in service.sequences(prompt, stream=request.stream, on_progress=self._on_progress)
        ]

    def _on_progress(self, sequence: Sequence) -> None:
        """Called on the scheduler's thread, the only one that may read a sequence that still runs: so it takes the picture."""
        snapshot = None
        if not sequence.finish:
            scheduler = self.service.scheduler
            snapshot = answer(sequence, scheduler.stops, version=scheduler.version, started=self.started)
        self.loop.call_soon_threadsafe(self._queue.put_nowait, (sequence, snapshot))

    async def events(self) -> AsyncIterator[tuple[Sequence, dict[str, Any] | None]]:
        """Each progress of each sequence, until all have ended. The snapshot is None for an end."""
        remaining = len(self.sequences)
        while remaining:
            sequence, snapshot = await self._queue.get()
            remaining -= snapshot is None
            yield sequence, snapshot

    async def __aenter__(self) -> _Flight:
        service = self.service
        if service.open + len(self.sequences) > service.max_queued:
            raise EngineBusy(f"{service.open} sequences are queued, the bound is {service.max_queued}")
        service.open += len(self.sequences)
        for sequence in self.sequences:
            service.scheduler.call(partial(service.scheduler.submit, sequence))
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.service.open -= len(self.sequences)
        unfinished = {id(sequence) for sequence in self.sequences if not sequence.finish}
        if unfinished:
            self.service.scheduler.call(
                lambda: self.service.scheduler.abort(lambda sequence: id(sequence) in unfinished)
            )

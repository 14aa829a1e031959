"""One client for all policy engines: the embedded CPU engine and SGLang speak the same HTTP.

`generate` sends each conversation to its own engine (its KV cache holds the earlier turns), tries another one while that
engine cannot be reached, and never outlives its deadline. Weight updates go to every engine, with requests in flight.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from swe_rl.deadline import Deadline
from swe_rl.engine.result import GenerateResult, parse_generation, version_number
from swe_rl.engine.routing import rank_engines
from swe_rl.engine.transport import EngineRefused, EngineTransport, EngineUnreachable
from swe_rl.errors import DeadlineExceeded, EngineError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
PauseMode = Literal["abort", "retract", "in_place"]


class EngineClient:
    """Speaks to the engines at `urls`. Use it inside one event loop; `aclose()` ends its connections.

    request_timeout: seconds one generation may take where its deadline gives more.
    control_timeout: seconds one weight update, flush or pause may take on every engine.
    tensor_parallel: processes of one engine (SGLang's --tp-size); each wants its own copy of pushed tensors.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        request_timeout: float,
        control_timeout: float = 600.0,
        bucket_bytes: int = 64 << 20,
        tensor_parallel: int = 1,
        connect_attempts: int = 6,
        api_key: str = "",
    ) -> None:
        if not urls:
            raise EngineError("no engine URLs: start engines or set --engine-urls")
        self.urls = [url.rstrip("/") for url in urls]
        self.request_timeout = request_timeout
        self.control_timeout = control_timeout
        self.bucket_bytes = bucket_bytes
        self.tensor_parallel = tensor_parallel
        self.connect_attempts = connect_attempts
        self.version = 0  # of the last update this client finished
        self._transport = EngineTransport(api_key=api_key)
        self._paused = False
        self._without_spans: set[str] = set()  # servers whose answers name one weight version only (SGLang 0.5.15)
        self._jitter = random.Random()  # desynchronises retries; nothing that is measured depends on it

    async def generate(
        self,
        input_ids: list[int],
        sampling_params: dict[str, Any],
        *,
        rid: str,
        routing_key: str = "",
        deadline: Deadline | None = None,
    ) -> GenerateResult:
        """Sample one continuation of `input_ids`.

        sampling_params: SGLang's names (temperature, top_p, top_k, max_new_tokens, stop_token_ids, sampling_seed ...).
        rid: names the request for `abort`. routing_key: one value per conversation; empty = `rid`.
        Raises DeadlineExceeded when `deadline` ends first, EngineError for everything else that keeps it from an answer.
        A call that is cancelled or runs out of time aborts the request on the engine.
        """
        limit = deadline.sub(self.request_timeout) if deadline else Deadline(self.request_timeout)
        engines = rank_engines(self.urls, routing_key or rid)
        last: EngineError | None = None
        for attempt, url in zip(range(self.connect_attempts), itertools.cycle(engines), strict=False):
            if attempt >= len(engines):  # every engine was tried: wait before the next round
                await asyncio.sleep(limit.bound(self._backoff(attempt - len(engines))))
            if limit.expired():
                break
            try:
                return await self._generate_on(
                    url, f"{rid}_{attempt}" if attempt else rid, input_ids, sampling_params, limit
                )
            except EngineUnreachable as error:
                last = error
                log.warning("%s (try %d of %d)", error, attempt + 1, self.connect_attempts)
        if deadline is not None and deadline.expired():
            raise DeadlineExceeded("generate", deadline.seconds)
        raise last or EngineError(f"request {rid}: no engine answered within {self.request_timeout} s")

    async def _generate_on(
        self, url: str, rid: str, input_ids: list[int], sampling_params: dict[str, Any], limit: Deadline
    ) -> GenerateResult:
        body = {"input_ids": input_ids, "sampling_params": sampling_params, "rid": rid, "return_logprob": True}
        version, started = await self._version_at_departure(url, limit), time.monotonic()
        try:
            answer = await self._transport.call("POST", f"{url}/generate", body, timeout=limit.remaining())
        except (asyncio.TimeoutError, asyncio.CancelledError) as error:
            await asyncio.shield(self._abort_on(url, {"rid": rid}))
            if isinstance(error, asyncio.CancelledError):
                raise
            raise EngineUnreachable(f"engine {url}: request {rid} took over {limit.seconds:.1f} s") from error
        result = parse_generation(answer, version_at_departure=version, seconds=time.monotonic() - started)
        if "weight_versions" not in answer["meta_info"]:
            self._without_spans.add(url)
        return result

    async def _version_at_departure(self, url: str, limit: Deadline) -> int | None:
        """What an older server serves now; None where answers tell the version of each token themselves."""
        if url not in self._without_spans:
            return None
        try:
            info = await self._transport.call("GET", f"{url}/get_model_info", timeout=limit.bound(10.0))
        except asyncio.TimeoutError as error:
            raise EngineUnreachable(f"engine {url} does not tell its weight version") from error
        return version_number(info.get("weight_version"))

    def _backoff(self, round_number: int) -> float:
        """Seconds before the next try: doubling from 0.2 to 5, halved at random so that clients do not march in step."""
        return min(5.0, 0.2 * 2**round_number) * self._jitter.uniform(0.5, 1.0)

    async def _abort_on(self, url: str, body: dict[str, Any]) -> None:
        try:
            await self._transport.call("POST", f"{url}/abort_request", body, timeout=5.0)
        except (EngineError, asyncio.TimeoutError) as error:  # an engine that is gone has nothing left to abort
            log.warning("abort on %s failed: %s", url, error or type(error).__name__)

    async def abort(self, rid: str) -> None:
        """End one request wherever it runs; its `generate` returns what was sampled, finish reason `abort`."""
        await asyncio.gather(*(self._abort_on(url, {"rid": rid}) for url in self.urls))

    async def abort_all(self) -> None:
        """End every request of every client on these engines."""
        await asyncio.gather(*(self._abort_on(url, {"rid": "", "abort_all": True}) for url in self.urls))

    async def health(self, *, timeout: float = 10.0) -> dict[str, bool]:
        """Whether each engine answers `/health` now."""

        async def one(url: str) -> bool:
            try:
                await self._transport.call("GET", f"{url}/health", timeout=timeout)
            except (EngineError, asyncio.TimeoutError):
                return False
            return True

        return dict(zip(self.urls, await asyncio.gather(*map(one, self.urls)), strict=True))

    async def flush_cache(self) -> None:
        """Drop cached prefixes. SGLang refuses while requests run; the embedded engine does it at once."""
        await self._everywhere("flush_cache", {})

    async def pause(self, mode: PauseMode = "retract") -> None:
        """Stop sampling. Requests are aborted, or wait and then recompute (`retract`) or keep (`in_place`) their KV cache."""
        await self._everywhere("pause_generation", {"mode": mode})
        self._paused = True

    async def resume(self) -> None:
        """Sample again after `pause`."""
        self._paused = False
        await self._everywhere("continue_generation", {})

    @asynccontextmanager
    async def paused(self, mode: PauseMode = "retract") -> AsyncIterator[None]:
        """Pause around a block, resume whatever happens, also where some engines could not be paused.

        Inside an outer pause it does nothing.
        """
        if self._paused:
            yield
            return
        async with _ending(self.resume):
            await self.pause(mode)
            yield

    async def update_weights_from_disk(self, path: str, version: int, *, mode: PauseMode = "retract") -> None:
        """Load the Hugging Face folder `path` (seen by every engine) as weight version `version`."""
        body = {"model_path": str(path), "weight_version": str(version), "flush_cache": mode != "in_place"}
        async with self.paused(mode):
            await self._everywhere("update_weights_from_disk", body)
        self.version = version

    async def update_weights_from_tensor(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int, *, mode: PauseMode = "retract"
    ) -> None:
        """Send tensors under their Hugging Face names as weight version `version`, in buckets of bounded size.

        mode: what happens to requests in flight. `retract` (default) recomputes their KV cache under the new weights and
        clears the prefix cache. With `in_place` they go on with the old KV, and SGLang then cannot clear its prefix cache:
        call `flush_cache()` once it is idle, or attempts started meanwhile may read KV of old weights.
        Raises EngineError naming the engine that refused; engines may then serve different versions.
        """
        from swe_rl.engine.wire import buckets, encode_tensors

        parts = list(buckets(named_tensors, self.bucket_bytes // self.tensor_parallel))
        if not parts:
            raise EngineError("weight update without tensors")
        async with self.paused(mode):
            sessions = set(self.urls)
            async with _ending(lambda: self._everywhere("end_weight_update", {}, sessions)):
                await _gather_all([functools.partial(self._begin_update, url, sessions) for url in self.urls])
                for number, part in enumerate(parts, start=1):
                    last = number == len(parts)
                    body = {
                        # SGLang's process i reads entry i
                        "serialized_named_tensors": [await asyncio.to_thread(encode_tensors, part)]
                        * self.tensor_parallel,
                        "flush_cache": last and mode != "in_place",
                        "weight_version": str(version) if last else None,
                    }
                    await self._everywhere("update_weights_from_tensor", body)
        self.version = version

    async def _begin_update(self, url: str, sessions: set[str]) -> None:
        """Open an update session; an engine that refuses leaves `sessions`: none of ours is open there.

        A server that is older than sessions (SGLang 0.5.15) answers 404 and is updated without one.
        """
        try:
            await self._control(url, "begin_weight_update", {})
        except EngineRefused as error:
            sessions.discard(url)
            if error.status != 404:
                raise

    async def _everywhere(self, route: str, body: dict[str, Any], urls: Iterable[str] | None = None) -> None:
        """POST to every engine (or those of `urls`) at once. Raises the first failure after all have answered."""
        await _gather_all(
            [functools.partial(self._control, url, route, body) for url in (self.urls if urls is None else urls)]
        )

    async def _control(self, url: str, route: str, body: dict[str, Any]) -> None:
        try:
            answer = await self._transport.call("POST", f"{url}/{route}", body, timeout=self.control_timeout)
        except asyncio.TimeoutError:
            raise EngineError(
                f"engine {url}/{route}: no answer within {self.control_timeout} s (control_timeout; in a training run "
                "--process-group-timeout)"
            ) from None
        if isinstance(answer, dict) and answer.get("success") is False:
            raise EngineError(f"engine {url}/{route}: {answer.get('message', 'refused')}")

    async def aclose(self) -> None:
        """Close the connections. Requests in flight are lost; abort them first."""
        await self._transport.aclose()


async def _gather_all(calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run all, let all end, then raise the first error: half-told engines must not go on answering unseen."""
    results = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


@asynccontextmanager
async def _ending(end: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Await `end()` after the block, whatever happens. An error of the block is raised before one of `end`."""
    try:
        yield
    except BaseException:
        try:
            await end()
        except EngineError as error:
            log.warning("while a failed call was undone: %s", error)
        raise
    await end()

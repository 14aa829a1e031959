"""Pulls of images: one job per image that everybody who wants it joins, with progress, retries and a deadline of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiodocker import DockerError

from swe_rl.deadline import Deadline
from swe_rl.errors import SandboxError
from swe_rl.sandbox.container.engine import Engine, typed_errors
from swe_rl.sandbox.container.errors import EngineRefused, ImageMissing
from swe_rl.sandbox.container.image_names import auth_header, candidates, repository

log = logging.getLogger(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 120.0
RATE_LIMIT_PAUSE = 30.0
HOPELESS = (
    "not found",
    "no basic auth credentials",
    "authentication required",
    "manifest unknown",
    "unauthorized",
    "denied",
    "invalid reference",
    "no matching manifest",
    "server gave http response to https client",  # a registry without TLS that the engine may not use
)
UNREACHABLE = ("no such host", "connection refused", "no route to host", "network is unreachable")
UNREACHABLE_SECONDS = 60.0  # that a registry may be away before its pull fails: a restart, not a misspelt name
RATE_LIMIT = ("toomanyrequests", "too many requests", "rate limit")


@dataclass
class PullJob:
    """One pull under way or ended. `state` is pulling, done or failed."""

    image: str
    started: float = field(default_factory=time.time)
    state: str = "pulling"
    note: str = ""  # what it waits for, or why it failed
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)  # layer: bytes had, bytes in all
    task: asyncio.Task[None] | None = None
    missing: bool = False  # failed because no registry has it

    def progress(self) -> dict[str, Any]:
        """State as JSON: bytes of the layers that are known so far."""
        had, known = (sum(layer[i] for layer in self.layers.values()) for i in (0, 1))
        body = {"image": self.image, "state": self.state, "current_bytes": had, "total_bytes": known, "note": self.note}
        return {**body, "layers": len(self.layers), "seconds": round(time.time() - self.started, 1)}

    def heard(self, event: dict[str, Any]) -> None:
        """Take over one line of the engine's progress stream."""
        layer, detail = event.get("id"), event.get("progressDetail") or {}
        status = str(event.get("status", ""))
        if layer and status == "Downloading" and detail.get("total"):
            self.layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif layer in self.layers and status in ("Download complete", "Pull complete"):
            self.layers[layer] = (self.layers[layer][1], self.layers[layer][1])


class Puller:
    """All pulls of one engine. `aclose()` ends them."""

    def __init__(self, engine: Engine, *, timeout: float, mirrors: list[str], credentials: dict[str, dict[str, str]]):
        self._engine, self._timeout, self._mirrors, self._credentials = engine, timeout, mirrors, credentials
        self.jobs: dict[str, PullJob] = {}
        self.pulled: Callable[[str], None] = lambda image: None  # called for each image that came

    def join(self, image: str) -> PullJob:
        """The job that pulls `image`: the one under way, else a new one. Its bound is the puller's, no caller's."""
        job = self.jobs.get(image)
        if job is None or job.state != "pulling":
            self._forget_old()
            job = self.jobs[image] = PullJob(image)
            job.task = asyncio.create_task(self._run(job, Deadline(self._timeout)), name=f"pull {image}")
        return job

    async def wait(self, job: PullJob, timeout: float) -> bool:
        """Whether the job ended within `timeout` seconds; it goes on otherwise."""
        assert job.task is not None
        done, _ = await asyncio.wait({job.task}, timeout=timeout)
        return bool(done)

    async def aclose(self) -> None:
        tasks = [job.task for job in self.jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget_old(self) -> None:
        ended = [image for image, job in self.jobs.items() if job.state != "pulling"]
        for image in ended[:-200]:
            del self.jobs[image]

    async def _run(self, job: PullJob, deadline: Deadline) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._from_anywhere(job, deadline)
                job.state, job.note = "done", ""
                self.pulled(job.image)
                return
            except asyncio.CancelledError:
                job.state, job.note = "failed", "the server stopped"
                raise
            except ImageMissing as error:
                job.state, job.note, job.missing = "failed", str(error), True
                return
            except SandboxError as error:
                text = str(error).lower()
                wait = max(pause, RATE_LIMIT_PAUSE) if any(word in text for word in RATE_LIMIT) else pause
                away = any(word in text for word in UNREACHABLE) and deadline.elapsed() > UNREACHABLE_SECONDS
                if away or deadline.remaining() <= wait:
                    job.state, job.note = "failed", f"gave up after {deadline.elapsed():.0f} s: {error}"
                    return
                job.note = f"again in {wait:.0f} s: {error}"
                log.warning("pull %s: %s", job.image, job.note)
                await asyncio.sleep(wait)
                pause = min(LONGEST_PAUSE, pause * 2)

    async def _from_anywhere(self, job: PullJob, deadline: Deadline) -> None:
        sources = candidates(job.image, self._mirrors)
        for source in sources:
            try:
                await self._pull(source, job, deadline)
            except SandboxError as error:
                if source == sources[-1]:
                    raise
                log.warning("pull %s from mirror %s: %s", job.image, source, error)
                continue
            if source != job.image:
                await self._rename(source, job.image)
            return

    async def _pull(self, source: str, job: PullJob, deadline: Deadline) -> None:
        headers = auth_header(source, self._credentials)
        bound = max(1.0, deadline.remaining())
        with typed_errors(f"pull {source}"):
            try:
                async with self._engine.raw(
                    "POST", "images/create", {"fromImage": source}, headers=headers, timeout=bound
                ) as response:
                    async for line in response.content:
                        _take(line, source, job)
            except DockerError as error:
                if error.status == 900:
                    raise
                raise failure(source, error.message) from error

    async def _rename(self, source: str, image: str) -> None:
        name, _, tag = image.rpartition(":")
        with typed_errors(f"tag {source}"):
            async with self._engine.raw("POST", f"images/{source}/tag", {"repo": name, "tag": tag}):
                pass
            async with self._engine.raw("DELETE", f"images/{source}", {"noprune": "1"}):
                pass


def failure(source: str, message: str) -> SandboxError:
    """ImageMissing where trying again cannot help, else EngineRefused. Words of the image's name decide nothing."""
    said = message.replace(repository(source), "").lower()
    hopeless = any(word in said for word in HOPELESS) and "timeout" not in said
    return ImageMissing(f"{source}: {message}") if hopeless else EngineRefused(502, f"{source}: {message}")


def _take(line: bytes, source: str, job: PullJob) -> None:
    try:
        event = json.loads(line)
    except ValueError:
        return
    if message := event.get("error"):
        raise failure(source, message)
    job.heard(event)

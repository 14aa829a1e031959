"""Pull every image of a dataset onto exec servers, or into this machine's engine: what data/pull_swe_images.sh runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from swe_rl.errors import SweRlError, UsageError
from swe_rl.sandbox.container.engine import Engine
from swe_rl.sandbox.container.image_names import load_credentials, normalized
from swe_rl.sandbox.container.pull import Puller
from swe_rl.tasks.images import with_registry
from swe_rl.tasks.load import load_tasks

ATTEMPTS = 5  # after a connection to a server was lost; the server itself retries its registry
FIRST_PAUSE = 2.0
PULL_SECONDS = 3600.0
Pull = Callable[[str, Callable[[str], None]], Awaitable[str]]  # (image, show progress) -> "" or why it failed


def listed_images(path: str) -> list[str]:
    """The names in a file with one image a line; `#` starts a comment. Raises UsageError."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return [name for line in lines if (name := line.split("#")[0].strip())]


def images_of(path: str, registry: str, template: str = "", *, listed: bool = False, limit: int = 0) -> list[str]:
    """The distinct images of a dataset (or of a .txt), named as a run with this registry and template asks for them.

    listed: `path` has one image a line whatever it is called. limit: only those of the first tasks or lines (0: all).
    Raises DataError for a file that cannot be read as tasks, UsageError where it names no image.
    """
    if listed or path.endswith(".txt"):
        names = listed_images(path)
    else:
        names = [task.image for task in load_tasks(path, image_template=template).tasks]
    images = sorted({with_registry(name, registry) for name in names[: limit or None] if name})
    if not images:
        raise UsageError(f"{path} names no image")
    return images


def on_server(session: aiohttp.ClientSession, url: str, timeout: float) -> Pull:
    """Pulls through an exec server, following its stream of progress; `timeout`: seconds to wait for one image."""

    async def pull(image: str, show: Callable[[str], None]) -> str:
        for attempt in range(ATTEMPTS):
            try:
                return await _follow(session, url, image, timeout, show)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
                failure = f"{url}: {error or type(error).__name__}"
                if attempt + 1 < ATTEMPTS:
                    await asyncio.sleep(FIRST_PAUSE * 2**attempt)
        return failure

    return pull


async def _follow(
    session: aiohttp.ClientSession, url: str, image: str, timeout: float, show: Callable[[str], None]
) -> str:
    body = {"image": image, "stream": True, "timeout": timeout}
    state: dict[str, Any] = {}
    async with session.post(f"{url.rstrip('/')}/image/pull", json=body) as answer:
        if answer.status >= 400:
            return f"{url}: HTTP {answer.status}: {(await answer.text())[:300]}"
        async for line in answer.content:
            state = json.loads(line)
            show(state.get("note") or f"{state.get('current_bytes', 0) >> 20} MiB")
    if state.get("state") == "done":
        return ""
    after = f"still being pulled after {state.get('seconds', 0)} s, which goes on"
    return f"{url}: {state.get('note') or (after if state else 'the stream ended early')}"


def on_engine(engine: Engine, puller: Puller) -> Pull:
    """Pulls into this machine's engine what it does not hold yet."""

    async def pull(image: str, show: Callable[[str], None]) -> str:
        try:
            image = normalized(image)
            if await engine.has_image(image):
                return ""
        except SweRlError as error:
            return str(error)
        job = puller.join(image)
        while not await puller.wait(job, 0.5):
            show(job.note or f"{job.progress()['current_bytes'] >> 20} MiB")
        return "" if job.state == "done" else job.note

    return pull


async def pull_all(images: list[str], places: dict[str, Pull], parallel: int, progress: Progress) -> list[str]:
    """Pull every image at every place; the failures, a line each."""
    failures: list[str] = []

    async def one(pull: Pull, image: str, slots: asyncio.Semaphore, bar: TaskID) -> None:
        async with slots:
            why = await pull(image, lambda text: progress.update(bar, note=f"{image.rsplit('/', 1)[-1]}: {text}"[:70]))
        if why:
            failures.append(f"{image}: {why}")
        progress.update(bar, advance=1)

    work = []
    for place, pull in places.items():
        slots, bar = asyncio.Semaphore(parallel), progress.add_task(place, total=len(images), note="")
        work += [one(pull, image, slots, bar) for image in images]
    await asyncio.gather(*work)
    return failures


async def run(flags: argparse.Namespace) -> int:
    path = flags.tasks or flags.image_list or flags.train
    listed = not flags.tasks and bool(flags.image_list)
    images = await asyncio.to_thread(
        images_of, path, flags.registry, flags.image_template, listed=listed, limit=flags.limit
    )
    token = os.environ.get("SWE_SERVER_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    servers = [url.strip() for url in flags.servers.split(",") if url.strip()]
    engine = Engine(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    puller = Puller(engine, timeout=flags.timeout, mirrors=[], credentials=load_credentials(flags.registry_config))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bounds = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)  # a line of progress comes twice a second
    async with aiohttp.ClientSession(headers=headers, timeout=bounds) as session:
        places = {url: on_server(session, url, flags.timeout) for url in servers} or {
            engine.url: on_engine(engine, puller)
        }
        with Progress(*columns, TextColumn("{task.fields[note]}")) as progress:
            failures = await pull_all(images, places, flags.parallel, progress)
    await puller.aclose()
    await engine.aclose()
    print("\n".join([f"{len(images)} images, {len(places)} places, {len(failures)} failures", *failures]))
    return 1 if failures else 0


def main(argv: list[str] | None = None) -> int:
    """See data/pull_swe_images.sh --help."""
    parser = argparse.ArgumentParser("pull_swe_images.sh")
    parser.add_argument("tasks", nargs="?")
    parser.add_argument("--image-list", default=os.environ.get("IMAGE_LIST", ""))
    parser.add_argument("--train", default=os.environ.get("TRAIN", ""))
    parser.add_argument("--limit", type=int, default=os.environ.get("N") or "0")
    parser.add_argument("--servers", default=os.environ.get("SWE_EXEC_SERVER_URLS", ""))
    parser.add_argument("--parallel", type=int, default=3)
    parser.add_argument("--registry", "--prefix", default=os.environ.get("SWE_DOCKER_REGISTRY", ""))
    parser.add_argument("--image-template", default=os.environ.get("SWE_IMAGE_TEMPLATE", ""))
    parser.add_argument("--registry-config", default="")
    parser.add_argument("--timeout", type=float, default=PULL_SECONDS)
    flags = parser.parse_args(argv)
    if flags.parallel < 1 or flags.timeout <= 0 or flags.limit < 0:
        parser.error("--parallel must be at least 1, --timeout above 0 and --limit (N) not negative")
    if not (flags.tasks or flags.image_list or flags.train):
        parser.error("name the dataset (TASKS, or the variable TRAIN) or a list of images (--image-list, IMAGE_LIST)")
    try:
        return asyncio.run(run(flags))
    except SweRlError as error:
        print(f"pull_swe_images.sh: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())

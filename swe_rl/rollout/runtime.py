"""What attempts need beside their task: engine, tokenizer, sandboxes, settings.

The rollout manager sets the one of its process. Where `generate` is plugged into another trainer (slime), one is opened for that
trainer's arguments and the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.agent.loop import Engine
from swe_rl.config import Config
from swe_rl.engine.client import EngineClient
from swe_rl.errors import ConfigError
from swe_rl.grading.cache import shared_cache
from swe_rl.owned_tasks import uninterrupted
from swe_rl.rollout.foreign_args import config_from_args
from swe_rl.rollout.ledger import RecordingEngine
from swe_rl.rollout.places import Places
from swe_rl.rollout.progress import StageCounts
from swe_rl.run_folder import config_hash
from swe_rl.sandbox.hardening import HardenedProvider
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.provider import open_provider

if TYPE_CHECKING:
    from swe_rl.rollout.attempt import Attempt

log = logging.getLogger(__name__)
REMEMBERED_ATTEMPTS = 4096  # between `generate` and `reward_func`; the oldest go first
MAX_OPENED = 4  # runtimes of one event loop for different settings; beyond them, one that is not in use is closed
_attempts: OrderedDict[str, Attempt] = (
    OrderedDict()
)  # of the process: another event loop, so another runtime, may grade


class Runtime:
    """Everything that attempts share. `aclose` ends what it holds."""

    def __init__(self, config: Config, engine: Engine, tokenizer: Any, provider: SandboxProvider) -> None:
        self.config = config
        self.client = engine
        self.engine = RecordingEngine(engine)
        self.tokenizer = tokenizer
        self.provider = provider
        self.progress = StageCounts()
        self.config_hash = config_hash(config)
        self.vocab_size = vocab_size(config.hf_checkpoint) or len(tokenizer)
        self.attempts_dir = attempts_dir(config)
        self.places = Places(config.swe_max_concurrent, getattr(provider, "capacity", None))
        if self.places.at_once < config.swe_max_concurrent:
            log.info(
                "%d attempts at once instead of %d (--swe-max-concurrent): more than the run's own containers, "
                "--swe-max-containers-per-node, do not find a place",
                self.places.at_once,
                config.swe_max_concurrent,
            )

    def remember(self, attempt: Attempt) -> None:
        """Keep an attempt until it is graded and `forget` is called (or 4,096 newer ones came)."""
        _attempts[attempt.attempt_id] = attempt
        while len(_attempts) > REMEMBERED_ATTEMPTS:
            _attempts.popitem(last=False)

    def recall(self, attempt_id: str) -> Attempt | None:
        """The attempt that `generate` made under this id, if it is still remembered."""
        return _attempts.get(attempt_id)

    def forget(self, attempt_id: str) -> None:
        _attempts.pop(attempt_id, None)

    def counters(self) -> dict[str, float]:
        """Counts since the process started: verdicts shared by equal patches, sandboxes whose future history was hidden."""
        counts = {f"verdict_cache/{name}": value for name, value in shared_cache.metrics().items()}
        if isinstance(self.provider, HardenedProvider):
            counts |= {f"history/{state}": float(count) for state, count in self.provider.counts.items()}
        return counts

    async def aclose(self) -> None:
        """Close sandboxes and connections."""
        try:
            await self.provider.aclose()
        finally:
            if isinstance(self.client, EngineClient):
                await self.client.aclose()


def attempts_dir(config: Config) -> Path | None:
    """Where attempts are written; None = nowhere, because neither a folder nor a run is known."""
    if config.swe_save_traj_dir:
        return Path(config.swe_save_traj_dir)
    return Path(config.run_dir) / "attempts" if config.run_dir else None


def vocab_size(path: str) -> int | None:
    """Rows of the model's embedding, from its config.json; None where there is none to read."""
    try:
        model = json.loads((Path(path) / "config.json").read_text())
        return int((model.get("text_config") or model)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a local Hugging Face folder; no hub is asked and no code in it is run."""
    from transformers import AutoTokenizer

    if not path:
        raise ConfigError("--hf-checkpoint is not set: the tokenizer is read from it")
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"--hf-checkpoint: no tokenizer can be read from '{path}': {reason}") from error


async def open_runtime(config: Config) -> Runtime:
    """Build the runtime that `config` describes: client of `engine_urls`, tokenizer, sandbox provider."""
    if not config.engine_urls:
        raise ConfigError("--engine-urls is not set: start engines first, or give the URLs of running ones")
    tokenizer = await asyncio.to_thread(load_tokenizer, config.hf_checkpoint)
    provider = await open_provider(config)
    client = EngineClient(config.engine_urls, request_timeout=config.engine_request_timeout)
    return Runtime(config, client, tokenizer, provider)


@dataclasses.dataclass
class _Process:
    """This process's runtimes: the one that was set, and those that were opened for the arguments of another trainer."""

    chosen: Runtime | None = None
    opened: list[_Opened] = dataclasses.field(default_factory=list)  # the one used last is the last
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class _Opened:
    """A runtime for one config in one event loop: connections belong to the loop they were made in."""

    def __init__(self, config: Config) -> None:
        self.config = config.model_copy(deep=True)  # the caller may change its own afterwards
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self._life = _life(self.config)
        self.opening = asyncio.ensure_future(self._life.__anext__())
        self.opening.add_done_callback(self._forget_failed)

    def _forget_failed(self, opening: asyncio.Future[Runtime]) -> None:
        """The next caller tries again."""
        with _process.lock:
            if (opening.cancelled() or opening.exception() is not None) and self in _process.opened:
                _process.opened.remove(self)

    async def close(self) -> None:
        try:
            await self._life.aclose()
        except Exception as error:
            log.warning("closing a runtime that is not used any more: %s: %s", type(error).__name__, error)


async def _life(config: Config) -> AsyncGenerator[Runtime, None]:
    """Yields the runtime, closes it when it is closed itself: `asyncio.run` does so with all that are left when it ends."""
    runtime = await open_runtime(config)
    try:
        yield runtime
    finally:
        await runtime.aclose()


_process = _Process()


def set_runtime(runtime: Runtime | None) -> None:
    """Make `runtime` the one that `generate` and `reward_func` use in this process, whatever their `args`; None = none."""
    _process.chosen = runtime


@contextlib.asynccontextmanager
async def runtime_for(args: Any) -> AsyncIterator[Runtime]:
    """The runtime that was set, or else the running event loop's for these `args`; opened by the first caller.

    It is closed when its event loop ends (`asyncio.run`), or when it is not in use and others are wanted.
    """
    if _process.chosen is not None:
        yield _process.chosen
        return
    config = config_from_args(args)
    with _process.lock:  # other threads may have event loops, and runtimes, of their own
        opened, surplus = _opened_for(config)
    opened.users += 1
    try:
        await uninterrupted(_close(surplus))
        yield await asyncio.shield(opened.opening)
    finally:
        opened.users -= 1


async def _close(surplus: list[_Opened]) -> None:
    for one in surplus:
        await one.close()


def _opened_for(config: Config) -> tuple[_Opened, list[_Opened]]:
    """The running loop's runtime for `config`, found or begun, and those that must be closed for it."""
    everything, loop = _process.opened, asyncio.get_running_loop()
    everything[:] = [one for one in everything if not one.loop.is_closed()]
    mine = [one for one in everything if one.loop is loop]
    found = next((one for one in mine if one.config == config), None)
    idle = [] if found else [one for one in mine if not one.users and one.opening.done()]
    surplus = idle[: max(0, len(mine) + 1 - MAX_OPENED)]
    opened = found or _Opened(config)
    everything[:] = [one for one in everything if one is not opened and one not in surplus] + [opened]
    return opened, surplus

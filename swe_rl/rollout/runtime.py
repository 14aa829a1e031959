"""What attempts need beside their task: engine, tokenizer, sandboxes, settings. One per process.

The rollout manager sets it. Where `generate` is plugged into another trainer (slime), it is built from that trainer's
arguments and the environment at the first call.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.agent.loop import Engine
from swe_rl.config import Config
from swe_rl.config.agent import AgentSettings
from swe_rl.config.grading import GradingSettings
from swe_rl.config.load import load_config, validate
from swe_rl.config.rollout import RolloutSettings
from swe_rl.config.sandbox import SandboxSettings
from swe_rl.engine.client import EngineClient
from swe_rl.errors import ConfigError
from swe_rl.grading.cache import shared_cache
from swe_rl.rollout.ledger import RecordingEngine
from swe_rl.rollout.progress import StageCounts
from swe_rl.run_folder import config_hash
from swe_rl.sandbox.hardening import HardenedProvider
from swe_rl.sandbox.protocol import SandboxProvider
from swe_rl.sandbox.provider import open_provider

if TYPE_CHECKING:
    from swe_rl.rollout.attempt import Attempt

REMEMBERED_ATTEMPTS = 4096  # between `generate` and `reward_func`; the oldest go first
# What a foreign `args` may fill: the settings of single attempts. Data, batches, optimizer and cluster are its own business, and
# settings of the same name may have another form there (slime's `eval_prompt_data` is a list).
_ATTEMPT_AREAS = (AgentSettings, SandboxSettings, GradingSettings)
_ATTEMPT_SETTINGS = {name for area in _ATTEMPT_AREAS for name in area.model_fields} | {
    *(name for name in RolloutSettings.model_fields if name.startswith("swe_")),
    *("rollout_max_context_len", "rollout_max_response_len", "rollout_temperature", "rollout_top_p", "rollout_top_k"),
    *("hf_checkpoint", "engine_urls", "engine_request_timeout", "run_dir", "seed"),
}


class Runtime:
    """Everything that attempts of this process share. `aclose` ends what it holds."""

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
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()

    def remember(self, attempt: Attempt) -> None:
        """Keep an attempt until it is graded and `forget` is called (or 4,096 newer ones came)."""
        self._attempts[attempt.attempt_id] = attempt
        while len(self._attempts) > REMEMBERED_ATTEMPTS:
            self._attempts.popitem(last=False)

    def recall(self, attempt_id: str) -> Attempt | None:
        """The attempt that `generate` made under this id, if it is still remembered."""
        return self._attempts.get(attempt_id)

    def forget(self, attempt_id: str) -> None:
        self._attempts.pop(attempt_id, None)

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


def config_from_args(args: Any) -> Config:
    """Our config for a foreign `args` (an argparse Namespace of slime, say): environment < attributes of `args`.

    Attributes that are missing or None, or that are not about attempts, keep their default or environment value. The engine is
    slime's router (`sglang_router_ip`, `sglang_router_port`) unless engine URLs are given.
    """
    if isinstance(args, Config):
        return args
    values: dict[str, Any] = load_config([]).config.model_dump(exclude_unset=True)
    sources = dict.fromkeys(values, "environment")
    given: Mapping[str, Any] = vars(args) if hasattr(args, "__dict__") else {}
    for name in _ATTEMPT_SETTINGS:
        if given.get(name) is not None:
            values[name], sources[name] = given[name], "args"
    if not values.get("engine_urls") and given.get("sglang_router_ip"):
        host, port = given["sglang_router_ip"], given.get("sglang_router_port") or 30000
        values["engine_urls"] = [f"http://{host}:{port}"]
    return validate(values, sources)


@dataclasses.dataclass
class _Process:
    """This process's runtime, or the task that builds it and the args it is built for."""

    runtime: Runtime | None = None
    building: asyncio.Task[Runtime] | None = None


_process = _Process()


def set_runtime(runtime: Runtime | None) -> None:
    """Make `runtime` the one that `generate` and `reward_func` use in this process."""
    _process.runtime = runtime
    _process.building = None


async def runtime_for(args: Any) -> Runtime:
    """The process's runtime; built from `args` by the first caller, awaited by those that come meanwhile."""
    if _process.runtime is not None:
        return _process.runtime
    if _process.building is None:
        _process.building = asyncio.ensure_future(open_runtime(config_from_args(args)))
    building = _process.building
    try:
        _process.runtime = await asyncio.shield(building)
    finally:
        if building.done() and _process.building is building:  # where it failed, the next caller tries again
            _process.building = None
    return _process.runtime

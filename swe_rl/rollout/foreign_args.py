"""Our settings from another trainer's arguments, where `generate` is plugged into it (slime)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from swe_rl.config import Config
from swe_rl.config.agent import AgentSettings
from swe_rl.config.grading import GradingSettings
from swe_rl.config.load import load_config, validate
from swe_rl.config.rollout import RolloutSettings
from swe_rl.config.sandbox import SandboxSettings

# What a foreign `args` may fill: the settings of single attempts. Data, batches, optimizer and cluster are its own business, and
# settings of the same name may have another form there (slime's `eval_prompt_data` is a list).
_ATTEMPT_AREAS = (AgentSettings, SandboxSettings, GradingSettings)
_ATTEMPT_SETTINGS = {name for area in _ATTEMPT_AREAS for name in area.model_fields} | {
    *(name for name in RolloutSettings.model_fields if name.startswith("swe_")),
    *("rollout_max_context_len", "rollout_max_response_len", "rollout_temperature", "rollout_top_p", "rollout_top_k"),
    *("hf_checkpoint", "engine_urls", "engine_request_timeout", "run_dir", "seed"),
}
_READ = sorted({*_ATTEMPT_SETTINGS, "sglang_router_ip", "sglang_router_port"})
MAX_RESOLVED = 16  # configs kept by what they were read from
_resolved: dict[object, Config] = {}


def config_from_args(args: Any) -> Config:
    """Our config for a foreign `args` (an argparse Namespace of slime, say): environment < attributes of `args`.

    Attributes that are missing or None, or that are not about attempts, keep their default or environment value. The engine is
    slime's router (`sglang_router_ip`, `sglang_router_port`) unless engine URLs are given. Equal attributes in an equal
    environment give the config that was read before: every attempt asks for it twice.
    """
    if isinstance(args, Config):
        return args
    attributes: Mapping[str, Any] = vars(args) if hasattr(args, "__dict__") else {}
    given = {name: attributes[name] for name in _READ if attributes.get(name) is not None}
    key = (repr(given), frozenset(os.environ.items()))
    if key not in _resolved:
        config = _resolve(given)
        if len(_resolved) >= MAX_RESOLVED:
            _resolved.clear()
        _resolved[key] = config
    return _resolved[key]


def _resolve(given: dict[str, Any]) -> Config:
    values: dict[str, Any] = load_config([]).config.model_dump(exclude_unset=True)
    sources = dict.fromkeys(values, "environment")
    for name in _ATTEMPT_SETTINGS & given.keys():
        values[name], sources[name] = given[name], "args"
    if not values.get("engine_urls") and "sglang_router_ip" in given:
        host, port = given["sglang_router_ip"], given.get("sglang_router_port") or 30000
        values["engine_urls"] = [f"http://{host}:{port}"]
    return validate(values, sources)

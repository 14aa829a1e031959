"""The generate and reward functions of a run: ours, or the user's, loaded by dotted path with clear errors."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from swe_rl import generate_with_swe
from swe_rl.config.rollout import RolloutSettings
from swe_rl.errors import ConfigError

Coroutine = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class RolloutFunctions:
    """`generate(args, sample, sampling_params)` and `reward(args, sample)`, as slime calls them."""

    generate: Coroutine
    reward: Coroutine


def load_functions(settings: RolloutSettings) -> RolloutFunctions:
    """Resolve `custom_generate_function_path` and `custom_rm_path`; empty ones mean the bash agent and its grading."""
    generate, reward = settings.custom_generate_function_path, settings.custom_rm_path
    return RolloutFunctions(
        load_coroutine(generate, "custom_generate_function_path", 3) if generate else generate_with_swe.generate,
        load_coroutine(reward, "custom_rm_path", 2) if reward else generate_with_swe.reward_func,
    )


def load_coroutine(path: str, setting: str, arguments: int) -> Coroutine:
    """Import `package.module.function`; it must be a coroutine function that takes `arguments` positional arguments.

    Raises ConfigError naming the setting, the path and what is wrong with it.
    """
    flag = f"--{setting.replace('_', '-')}"
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name:
        raise ConfigError(f"{flag}: '{path}' is no dotted path; write package.module.function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way while it is imported
        raise ConfigError(f"{flag}: importing '{module_name}' failed: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(f"{flag}: module '{module_name}' has no '{name}'")
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"{flag}: '{path}' is not a coroutine function (async def)")
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        raise ConfigError(f"{flag}: '{path}' cannot be called with {arguments} arguments: {error}") from error
    return function

"""Custom functions: loaded by dotted path, wrong ones refused with one clear line."""

from __future__ import annotations

import pytest

from swe_rl import generate_with_swe
from swe_rl.config import Config
from swe_rl.errors import ConfigError
from swe_rl.rollout.functions import load_functions
from tests.rollout import custom_functions

HERE = "tests.rollout.custom_functions"


def test_ours_are_the_default():
    functions = load_functions(Config())
    assert functions.generate is generate_with_swe.generate and functions.reward is generate_with_swe.reward_func


def test_custom_ones():
    functions = load_functions(
        Config(custom_generate_function_path=f"{HERE}.generate", custom_rm_path=f"{HERE}:reward")
    )
    assert functions.generate is custom_functions.generate and functions.reward is custom_functions.reward


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("generate", "no dotted path"),
        ("no_such_package.generate", "ModuleNotFoundError"),
        (f"{HERE}.missing", "has no 'missing'"),
        (f"{HERE}.not_a_coroutine", "not a coroutine function"),
        (f"{HERE}.two_arguments", "3 arguments"),
    ],
)
def test_wrong_paths(path, reason):
    with pytest.raises(ConfigError, match="--custom-generate-function-path") as caught:
        load_functions(Config(custom_generate_function_path=path))
    assert reason in str(caught.value)

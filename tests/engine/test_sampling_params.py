"""Request parameters: SGLang's names, one clear error for what is wrong or not there, nothing ignored in silence."""

from __future__ import annotations

from typing import Any

import pytest

from swe_rl.engine.embedded.sampling_params import SamplingParams
from swe_rl.errors import UsageError


def test_defaults_and_nulls() -> None:
    assert (
        SamplingParams.parse(None)
        == SamplingParams.parse({"temperature": None, "stop": None, "top_k": -1})
        == SamplingParams()
    )


def test_neutral_values_of_missing_features_are_accepted() -> None:
    assert (
        SamplingParams.parse({"min_p": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "regex": None})
        == SamplingParams()
    )


def test_what_slime_sends_is_taken() -> None:
    """The sampling parameters of its rollouts, as they are built there."""
    sent = {"temperature": 1, "top_p": 1, "top_k": -1, "max_new_tokens": 64, "stop": None, "stop_token_ids": None}
    sent |= {"skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False}
    expected = SamplingParams(max_new_tokens=64, skip_special_tokens=False, no_stop_trim=True)
    assert SamplingParams.parse(sent) == expected


def test_greedy_below_a_tiny_temperature() -> None:
    assert SamplingParams.parse({"temperature": 1e-7}).greedy and not SamplingParams.parse({"temperature": 1e-3}).greedy


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": True}, "max_new_tokens"),
        ({"max_new_tokens": 5, "min_new_tokens": 6}, "min_new_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"sampling_seed": 1.5}, "sampling_seed"),
        ({"n": 0}, "n must"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"min_p": 0.1}, "min_p"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"regex": "a+"}, "regex"),
        ({"temprature": 1}, "temprature"),
        ({"greedy": True}, "greedy"),
    ],
)
def test_wrong_values_name_the_parameter(raw: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError, match=names):
        SamplingParams.parse(raw)

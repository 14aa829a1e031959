"""What a setting is called in each source and which values it takes, in words for `--help` and error messages."""

from __future__ import annotations

import typing

from swe_rl.config import Config


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def variables(name: str) -> list[str]:
    """Environment variables that set `name`: the field's own names first, then the derived one."""
    extra = Config.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    derived = name.upper() if name.startswith("swe_") else f"SWE_RL_{name.upper()}"
    own = extra["env"]
    assert isinstance(own, list)
    return list(dict.fromkeys([*map(str, own), derived]))


def is_bool(name: str) -> bool:
    return Config.model_fields[name].annotation is bool


def is_list(name: str) -> bool:
    return typing.get_origin(Config.model_fields[name].annotation) is list


def allowed(name: str) -> str:
    """The allowed values of a setting, e.g. "a number >= 0 and < 1" or "one of: k1, k2"."""
    info = Config.model_fields[name]
    kind = info.annotation
    if typing.get_origin(kind) is typing.Literal:
        return "one of: " + ", ".join(map(str, typing.get_args(kind)))
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    text = "a comma-separated list" if is_list(name) else words.get(kind, str(kind))  # type: ignore[arg-type]
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {getattr(item, attribute)}"
        for item in info.metadata
        for attribute, sign in signs.items()
        if getattr(item, attribute, None) is not None
    ]
    return " ".join([text, " and ".join(bounds)]).strip()

"""Single values of dataset rows: lists that arrive as JSON, Python or numpy text, names that end up in shells and paths.

Every function raises `ValueError` with a reason fit for a row error; none trusts its input.
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NUMPY_CALL = re.compile(r"^(?:np\.|numpy\.)?(?:array|list|object)\((.*?)(?:,\s*dtype=[^()]*)?\)$", re.DOTALL)
_NOTHING = {"", "none", "null", "nan", "[]", "()"}
_ID = re.compile(r"[^\s/\\.\x00-\x1f-][^\s/\\\x00-\x1f]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./^~@{}-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]*")


def is_missing(value: Any) -> bool:
    """True for what tables write where they have nothing: None, NaN, an empty string or container."""
    if value.__class__ is str:  # by far the commonest
        return not value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return isinstance(value, (str, list, tuple, dict)) and len(value) == 0


def text(value: Any, name: str) -> str:
    """A string (empty where missing). Lone surrogates, which no file or tokenizer can take, are an error."""
    if value.__class__ is not str:
        value = _to_text(value, name)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds a broken character (lone surrogate) at {error.start}") from None
    return str(value)


def _to_text(value: Any, name: str) -> str:
    if is_missing(value):
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{name} is {type(value).__name__}, not text")
    return str(value)


def string_list(value: Any, name: str) -> list[str]:
    """A list of strings from a list, a JSON string, a Python repr, a numpy repr (no commas) or one name a line.

    An empty string in a list stays: the official harness counts such a test as failed.
    """
    value = _unwrap(value, name)
    if is_missing(value):
        return []
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} is {type(value).__name__}, not a list of strings")
    for item in value:
        if not isinstance(item, str):
            raise ValueError(f"{name} holds {type(item).__name__} {item!r:.40}, not only strings")
    text("".join(value), name)  # checks all characters at once: rows have thousands of tests
    return list(value)


def _unwrap(value: Any, name: str) -> Any:
    for _ in range(3):  # rows were seen with lists encoded twice
        if hasattr(value, "tolist") and not isinstance(value, str):
            value = value.tolist()
        if not isinstance(value, str):
            return value
        stripped = value.strip()
        if stripped.lower() in _NOTHING:
            return []
        call = _NUMPY_CALL.match(stripped)
        if call:
            stripped = call.group(1).strip()
            if not stripped:
                return []
        if stripped[0] not in "[\"'(":
            return [line.strip() for line in stripped.splitlines() if line.strip()]
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError):
            return _python_list(stripped, name)
    raise ValueError(f"{name} is a list wrapped in too many strings")


def _python_list(source: str, name: str) -> list[str]:
    """`['a', 'b']` and numpy's `['a' 'b']`; ast alone would silently join the latter into `ab`."""
    if source[0] not in "[(" or source[-1] not in "])":
        raise ValueError(f"{name} is neither a JSON list nor a Python list: {source[:60]!r}")
    inner = source[1:-1]
    between = [gap.strip() for gap in _QUOTED.sub("\x00", inner).split("\x00")]
    if any("..." in gap for gap in between):
        raise ValueError(f"{name} was cut by numpy's '...' when the file was written: write it from lists again")
    separators = set(between[1:-1])
    outside = {between[0], between[-1]} if len(between) > 1 else set(between)
    if len(separators) > 1 or not separators <= {",", ""} or not outside <= {",", ""} or between[0]:
        raise ValueError(f"{name} is neither a JSON list nor a Python list: {source[:60]!r}")
    try:
        return [ast.literal_eval(item) for item in _QUOTED.findall(inner)]
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{name} holds a string that cannot be read: {error}") from None


def mapping(value: Any, name: str) -> dict[str, Any]:
    """A new dict from a dict or a JSON string of one (Parquet files often hold nested values as text)."""
    if is_missing(value):
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} is text that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {type(value).__name__}, not an object")
    return dict(value)  # the row stays as it was, whatever is taken out


def flag(value: Any, name: str) -> bool | None:
    """True, False or None (missing)."""
    if is_missing(value):
        return None
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(f"{name} is {value!r:.40}, not true or false")


def identifier(value: Any) -> str:
    """An instance id that can name a folder: no separators, spaces or control characters, at most 200 characters."""
    name = text(value, "instance_id")
    if not name:
        raise ValueError("instance_id is missing")
    if len(name) > 200 or not _ID.fullmatch(name):
        raise ValueError(f"instance_id {name[:60]!r} cannot name a folder (separator, space, leading dot or too long)")
    return name


def revision(value: Any) -> str:
    """A commit that is safe as one word of a git command; empty = the sandbox's first HEAD."""
    name = text(value, "base_commit").strip()
    if name and (len(name) > 200 or not _REVISION.fullmatch(name)):
        raise ValueError(f"base_commit {name[:60]!r} is not a git revision")
    return name


def image(value: Any) -> str:
    """An image reference that is safe as one word of a command."""
    name = text(value, "image").strip()
    if name and (len(name) > 500 or not _IMAGE.fullmatch(name)):
        raise ValueError(f"image {name[:60]!r} is not an image reference")
    return name


def workdir(value: Any) -> str:
    """An absolute folder without control characters; `/testbed` where missing."""
    name = text(value, "workdir").strip() or "/testbed"
    if not name.startswith("/") or len(name) > 500 or any(ord(c) < 32 for c in name) or ".." in name.split("/"):
        raise ValueError(f"workdir {name[:60]!r} is not an absolute path")
    return name

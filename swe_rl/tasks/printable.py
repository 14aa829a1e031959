"""Text from datasets and logs on a terminal: it must neither style nor steer it."""

from __future__ import annotations

import re

from rich.markup import escape

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """`text` without control characters (terminal escapes, direction marks); newlines and tabs stay."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def printable(text: str) -> str:
    """`plain(text)` for a rich console with markup: brackets are printed as they are."""
    return escape(plain(text))

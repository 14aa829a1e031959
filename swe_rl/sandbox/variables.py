"""Which environment variables a sandbox can be given: asked where a row is read, and again where a server is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_VARIABLES = 1000
MAX_ENV = 256 * 1024  # characters of all values together
MAX_VARIABLE = 128 * 1024 - 1  # bytes of name=value; the kernel's MAX_ARG_STRLEN
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def check_variables(env: Mapping[str, str]) -> None:
    """Raises ValueError with the first reason why no process can be given `env`."""
    for name, value in env.items():
        if not NAME.match(name):
            raise ValueError(f"{name[:100]!r} is not a variable name")
        if "\0" in value:
            raise ValueError(f"{name[:100]} must not contain NUL")
        if len(f"{name}={value}".encode("utf-8", "surrogatepass")) > MAX_VARIABLE:
            raise ValueError(f"{name[:100]} is longer than {MAX_VARIABLE} bytes, more than a process can be given")
    if len(env) > MAX_VARIABLES:
        raise ValueError(f"more than {MAX_VARIABLES} variables")
    if sum(len(value) for value in env.values()) > MAX_ENV:
        raise ValueError(f"more than {MAX_ENV} characters in all")

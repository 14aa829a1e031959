"""Request bodies are hostile input: they are checked against their model before anything is done."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from swe_rl.sandbox.server.faults import ServerFault

AnyBody = TypeVar("AnyBody", bound=BaseModel)


def parse(kind: type[AnyBody], raw: bytes) -> AnyBody:
    """The checked body. Raises ServerFault `bad_request` naming each wrong field."""
    try:
        return kind.model_validate_json(raw or b"{}")
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors()]
        raise ServerFault("bad_request", "; ".join(lines[:10])) from None

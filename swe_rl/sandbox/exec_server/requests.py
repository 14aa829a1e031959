"""Bodies of requests, checked before anything is done. Fields that other clients of these endpoints add are ignored."""

from __future__ import annotations

import posixpath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from swe_rl.sandbox.protocol import DEFAULT_OUTPUT_LIMIT
from swe_rl.sandbox.variables import check_variables

MAX_COMMAND = 8 * 1024 * 1024
MAX_PATCH = 64 * 1024 * 1024
LONGEST = 86400.0
NAME = r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}"  # of a container, or its id: it becomes part of the engine's URL


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain NUL")
    return text


def _folder(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError("must be an absolute path")
    return posixpath.normpath(_no_nul(path)) if path else ""


def _variables(env: dict[str, str]) -> dict[str, str]:
    check_variables(env)
    return env


Seconds = Annotated[float, Field(gt=0, le=LONGEST, allow_inf_nan=False)]
Folder = Annotated[str, Field(max_length=4096), AfterValidator(_folder)]
Variables = Annotated[dict[str, str], AfterValidator(_variables)]
Reference = Annotated[str, Field(pattern=rf"^{NAME}$")]


class Body(BaseModel):
    """`idempotency_key` may come as the header Idempotency-Key instead."""

    model_config = ConfigDict(extra="ignore")
    idempotency_key: str = Field("", max_length=200)


class CreateBody(Body):
    image: str = Field(min_length=1, max_length=512)
    cwd: Folder = ""
    timeout: Seconds = 300.0  # to wait for a pull that is under way, and to create and start
    name: str | None = Field(None, pattern=rf"^{NAME}$")
    env: Variables = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    limits: dict[str, Any] = Field(default_factory=dict)
    network: bool = False


class ContainerBody(Body):
    container_id: Reference


class ExecBody(ContainerBody):
    command: Annotated[str, Field(max_length=MAX_COMMAND), AfterValidator(_no_nul)]
    cwd: Folder = ""
    timeout: Seconds = 180.0
    env: Variables = Field(default_factory=dict)
    output_limit: int = Field(DEFAULT_OUTPUT_LIMIT, ge=2, le=24 * 1024 * 1024)


class DiffBody(ContainerBody):
    cwd: Folder = ""
    base_commit: str = Field("", pattern=r"^[0-9a-fA-F]{0,64}$")
    timeout: Seconds = 120.0


class EvaluateBody(Body):
    """One of container_id and image. `task` holds further Task fields (fail_to_pass, test_files, log_parser ...).

    The files of a container in which commands have run are first put back (put_back.py).
    """

    container_id: str = Field("", pattern=rf"^({NAME})?$")
    image: str = Field("", max_length=512)
    cwd: Folder = ""
    patch: str = Field("", max_length=MAX_PATCH)
    patch_base64: str = Field("", max_length=MAX_PATCH)  # in place of `patch` where it is no UTF-8
    eval_script: str = Field("", max_length=MAX_COMMAND)
    timeout: Seconds = 1800.0
    task: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)


class PullBody(Body):
    image: str = Field(min_length=1, max_length=512)
    timeout: Seconds | None = None
    stream: bool = False

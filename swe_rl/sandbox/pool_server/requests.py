"""Bodies that callers send. They are hostile input: every field has a type, a bound and one clear error."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field

from swe_rl.errors import UsageError
from swe_rl.sandbox.container.image_names import normalized
from swe_rl.sandbox.exec_server.requests import Variables
from swe_rl.sandbox.protocol import LONGEST_LEASE


def _image(name: str) -> str:
    try:
        normalized(name)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return name


Name = Annotated[str, Field(max_length=300)]
Key = Annotated[str, Field(min_length=8, max_length=200)]
DAY = 86400.0


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class AllocateBody(Body):
    """Ask for a sandbox. `deadline_s`: what is left to the attempt, waiting included; `ttl_s`: life without heartbeats."""

    image: Annotated[str, Field(max_length=500), AfterValidator(_image)]
    idempotency_key: Key
    run: Name = "default"
    instance_id: Name = Field("", validation_alias=AliasChoices("instance_id", "task"))
    deadline_s: Annotated[float, Field(gt=0, le=LONGEST_LEASE)] = 1800.0
    wait_s: Annotated[float, Field(gt=0, le=LONGEST_LEASE)] | None = None
    ttl_s: Annotated[float, Field(ge=5, le=DAY)] | None = None
    cwd: Annotated[str, Field(max_length=4096)] = ""
    env: Variables = {}
    network: bool = False
    limits: Annotated[dict[str, float | bool], Field(max_length=20)] = {}  # less than the node's own, never more

    def fingerprint(self) -> str:
        """The same for requests of the same sandbox; how long it is waited for and held does not count."""
        asked = self.model_dump(exclude={"idempotency_key", "deadline_s", "wait_s", "ttl_s"})
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class HeartbeatBody(Body):
    """`leases`: {lease id: seconds left to its attempt}; 0 and a bare `lease_id` renew without moving the deadline."""

    lease_id: Name | None = None
    leases: Annotated[dict[str, Annotated[float, Field(ge=0, le=LONGEST_LEASE)]], Field(max_length=10_000)] = {}
    idempotency_key: Key | None = None  # twice is as once, with or without it


class CloseBody(Body):
    lease_id: Name
    reason: Name = "closed by its owner"
    wait_s: Annotated[float, Field(ge=0, le=300)] = 30.0
    idempotency_key: Key | None = None  # closing twice is closing once, with or without it


class NodeBody(Body):
    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+/?$", max_length=500)]
    capacity: Annotated[int, Field(ge=1, le=10_000)] | None = None
    force: bool = False
    idempotency_key: Key | None = None  # joining and draining twice is once; leaving twice too, where it is given

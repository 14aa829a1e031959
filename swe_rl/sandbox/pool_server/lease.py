"""A lease: the right to one sandbox on some node, held by heartbeats, ended by close or expiry."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LeaseState(str, enum.Enum):
    """The life of a lease. All but CLOSED hold a slot of their node."""

    CREATING = "creating"  # written down before the node is asked, so a crash in between is known
    OPEN = "open"
    CLOSING = "closing"  # the container must go; until it is gone the slot is not free
    CLOSED = "closed"


@dataclass
class Lease:
    """One row of the book. Times are seconds since the epoch: they must survive a restart."""

    id: str
    allocate_key: str | None
    run: str
    instance_id: str
    image: str
    node: str  # URL of the exec server
    container_id: str
    state: LeaseState
    reason: str  # why it is closing or closed
    created_at: float
    changed_at: float  # of the state
    expires_at: float
    deadline_at: float  # heartbeats renew up to here, never beyond
    ttl: float
    claimed: bool = False  # an answer with this lease has left; until then nobody can be using it
    request: str = ""  # fingerprint of what was asked for; "" where an older server wrote the row

    @property
    def holds_slot(self) -> bool:
        return self.state is not LeaseState.CLOSED

    @property
    def container_name(self) -> str:
        """Known before the container is, so a container whose create was never answered can still be destroyed."""
        return f"swe-rl-{self.id}"

    def renew(self, now: float) -> None:
        """Live one more `ttl`, but not past the caller's deadline."""
        self.expires_at = min(now + self.ttl, self.deadline_at)

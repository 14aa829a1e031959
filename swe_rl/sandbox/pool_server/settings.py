"""What an operator may set on a pool server, in one place with units."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolSettings:
    """All times are in seconds."""

    database: str  # SQLite file; the only thing a restart needs
    pool_id: str = ""  # label of its containers; empty = made once and kept in the database
    token: str = ""  # bearer token that callers must show; "" = loopback only
    node_token: str = ""  # bearer token of the exec servers; usually the same one
    capacity: int = 15  # containers at once on a node that did not say otherwise
    probe_interval: float = 3.0  # between two looks at a healthy node
    probe_timeout: float = 10.0
    fail_threshold: int = 3  # failures in a row that quarantine a node
    ok_threshold: int = 2  # successes in a row that bring it back
    max_backoff: float = 30.0  # longest pause between looks at a quarantined node
    silent_after: float = (
        25.0  # a quarantined node that leaves requests unanswered so long is silent; restarts take less
    )
    tick_interval: float = 1.0  # expiry and retried destroys
    default_ttl: float = 120.0  # a lease without heartbeats lives this long
    deadline_grace: float = 60.0  # a lease may outlive its caller's deadline by this, to collect and close
    abandon_grace: float = 5.0  # a waiter whose connection was cut keeps its place this long
    settle: float = 20.0  # after an unanswered create the node's list is believed only after this long
    keep_closed: float = 3600.0  # closed leases stay on the book, so that late retries learn what happened

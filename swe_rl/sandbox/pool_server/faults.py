"""What the pool answers when it cannot do what it was asked."""

from __future__ import annotations

from swe_rl.sandbox.server.faults import ServerFault


class PoolFault(ServerFault):
    """The kinds that only a pool server knows."""

    SERVER = "pool"
    STATUS = ServerFault.STATUS | {
        "lease_unknown": 404,
        "image_missing": 404,
        "node_unknown": 404,
        "node_busy": 409,
        "lease_gone": 410,
        "image_unusable": 422,
        "node_error": 502,
        "node_unreachable": 502,
        "unavailable": 503,
    }
    RETRYABLE = ("node_unreachable", "internal")

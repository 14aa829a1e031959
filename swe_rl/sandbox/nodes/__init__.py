"""`swe-rl nodes`: set up, watch, fill and clean exec nodes over ssh."""

from __future__ import annotations


def main(argv: list[str]) -> int:
    """See `swe-rl nodes --help`."""
    from swe_rl.sandbox.nodes.command import main as run

    return run(argv)

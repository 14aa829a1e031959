"""The pool server: leases of sandboxes over a row of exec servers. It remembers on disk and leaks nothing."""

from __future__ import annotations


def main(argv: list[str]) -> int:
    """`swe-rl pool-server`: see `--help`."""
    from swe_rl.sandbox.pool_server.command import main as run

    return run(argv)

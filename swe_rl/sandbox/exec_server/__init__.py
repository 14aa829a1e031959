"""The exec server: asynchronous HTTP in front of one machine's container engine. The pool server sits on a row of them."""

from __future__ import annotations


def main(argv: list[str]) -> int:
    """`swe-rl exec-server`: see `--help`."""
    from swe_rl.sandbox.exec_server.command import main as run

    return run(argv)

"""`swe-rl train`: checks everything that can be checked at once and without heavy imports, then starts the owned driver."""

from __future__ import annotations

import sys

from swe_rl.cluster.supervise import run_supervised, stop_on_signals, supervised
from swe_rl.config.check import check_run, check_sizes
from swe_rl.config.load import load_config, naming_sources, print_and_exit_on_dry_run

DESCRIPTION = "Train a policy on tasks with GRPO. Give the same command again and an interrupted run continues."


def main(argv: list[str]) -> int:
    """The first process becomes the supervisor of the second, which is the driver."""
    loaded = load_config(argv, prog="swe-rl train", description=DESCRIPTION)
    with naming_sources(loaded):
        check_sizes(loaded.config)
        print_and_exit_on_dry_run(loaded)
        check_run(loaded.config)
    if not supervised():
        return run_supervised([sys.executable, "-m", "swe_rl", "train", *argv])
    stop_on_signals()
    from swe_rl.train import drive  # Ray and torch take seconds to import: a wrong flag must not wait for them

    drive(loaded.config)
    return 0

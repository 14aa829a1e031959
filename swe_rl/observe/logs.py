"""What a process of a run says of its work: warnings only, or in `debug_mode` everything."""

from __future__ import annotations

import logging

from swe_rl.config import Config

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def set_up_logging(config: Config) -> None:
    """Call it once in every process of a run. Without `debug_mode` Python's own rule holds: warnings go to stderr."""
    if config.debug_mode:
        logging.basicConfig(format=FORMAT)
        logging.getLogger("swe_rl").setLevel(logging.DEBUG)

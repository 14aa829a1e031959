"""`python -m swe_rl.sandbox.pool_server` is `swe-rl pool-server`."""

import sys

from swe_rl.cli import main

sys.exit(main(["pool-server", *sys.argv[1:]]))

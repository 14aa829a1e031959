"""`python -m swe_rl.sandbox.exec_server` is `swe-rl exec-server`."""

import sys

from swe_rl.cli import main

sys.exit(main(["exec-server", *sys.argv[1:]]))

"""`python -m swe_rl` is the same as `swe-rl`."""

import sys

from swe_rl.cli import main

sys.exit(main())

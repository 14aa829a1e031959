"""Run a foreign program that ends with the process that started it: `python -m swe_rl.sandbox.with_parent PROGRAM ...`."""

from __future__ import annotations

import os
import sys

from swe_rl.cluster.processes import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])

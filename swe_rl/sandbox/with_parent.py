"""Run a foreign program that ends with the process that started it: `python -m swe_rl.sandbox.with_parent PID PROGRAM ...`.

PID is that process: it may have ended before this one could ask to be told.
"""

from __future__ import annotations

import os
import sys

from swe_rl.cluster.processes import die_with_parent

if __name__ == "__main__":
    die_with_parent(parent=int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])

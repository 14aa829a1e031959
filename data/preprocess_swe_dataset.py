#!/usr/bin/env python3
"""Any SWE dataset into the JSONL that training reads; the same as `swe-rl data convert`, under the name the field knows.

    python data/preprocess_swe_dataset.py --train-data-source SumanthRH/SWE-Gym-Subset --train-split train --output-dir DIR

All its flags: --help.
"""

import sys

from swe_rl.errors import SweRlError, UsageError
from swe_rl.tasks.convert import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], prog="preprocess_swe_dataset.py"))
    except SweRlError as error:
        print(f"preprocess_swe_dataset.py: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        print(f"preprocess_swe_dataset.py: {error}", file=sys.stderr)
        sys.exit(1)

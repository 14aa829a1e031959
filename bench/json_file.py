"""Where `--json` of a bench writes: the folder is made before anything is measured, so that no figures get lost for it."""

from __future__ import annotations

import argparse
from pathlib import Path


def json_file(text: str) -> Path:
    """A path whose folder exists now; the type of the flag for argparse."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot make the folder {path.parent}: {error.strerror}") from None
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder; name a file")
    return path

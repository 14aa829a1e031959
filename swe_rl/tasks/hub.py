"""Rows of a Hugging Face dataset, where a hub can be reached and the `datasets` package is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from swe_rl.errors import DataError, UsageError
from swe_rl.tasks.rows import RawRow

_SECONDS = "20"  # of one request to the hub


def hub_rows(name: str, split: str) -> Iterator[RawRow]:
    """Stream `name`'s rows. Raises UsageError without `datasets`, DataError where the hub or the dataset is out of reach."""
    for variable in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        os.environ.setdefault(variable, _SECONDS)
    try:
        import datasets
    except ImportError:
        raise UsageError(
            "reading from a hub needs the datasets package: pip install datasets (or give a local file)"
        ) from None
    number = 0
    try:
        for row in datasets.load_dataset(name, split=split, streaming=True):
            number += 1
            yield RawRow(f"{name}[{split}]", number, dict(row))
    except Exception as error:  # datasets raises a dozen kinds for one meaning: these rows cannot be had
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        where = f" after row {number}" if number else ""
        raise DataError(
            f"dataset {name!r}, split {split!r}{where}: {reason}. If no hub can be reached from here, download the"
            " dataset elsewhere and give its file or folder"
        ) from error

"""Which of a dataset's data files belong to a split: hubs and downloaded folders say it in the files' paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from swe_rl.errors import DataError
from swe_rl.tasks.rows import SUFFIXES, RawRow, files_of, iter_rows

EVERY_CONFIG = ("", "default")  # "default" is what a dataset without configurations calls its only one


def files_of_split(files: list[str], split: str, config: str = "") -> list[str]:
    """The data files whose path has the split's name as a word (`data/train-00000-of-00002.parquet`), sorted.

    With `config` (`main/train-0.parquet`), the path must have that word too. One data file alone is its dataset's only
    split, whatever it is called.
    """
    data = sorted(file for file in files if file.lower().endswith(SUFFIXES) and not file.startswith("."))
    if len(data) == 1:
        return data
    if config not in EVERY_CONFIG:
        data = [file for file in data if _has_word(file, config)]
    return [file for file in data if _has_word(file, split)]


def _has_word(file: str, word: str) -> bool:
    return re.search(rf"(^|[/_.-]){re.escape(word)}([/_.-]|$)", file) is not None


def no_such_split(dataset: str, split: str, config: str, files: list[str]) -> DataError:
    """Names what was asked for and the first data files that are there."""
    of = "" if config in EVERY_CONFIG else f" of configuration {config!r}"
    data = [file for file in files if file.lower().endswith(SUFFIXES)]
    return DataError(
        f"{dataset} has no file for split {split!r}{of} (--split); its data files: {', '.join(data[:8]) or 'none'}"
    )


def split_rows(path: Path, split: str, config: str = "", columns: set[str] | None = None) -> Iterator[RawRow]:
    """Every row of one split of a folder; a file is its only split. Raises DataError where there is none."""
    if not path.is_dir():
        yield from iter_rows(path, columns)
        return
    names = [file.relative_to(path).as_posix() for file in files_of(path)]
    found = files_of_split(names, split, config)
    if not found:
        raise no_such_split(str(path), split, config, names)
    for name in found:
        yield from iter_rows(path / name, columns)

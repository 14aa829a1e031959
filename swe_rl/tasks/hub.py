"""Rows of a dataset on a Hugging Face hub: its data files are fetched into the hub's cache and read like local ones.

Only `huggingface_hub` is needed, which transformers brings. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HOME` work as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from swe_rl.errors import DataError
from swe_rl.tasks.rows import RawRow, iter_rows
from swe_rl.tasks.splits import files_of_split, no_such_split

CONVERTED = (
    "refs/convert/parquet"  # a branch in which hubs keep every public dataset as Parquet: <config>/<split>/0000.parquet
)
T = TypeVar("T")


def hub_rows(name: str, split: str, config: str = "", columns: set[str] | None = None) -> Iterator[RawRow]:
    """Every row of one split, of the configuration `config` where a dataset has several.

    Raises DataError where hub, dataset or split cannot be had; nothing is retried for ever.
    """
    from huggingface_hub import hf_hub_download

    revision, files = _files(name, split, config)
    for file in files:
        path = _asked(
            name,
            lambda file=file: hf_hub_download(name, file, repo_type="dataset", revision=revision),  # type: ignore[misc]
        )
        for row in iter_rows(path, columns):
            yield RawRow(f"{name}/{file}", row.line, row.value, row.problem)


def _files(name: str, split: str, config: str) -> tuple[str, list[str]]:
    """(revision, data files of the split): the repository's own where their names tell splits, else the hub's Parquet copy."""
    from huggingface_hub import HfApi

    own = _asked(name, lambda: HfApi().list_repo_files(name, repo_type="dataset"))
    if found := files_of_split(own, split, config):
        return "main", found
    try:
        converted = HfApi().list_repo_files(name, repo_type="dataset", revision=CONVERTED)
    except Exception:  # most private hubs keep none
        converted = []
    if found := files_of_split(converted, split, config):
        return CONVERTED, found
    raise no_such_split(f"dataset {name!r}", split, config, own)


def _asked(name: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:  # a dozen kinds of three libraries for one meaning: this dataset cannot be had
        from huggingface_hub import constants

        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        offline = " HF_HUB_OFFLINE is set." if constants.HF_HUB_OFFLINE else ""
        raise DataError(
            f"dataset {name!r} cannot be had from {constants.ENDPOINT}: {reason}.{offline} If no hub can be reached from"
            " here, download the dataset elsewhere and give its file or folder (--input)"
        ) from error

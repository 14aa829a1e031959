"""Model and optimizer to and from torch.distributed.checkpoint, on any number of ranks, without trusting the files.

The library pickles its index (`.metadata`) and may unpickle values named in it. Here the index goes through an
unpickler that knows the index's own classes only, and nothing but tensors is saved or loaded (design rule 10).
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from swe_rl.trainer.errors import CheckpointError

# What the library raises for broken files and full disks: any exception, or its own, which is no `Exception`.
FAILURES: tuple[type[BaseException], ...] = (Exception, CheckpointException)

_ALLOWED_MODULES = ("torch.distributed.checkpoint.metadata",)
_ALLOWED_NAMES = {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch._utils", "_get_device_module"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("collections", "OrderedDict"),
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        plain_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        own = module in _ALLOWED_MODULES and "." not in name
        if plain_dtype or own or (module, name) in _ALLOWED_NAMES:
            return super().find_class(module, name)
        raise CheckpointError(f"the index asks for {module}.{name}; only tensors may be in a checkpoint")


class _SafeReader(FileSystemReader):
    """A FileSystemReader whose index cannot run code."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _IndexUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise CheckpointError("the index is not one of torch.distributed.checkpoint")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def save_tensors(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write tensors (DTensors: each rank its part) below `folder` and wait until they are on disk. Collective."""
    dcp.save(tensors, storage_writer=FileSystemWriter(folder, sync_files=True))


def load_tensors(tensors: dict[str, torch.Tensor], folder: Path, *, optional: str = "\0") -> set[str]:
    """Fill `tensors` in place from `folder`, resharding where the number of ranks has changed. Collective.

    Names that begin with `optional` may be missing there; returns the names that were loaded. Raises CheckpointError
    where a tensor is missing, has another shape, or the files cannot be read.
    """
    reader = _SafeReader(folder)
    try:
        index = reader.read_metadata().state_dict_metadata
        present = {name: t for name, t in tensors.items() if name in index or not name.startswith(optional)}
        _compare(present, index, folder)
        dcp.load(present, storage_reader=reader)
    except CheckpointError:
        raise
    except FAILURES as error:
        raise CheckpointError(f"checkpoint '{folder}' cannot be read: {describe(error)}") from error
    return set(present)


def _compare(tensors: Mapping[str, torch.Tensor], index: Mapping[str, Any], folder: Path) -> None:
    for name, tensor in tensors.items():
        stored = index.get(name)
        if not isinstance(stored, TensorStorageMetadata):
            raise CheckpointError(f"checkpoint '{folder}' is of another model: it has no tensor {name}")
        if stored.size != tensor.size():
            raise CheckpointError(
                f"checkpoint '{folder}' is of another model: {name} is {tuple(stored.size)} there, "
                f"{tuple(tensor.size())} in hf_checkpoint"
            )


def describe(error: BaseException) -> str:
    """The innermost reason of a wrapped error in one line: torch.distributed.checkpoint hides it in a stack of its own."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    while isinstance(error.__cause__ or error.__context__, OSError):
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__

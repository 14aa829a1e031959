"""Named tensors over HTTP in the form SGLang's `/update_weights_from_tensor` takes: base64 of a pickled list of pairs.

Pickle can run code, so the receiving side never uses the plain unpickler: `decode_tensors` knows the four functions
that build a CPU tensor (its own bounded versions of them) and refuses every other name (design rule 10).
"""

from __future__ import annotations

import base64
import binascii
import collections
import io
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from swe_rl.errors import DataError

NamedTensors = list[tuple[str, torch.Tensor]]


def encode_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Base64 text of `pickle([(name, cpu tensor)])`. A view is copied first: pickling writes a tensor's whole storage."""
    pairs: NamedTensors = []
    for name, tensor in named:
        plain = tensor.detach().to("cpu").contiguous()
        if plain.untyped_storage().nbytes() != plain.numel() * plain.element_size():
            plain = plain.clone()
        pairs.append((name, plain))
    return base64.b64encode(pickle.dumps(pairs, protocol=pickle.HIGHEST_PROTOCOL)).decode("ascii")


def buckets(named: Iterable[tuple[str, torch.Tensor]], max_bytes: int) -> Iterator[NamedTensors]:
    """Split tensors into lists of at most `max_bytes` (a larger single tensor travels alone), so that bodies stay bounded."""
    bucket: NamedTensors = []
    size = 0
    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        if bucket and size + nbytes > max_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += nbytes
    if bucket:
        yield bucket


def _load_storage(data: bytes) -> Any:
    """A pickled tensor keeps its storage as bytes of torch.save: read with weights only, never as a free pickle."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _rebuild_tensor(
    storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_unused: Any
) -> torch.Tensor:
    """torch._utils._rebuild_tensor_v2 with bounds: sizes that reach past the storage would make torch allocate them."""
    untyped: torch.UntypedStorage = storage._untyped_storage
    numbers = (offset, *size, *stride)
    if len(size) != len(stride) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise DataError("weight update: a tensor has impossible sizes")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else offset - 1
    if (last + 1) * storage.dtype.itemsize > untyped.nbytes():
        raise DataError("weight update: a tensor reaches past its storage")
    return torch.empty(0, dtype=storage.dtype).set_(untyped, offset, torch.Size(size), tuple(stride))


def _rebuild_parameter(data: torch.Tensor, *_unused: Any) -> torch.Tensor:
    return data


_ALLOWED: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch.storage", "_load_from_bytes"): _load_storage,
    ("collections", "OrderedDict"): collections.OrderedDict,
}


class _TensorUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[(module, name)]
        except KeyError:
            raise DataError(f"weight update: the pickle asks for {module}.{name}; only tensors are accepted") from None

    def persistent_load(self, pid: Any) -> Any:
        raise DataError("weight update: the pickle refers to outside storage; only plain tensors are accepted")


def decode_tensors(text: str) -> NamedTensors:
    """The pairs inside `text`. Raises DataError for anything but a list of (name, CPU tensor)."""
    try:
        raw = base64.b64decode(text, validate=True)
        pairs = _TensorUnpickler(io.BytesIO(raw)).load()
    except DataError:
        raise
    except (binascii.Error, pickle.UnpicklingError) as error:
        raise DataError(f"weight update: not base64 of a pickled list of tensors ({error})") from error
    except Exception as error:  # a hostile pickle can raise anything from inside the unpickler
        raise DataError(f"weight update: the pickle is broken ({type(error).__name__}: {error})") from error
    if not isinstance(pairs, list):
        raise DataError("weight update: the pickle is not a list of (name, tensor)")
    for pair in pairs:
        if not (
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is torch.Tensor
        ):
            raise DataError("weight update: the pickle is not a list of (name, tensor)")
    return pairs

"""Weights over HTTP: what is encoded comes back bit-exact, and a hostile pickle runs nothing and allocates nothing."""

from __future__ import annotations

import base64
import io
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch

from swe_rl.engine.wire import buckets, decode_tensors, encode_tensors
from swe_rl.errors import DataError


def wire(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_round_trip_is_exact(dtype: torch.dtype) -> None:
    base = torch.randn(6, 5).to(dtype)
    sent = [
        ("whole", base),
        ("view", base[1:3].t()),
        ("scalar", base[0, 0]),
        ("empty", base[:0]),
        ("p", torch.nn.Parameter(base)),
    ]
    received = decode_tensors(encode_tensors(sent))
    assert [name for name, _ in received] == [name for name, _ in sent]
    for (_, a), (_, b) in zip(sent, received, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_a_view_does_not_carry_its_whole_storage() -> None:
    assert len(encode_tensors([("row", torch.zeros(1000, 1000)[3])])) < 20_000


def test_plain_pickle_of_other_clients_is_read() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(decode_tensors(wire([("w", tensor), ("p", torch.nn.Parameter(tensor))]))[1][1], tensor)


class Shell:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_code_in_the_pickle_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="system"):
        decode_tensors(wire([("w", Shell(tmp_path / "ran"))]))
    assert not (tmp_path / "ran").exists()


def test_code_in_the_inner_storage_pickle_does_not_run(tmp_path: Path) -> None:
    """A tensor's storage is a pickle of its own inside the pickle (torch.save): it must be read with weights only."""
    inner = io.BytesIO()
    torch.save(Shell(tmp_path / "ran"), inner)

    class Storage:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (inner.getvalue(),)

    with pytest.raises(DataError):
        decode_tensors(wire([("w", Storage())]))
    assert not (tmp_path / "ran").exists()


def test_a_tensor_may_not_reach_past_its_storage() -> None:
    storage = torch.zeros(4).storage()

    class Huge:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (storage, 0, (1 << 40,), (1,), False, {})

    with pytest.raises(DataError, match="past its storage"):
        decode_tensors(wire([("w", Huge())]))


@pytest.mark.parametrize(
    "call", [(eval, ("1",)), (getattr, ("a", "b")), (torch.load, ("x",)), (bytearray, (1 << 40,)), (torch.zeros, (3,))]
)
def test_every_other_name_is_refused(call: Any) -> None:
    class Call:
        def __reduce__(self) -> Any:
            return call

    with pytest.raises(DataError, match="only tensors"):
        decode_tensors(wire([("w", Call())]))


@pytest.mark.parametrize("value", [{}, [("w", 1)], [("w",)], [(1, torch.zeros(1))], "x", None, [["w", torch.zeros(1)]]])
def test_other_shapes_are_refused(value: Any) -> None:
    with pytest.raises(DataError, match="list of"):
        decode_tensors(wire(value))


@pytest.mark.parametrize("text", ["", "!!!", "AAAA", base64.b64encode(b"\x80\x05").decode()])
def test_rubbish_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        decode_tensors(text)


def test_truncated_pickles_are_refused() -> None:
    raw = base64.b64decode(encode_tensors([("w", torch.randn(3))]))
    positions = [position for _, _, position in pickletools.genops(raw) if position]
    for end in positions[:: max(1, len(positions) // 10)]:
        with pytest.raises(DataError):
            decode_tensors(base64.b64encode(raw[:end]).decode())


def test_buckets_are_bounded_and_complete() -> None:
    named = [(str(i), torch.zeros(n)) for i, n in enumerate((10, 10, 50, 5, 5))]
    parts = list(buckets(named, max_bytes=100))
    assert [[name for name, _ in part] for part in parts] == [["0", "1"], ["2"], ["3", "4"]]

"""Raw rows of a file or folder, one at a time, whatever holds them: JSONL, a JSON array, Parquet, each also in gzip.

Memory stays flat: lines are read one by one, arrays are decoded item by item, Parquet in batches sized by its row width.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from swe_rl.errors import DataError

MAX_ROW_BYTES = 64 << 20  # a longer line or array item is refused, not held
_CHUNK = 1 << 20
_HOPELESS_LINES = 1000  # a text file without one JSON object in its first lines holds none
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".jsonl.gz", ".json.gz", ".ndjson.gz")


@dataclass(frozen=True)
class RawRow:
    """One row as found. `value` is None where `problem` says why it could not be read."""

    file: str
    line: int  # 1-based: line of a text file, number of the row in arrays and Parquet
    value: dict[str, Any] | None
    problem: str = ""


def files_of(path: str | Path) -> list[Path]:
    """The data files that `path` names, sorted. Raises DataError where there is none."""
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if not path.is_dir():
        raise DataError(f"{path}: neither a file nor a folder")
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(SUFFIXES))
    found = [p for p in found if not any(part.startswith(".") for part in p.relative_to(path).parts)]
    found = [
        p for p in found if p.name not in ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
    ]
    if not found:
        raise DataError(f"{path}: no {', '.join(SUFFIXES[:4])} file below this folder")
    return found


def iter_rows(path: str | Path, columns: set[str] | None = None) -> Iterator[RawRow]:
    """Every row of a file or of a folder's files. `columns`: top-level Parquet columns to read (None = all).

    Raises DataError for a file that is missing, empty, or no form that is known.
    """
    for file in files_of(path):
        with file.open("rb") as stream:
            head = stream.read(4096)
        if not head:
            raise DataError(f"{file}: the file is empty")
        if head[:4] == b"PAR1":
            yield from _parquet(file, columns)
        elif head[:2] == b"\x1f\x8b":
            yield from _gzip(file)
        else:
            with file.open("rb") as stream:
                yield from _json_text(str(file), stream)


def _gzip(file: Path) -> Iterator[RawRow]:
    try:
        with gzip.open(file, "rb") as stream:
            yield from _json_text(str(file), stream)  # type: ignore[arg-type]
    except (OSError, EOFError) as error:
        raise DataError(f"{file}: damaged gzip file: {error}") from error


def _json_text(name: str, stream: BinaryIO) -> Iterator[RawRow]:
    head = stream.read(_CHUNK)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name}: UTF-16 text; convert the file to UTF-8")
    start = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    body = head[start:].lstrip()
    unknown = DataError(f"{name}: neither JSON lines, a JSON array nor Parquet (starts with {body[:16]!r})")
    if b"\x00" in head[:4096]:
        raise unknown
    stream.seek(start)
    if not _starts_lines(body):
        yield from _json_values(name, stream, array=body[:1] == b"[")
        return
    found = body[:1] in b"[{"
    for row in _json_lines(name, stream):
        found = found or row.value is not None
        if not found and row.line > _HOPELESS_LINES:
            break
        yield row
    if not found:
        raise unknown


def _starts_lines(body: bytes) -> bool:
    """Whether a text whose first non-blank characters are `body` has one row a line.

    Otherwise it is one array, or objects over several lines. A first line that is cut or no object must not decide: a
    line that starts with neither bracket can only be such a one, and what is whole in itself is a row where others follow.
    """
    first, _, rest = body.partition(b"\n")
    first, rest = first.strip(), rest.lstrip()
    if first == b"{":
        return rest[:1] == b"{"
    if first[:1] != b"[":
        return True
    try:
        json.loads(first if rest else b"")
    except (ValueError, RecursionError):
        return False
    return True


def _json_lines(name: str, stream: BinaryIO) -> Iterator[RawRow]:
    number = 0
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_CHUNK)
            yield RawRow(name, number, None, f"the row is longer than {MAX_ROW_BYTES >> 20} MB")
            continue
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            yield RawRow(name, number, None, f"not UTF-8: byte {line[error.start]:#04x} at {error.start}")
            continue
        except (ValueError, RecursionError) as error:
            cut = "" if line.endswith(b"\n") else " (the file ends inside this row)"
            yield RawRow(name, number, None, f"not JSON: {error}{cut}")
            continue
        yield _object(name, number, value)


def _object(name: str, number: int, value: Any) -> RawRow:
    if isinstance(value, dict):
        return RawRow(name, number, value)
    return RawRow(name, number, None, f"the row is {type(value).__name__}, not an object")


def _json_values(name: str, stream: BinaryIO, *, array: bool) -> Iterator[RawRow]:
    """Items of one array, or objects written one after another over several lines, decoded as the text comes in."""
    decoder, buffer, number, end = json.JSONDecoder(), "", 0, False
    opened = closed = False
    pending = b""
    while True:
        buffer = buffer.lstrip(" \t\r\n,")
        if array and buffer and not opened:
            opened, buffer = True, buffer[1:].lstrip(" \t\r\n,")
        if opened and not closed and buffer.startswith("]"):
            closed, buffer = True, buffer[1:].lstrip()
        if closed and buffer:
            yield RawRow(name, number + 1, None, f"not read: what follows the array's end ({buffer[:40]!r} ...)")
            return
        if buffer:
            try:
                value, used = decoder.raw_decode(buffer)
            except (ValueError, RecursionError) as error:
                if end or len(buffer) > MAX_ROW_BYTES:
                    yield RawRow(name, number + 1, None, f"not JSON from item {number + 1} on: {error}")
                    return
            else:
                buffer, number = buffer[used:], number + 1
                yield _object(name, number, value)
                continue
        if end:
            if opened and not closed:
                yield RawRow(name, number + 1, None, "the file ends inside the array: items may be missing")
            return
        chunk = stream.read(max(_CHUNK, len(buffer)))
        end = not chunk
        try:
            piece, pending = _decode(pending + chunk, end)
        except UnicodeDecodeError as error:
            yield RawRow(name, number + 1, None, f"not UTF-8 after item {number}: {error.reason}")
            return
        buffer += piece


def _decode(data: bytes, end: bool) -> tuple[str, bytes]:
    """Text of `data`, and the bytes of a character that the chunk's end cut."""
    try:
        return data.decode("utf-8"), b""
    except UnicodeDecodeError as error:
        if end or error.start < len(data) - 4:
            raise
        return data[: error.start].decode("utf-8"), data[error.start :]


def _parquet(file: Path, columns: set[str] | None) -> Iterator[RawRow]:
    import pyarrow
    import pyarrow.parquet as parquet

    number = 0
    try:
        # A buffered stream and no prefetch: a file of one huge row group is not held in memory.
        source = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_CHUNK)
        meta = source.metadata
        wanted = [n for n in source.schema_arrow.names if columns is None or n in columns]
        if not wanted:
            raise DataError(f"{file}: none of its columns is known: {', '.join(source.schema_arrow.names[:12])}")
        total = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
        per_row = max(1, total // max(1, meta.num_rows))
        size = int(min(1024, max(1, (8 << 20) // per_row)))
        for batch in source.iter_batches(batch_size=size, columns=wanted, use_threads=False):
            for value in batch.to_pylist():
                number += 1
                yield RawRow(str(file), number, value)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: damaged Parquet file (after row {number}): {str(error)[:200]}") from error

"""Writes ML.NET binary data views (``.idv``), after docs/formats/idv.md.

    with IdvWriter("iris.idv", rows_per_block=8192) as view:
        view.add("Label", labels)                                    # type from the NumPy dtype
        view.add("Features", matrix, metadata={"SlotNames": names})  # 2-D and more: vectors of known size
        view.add("Ragged", list_of_arrays)                           # vectors of unknown size
        view.add("Hashed", [Sparse(1 << 20, slots, values), …], vector("Single", 1 << 20))
        view.add("Species", numbers, key("UInt32", 3), metadata={"KeyValues": species})
        view.add("Name", texts)

Columns are encoded and written when they are added, block by block; header and tables are written at the end.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIGNATURE, TAIL = b"CML\0DVB\0", b"\0BVD\0LMC"
VERSION = 0x0001_0001_0001_0006  # 1.1.1.6
EPOCH = 621_355_968_000_000_000  # 1970-01-01 in ticks of 100 ns since 0001-01-01
COMPRESSIONS = {"none": 0, "deflate": 1}
PLAIN = {
    "SByte": "i1", "Byte": "u1", "Int16": "<i2", "UInt16": "<u2", "Int32": "<i4", "UInt32": "<u4", "Int64": "<i8",
    "UInt64": "<u8", "Single": "<f4", "Double": "<f8", "DataViewRowId": "<u8",
}
TIMES = {"DateTime": EPOCH, "DvDateTime": EPOCH, "TimeSpan": 0, "DvTimeSpan": 0}
ZONED = ("DateTimeOffset", "DvDateTimeZone")


@dataclass(frozen=True)
class Codec:
    """A codec by its name in the file; ``item`` is that of keys and vectors, ``size`` a vector's slots (0: unknown)."""

    name: str
    parameters: bytes = b""
    item: Codec | None = None
    size: int | None = None

    def described(self) -> bytes:
        return string(self.name) + varint(len(self.parameters)) + self.parameters


def key(item: str, count: int) -> Codec:
    """Return keys 1 … ``count``, 0 for missing; ``item`` is Byte, UInt16, UInt32 or UInt64."""
    return Codec("Key2", Codec(item).described() + struct.pack("<Q", count), Codec(item))


def old_key(item: str, count: int) -> Codec:
    """Return the same for old files; count 0 is unknown."""
    return Codec("Key", Codec(item).described() + struct.pack("<BQi", 1, 0, count), Codec(item))


def vector(item: str | Codec, *dimensions: int) -> Codec:
    """Return vectors; a dimension of 0, or none at all, is unknown."""
    codec = Codec(item) if isinstance(item, str) else item
    parameters = codec.described() + struct.pack(f"<{1 + len(dimensions)}i", len(dimensions), *dimensions)
    return Codec("VBuffer", parameters, codec, int(np.prod(dimensions)) if dimensions else 0)


class Sparse(NamedTuple):
    """A vector of ``length`` slots of which only some are stored; ``indices`` rise."""

    length: int
    indices: Sequence[int] | NDArray[Any]
    values: Any


class IdvWriter:
    """Writes the file at ``path``. All columns have the same number of rows, given by the first."""

    def __init__(
        self, path: str | os.PathLike[str], rows_per_block: int = 8192, compression: str = "deflate",
        rows: int | None = None,
    ) -> None:
        self.rows_per_block = rows_per_block
        self.rows = rows
        self.compression = compression
        self.toc: list[bytes] = []
        self._file = open(path, "wb")  # noqa: SIM115
        self._file.write(bytes(256))

    def __enter__(self) -> IdvWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self.finish()

    def add(
        self, name: str | bytes, values: Any, codec: Codec | str | None = None, *, compression: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a column. Metadata are values, or pairs of a value and its codec."""
        if self.rows is None:
            self.rows = len(values)
        if len(values) != self.rows:
            raise ValueError(f"column {name!r} has {len(values)} rows, not {self.rows}")
        chosen = Codec(codec) if isinstance(codec, str) else codec or guess(values)
        packing = compression or self.compression
        blocks = []
        for first in range(0, self.rows, self.rows_per_block):
            raw = encode(chosen, values[first : first + self.rows_per_block])
            stored = deflate(raw) if packing == "deflate" else raw
            blocks.append(struct.pack("<qii", self.write(stored), len(stored), len(raw)))
        lookup = self.write(b"".join(blocks))
        table = self._write_metadata(metadata or {}, packing)
        per_block = min(self.rows_per_block, self.rows) or 1
        self.toc.append(
            string(name) + chosen.described() + bytes([COMPRESSIONS[packing]]) + varint(per_block)
            + struct.pack("<qq", lookup, table)
        )

    def write(self, data: bytes) -> int:
        """Append bytes to the file and return their offset."""
        offset = self._file.tell()
        self._file.write(data)
        return offset

    def finish(self) -> None:
        """Write the table of contents, the tail and the header."""
        toc = self.write(b"".join(self.toc))
        tail = self.write(TAIL)
        self._file.seek(0)
        self._file.write(SIGNATURE + struct.pack("<QQqqqi", VERSION, VERSION, toc, tail, self.rows or 0, len(self.toc)))

    def _write_metadata(self, metadata: Mapping[str, Any], packing: str) -> int:
        entries = []
        for kind, given in metadata.items():
            value, codec = given if isinstance(given, tuple) else (given, None)
            codec = Codec(codec) if isinstance(codec, str) else codec or guess_value(value)
            raw = encode(codec, value[None] if isinstance(value, np.ndarray) else [value])
            shorter = min((raw, "none"), (deflate(raw), "deflate"), key=lambda form: len(form[0]))
            stored, form = shorter if packing == "deflate" else (raw, "none")
            entries.append(
                string(kind) + codec.described() + bytes([COMPRESSIONS[form]])
                + struct.pack("<q", self.write(stored)) + varint(len(stored))
            )
        return self.write(varint(len(entries)) + b"".join(entries)) if entries else 0


def guess(values: Any) -> Codec:
    """Return the codec of a column, from the NumPy dtype of its values or of its first non-empty row."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return vector(_scalar(values.dtype), *values.shape[1:]) if values.ndim > 1 else _scalar(values.dtype)
    if all(value is None or isinstance(value, str) for value in values):
        return Codec("TextSpan")
    row = next(row for row in values if len(row))
    return vector(Codec("TextSpan") if isinstance(row[0], str) else _scalar(np.asarray(row).dtype), 0)


def guess_value(value: Any) -> Codec:
    """Return the codec of a metadata value: a scalar, text, or a vector of the value's size."""
    if isinstance(value, str):
        return Codec("TextSpan")
    array = np.asarray(value)
    if array.dtype.kind == "U":
        return vector("TextSpan", array.size)
    return vector(_scalar(array.dtype), *array.shape) if array.ndim else _scalar(array.dtype)


def _scalar(dtype: np.dtype[Any]) -> Codec:
    names = {np.dtype(code): name for name, code in PLAIN.items() if name != "DataViewRowId"}
    kinds = {"b": "Boolean", "M": "DateTime", "m": "TimeSpan"}
    return Codec(kinds.get(dtype.kind) or names[dtype])


def encode(codec: Codec, rows: Any) -> bytes:
    """Encode a block of rows."""
    if codec.name != "VBuffer":
        return _run(codec, rows)
    item = codec.item or codec
    if isinstance(rows, np.ndarray) and rows.ndim > 1 and codec.size:
        return struct.pack("<ii", len(rows), codec.size) + b"\xff\xff\xff\xff" * len(rows) + bytes(4) + _run(item, rows)
    lengths = [row.length if isinstance(row, Sparse) else len(row) for row in rows]
    entries = [len(row.indices) if isinstance(row, Sparse) else -1 for row in rows]
    is_common = bool(lengths[0]) and len(set(lengths)) == 1
    indices = [np.asarray(row.indices, "<i4") for row in rows if isinstance(row, Sparse)]
    parts = [row.values if isinstance(row, Sparse) else row for row in rows]
    stored = np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [value for part in parts for value in part]
    head = [len(lengths), *([lengths[0]] if is_common else [0, *lengths]), *entries, sum(map(len, indices))]
    return np.array(head, "<i4").tobytes() + b"".join(part.tobytes() for part in indices) + _run(item, stored)


def _run(codec: Codec, values: Any) -> bytes:
    """Encode a run of values of one primitive codec."""
    if codec.name in ("Key", "Key2") and codec.item:
        return _run(codec.item, values)
    if codec.name == "TextSpan":
        return _texts(values)
    if codec.name == "Boolean":
        return np.packbits(np.asarray(values, bool), bitorder="little").tobytes()
    if codec.name == "DvBool":  # 2 is missing
        bits = np.zeros((-(-len(values) // 16) * 16, 2), bool)
        bits[: len(values)] = np.asarray(values)[:, None] >> [0, 1] & 1
        return np.packbits(bits, bitorder="little").tobytes()
    if codec.name in ZONED:  # pairs of local ticks and minutes
        ticks, minutes = zip(*values, strict=True) if len(values) else ((), ())
        return np.array(minutes, "<i2").tobytes() + np.array(ticks, "<i8").tobytes()
    if codec.name in TIMES:  # NumPy times, NaT is missing; integers are ticks
        array = np.asarray(values)
        if array.dtype.kind not in "mM":
            return array.astype("<i8").tobytes()
        shown = array.astype(f"{array.dtype.kind}8[100ns]").view("<i8")
        return np.where(np.isnat(array), shown, shown + TIMES[codec.name]).tobytes()
    return np.asarray(values).astype(PLAIN[codec.name], copy=False).tobytes()


def _texts(values: Iterable[str | None]) -> bytes:
    """Encode texts. None is a missing text, which only old writers mark."""
    given = list(values)
    joined = "".join(text or "" for text in given)
    lengths = [len(text or "") for text in given]
    if not joined.isascii():
        lengths = [len((text or "").encode("utf-16-le", "surrogatepass")) // 2 for text in given]
        joined = joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    ends = np.cumsum(lengths, dtype=np.int64).astype("<u4")
    ends[[index for index, text in enumerate(given) if text is None]] |= 0x8000_0000
    return struct.pack("<i", len(given)) + ends.tobytes() + string(joined)


def deflate(raw: bytes) -> bytes:
    """Raw DEFLATE."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(raw) + packer.flush()


def varint(value: int) -> bytes:
    """LEB128."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*packed, value])


def string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return varint(len(data)) + data

"""What the tests of ML.NET's data views share: looking at contents, and files made by hand."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from writers.idv import Codec, IdvWriter, string, varint

from glassfs.content import Container, Document
from tests.helpers import only

EPOCH = 621_355_968_000_000_000
NAT = -(1 << 63)
MIB = 1 << 20


def records(container: Container, name: str) -> list[Any]:
    content = only(container, name)
    return [row for block in range(content.blocks) for row in content.block(block)]


def schema(container: Container) -> dict[str, Any]:
    document = only(container, "meta/schema")
    assert isinstance(document, Document)
    value = document.value()
    assert isinstance(value, dict)
    return value


def same_bits(found: np.ndarray, expected: Any, dtype: str) -> None:
    expected = np.asarray(expected, dtype)
    assert found.dtype == np.dtype(dtype)
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def two_columns(view: IdvWriter) -> None:
    view.rows_per_block = 8
    view.add("A", np.arange(20.0))
    view.add("B", np.arange(40, dtype="f4").reshape(20, 2))


def entry(data: bytes, column: int, block: int) -> tuple[int, int, int]:
    """Where a lookup entry is, its block, and the block's length: of the first column, found by its known length."""
    toc = struct.unpack_from("<q", data, 24)[0]
    position = toc
    for _ in range(column + 1):
        for _ in range(3):  # name, codec, parameters; all short
            position += 1 + data[position]
        position += 2  # compression, rows per block below 128
        lookup = struct.unpack_from("<q", data, position)[0]
        position += 16
    place = lookup + 16 * block
    return place, *struct.unpack_from("<qi", data, place)


def raw_column(view: IdvWriter, block: bytes, codec: Codec, rows: int = 3) -> None:
    view.rows = rows
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    stored = packer.compress(block) + packer.flush()
    lookup = view.write(struct.pack("<qii", view.write(stored), len(stored), len(block)))
    view.toc.append(string("v") + codec.described() + b"\x01" + varint(rows) + struct.pack("<qq", lookup, 0))

"""Arrays stored otherwise than views show them: big-endian, in Fortran order, and as narrow floats."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassfs.cache import BlockCache
from glassfs.content import Array, Extent, Memory, array_as_stored, dtypes, npy
from glassfs.content.dtypes import NARROW, widened
from glassfs.errors import Damaged
from glassfs.library import arrays
from glassfs.view import canonical, data_of
from tests.content.test_data import check_ranges
from tests.helpers import local
from tests.optional import package

DTYPES = (
    "<f4", ">f4", ">f8", ">i2", ">u8", "|u1", "|b1", ">c8", ">U3", "|S5", ">M8[us]", ">m8[10ns]", "|V3",
    "[('a', '<i4'), ('b', '>f8')]", "[('x', '>u2', (2,)), ('y', [('z', '|u1'), ('', '|V3')])]",
)
SHAPES = ((), (0,), (7,), (3, 5), (1, 4), (4, 1, 3), (2, 3, 4, 5), (3, 0, 2))


def with_zeros(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Return the values as of another type; the bytes between fields are zeros."""
    found = np.zeros(values.shape, dtype)
    found[...] = values
    return found


def raw_of(values: np.ndarray[Any, Any]) -> bytes:
    return with_zeros(values, values.dtype).tobytes()


def made(dtype: str, shape: tuple[int, ...], order: Any) -> tuple[np.ndarray[Any, Any], Array]:
    """Return random values and an array of glassfs that stores them in this order."""
    kind = dtypes.parsed(dtype)
    count = int(np.prod(shape))
    raw = random.Random(str((dtype, shape))).randbytes(count * kind.itemsize)
    if kind.names:
        raw = with_zeros(np.frombuffer(raw, kind), kind).tobytes()
    if kind.kind in "bU":
        raw = np.arange(count).astype(kind).tobytes()
    values = np.frombuffer(raw, kind).reshape(shape, order=order)
    return values, array_as_stored(BlockCache(), ("version", dtype), b"x", Memory(raw), dtype, shape, order)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_data_are_in_c_order_and_little_endian(dtype: str, shape: tuple[int, ...], order: str) -> None:
    values, array = made(dtype, shape, order)
    assert dtypes.parsed(array.dtype) == values.dtype.newbyteorder("<")
    expected = with_zeros(values, values.dtype.newbyteorder("<")).tobytes()
    check_ranges(array.data, expected, random.Random(1))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_python_gets_the_stored_dtype(dtype: str, order: str) -> None:
    values, array = made(dtype, (4, 6), order)
    found = arrays.array_of(array, False)
    assert found is not None and found.dtype == values.dtype
    assert raw_of(found) == raw_of(values)
    assert found.flags.f_contiguous == (order == "F")
    rows = arrays.rows_of(array)
    assert rows is not None and rows.dtype == values.dtype
    assert raw_of(arrays.select(rows, np.s_[1:3, ::2])) == raw_of(values[1:3, ::2])
    assert raw_of(arrays.select(rows, -1)) == raw_of(values[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_npy_file_is_what_numpy_saves_of_the_converted_values(dtype: str) -> None:
    values, array = made(dtype, (4, 6), "F")
    saved = io.BytesIO()
    np.save(saved, with_zeros(values, values.dtype.newbyteorder("<")))
    data = data_of(array, BlockCache(), ("key",))
    assert data.whole() == saved.getvalue()


def test_npy_of_fields_with_names_beyond_latin_1() -> None:
    header = canonical.header("[('π', '<f4')]", (2,))
    assert np.load(io.BytesIO(header + bytes(8))).dtype.names == ("π",)


def test_stored_file_is_shown_unchanged() -> None:
    array = Array(b"x", Memory(bytes(8)), "<f8", (1,), file=Memory(b"the file"))
    assert data_of(array, BlockCache(), ("key",)).whole() == b"the file"


@pytest.mark.parametrize("shape", [(300, 11), (11, 300), (5, 7, 90), (2, 3000), (3, 2, 2, 200)], ids=str)
def test_large_arrays_are_transposed_in_pieces(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "BOX", 4 << 10)
    monkeypatch.setattr(npy, "SHORTEST_RUN", 64)
    values = np.arange(np.prod(shape), dtype=">i4").reshape(shape)
    data = Memory(values.tobytes(order="F"))
    cache = BlockCache(1 << 10)  # smaller than the array: it goes through a spool file
    array = array_as_stored(cache, ("version",), b"x", data, ">i4", shape, "F")
    check_ranges(array.data, values.astype("<i4").tobytes(), random.Random(2))


def test_stored_bytes_are_mapped_in_their_own_order(tmp_path: Path) -> None:
    values = np.arange(100_000, dtype=">f8").reshape(100, 1000)
    path = tmp_path / "values"
    path.write_bytes(values.tobytes(order="F"))
    source = local(path)
    data = Extent(source, 0, source.size)
    array = array_as_stored(BlockCache(), (source.version,), b"x", data, ">f8", values.shape, "F")
    found = arrays.array_of(array, False)
    assert found is not None and np.array_equal(found, values) and found.flags.f_contiguous
    assert not found.flags.owndata and not found.flags.writeable
    assert array.attributes()["dtype"] == ">f8" and array.attributes()["offset"] == "0"


def test_resolved_shape_makes_the_pass_that_finds_it() -> None:
    array = Array(b"x", Memory(bytes(8)), "<f8", lambda: (1,))
    assert array.known_shape is None and array.resolved_shape == (1,)


@pytest.mark.parametrize("description", ["<q9", "nonsense", "[('a', '<i4'", "[('a', '<i4'), ('a', '<i4')]", "[1]", "["])
def test_unknown_types_are_damage(description: str) -> None:
    with pytest.raises(Damaged):
        dtypes.parsed(description)


@pytest.mark.parametrize("kind", NARROW)
def test_every_value_is_that_of_ml_dtypes(kind: str) -> None:
    dtype = np.dtype(getattr(package("ml_dtypes"), kind))
    assert dtype.itemsize == NARROW[kind]
    stored = np.arange(256**dtype.itemsize, dtype=f"<u{dtype.itemsize}")
    expected = stored.view(dtype).astype("<f4")
    # Bit for bit, those of NaNs included; bytes of an incomplete value at the end do not count.
    data = widened(Memory(stored.tobytes() + b"x" * (dtype.itemsize - 1)), kind)
    check_ranges(data, expected.tobytes(), random.Random(2))

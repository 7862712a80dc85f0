"""NPY files: byte for byte what numpy.save writes."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from glassfs.cache import BlockCache
from glassfs.content import Array, Memory, Unreadable
from glassfs.errors import Damaged
from glassfs.view import data_of, file_of
from tests.view.views import KEY, PLACE, file_bytes

DTYPES = st.one_of(
    npst.boolean_dtypes(), npst.integer_dtypes(endianness="<"), npst.unsigned_integer_dtypes(endianness="<"),
    npst.floating_dtypes(endianness="<", sizes=(16, 32, 64)), npst.complex_number_dtypes(endianness="<"),
    st.sampled_from(["<m8[100ns]", "<M8[100ns]", "<M8[D]", "<U7", "|S5", "|V16"]).map(np.dtype),
)
SHAPES = npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)


def saved(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy notes that NPY 2.0 is newer
        np.save(file, array)
    return file.getvalue()


@given(DTYPES, SHAPES, st.data())
@settings(deadline=None)
def test_file_equals_what_numpy_saves(dtype: np.dtype[Any], shape: tuple[int, ...], data: st.DataObject) -> None:
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    array = np.frombuffer(raw, dtype).reshape(shape) if size else np.zeros(shape, dtype)
    content = Array(KEY, Memory(raw), dtype.descr[0][1], shape)
    assert file_bytes(content, ".npy") == saved(array)


@pytest.mark.parametrize("length", [1, 10**9, 10**18, 10**21, 10**25])
def test_header_leaves_the_same_space_as_numpy(length: int) -> None:
    """The first axis may grow to 21 digits; an array of that size cannot be made, its header can."""
    expected = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        expected, {"descr": "<f4", "fortran_order": False, "shape": (length, 3)},
    )
    header = expected.getvalue()
    shown = data_of(Array(KEY, Unreadable(12 * length, Damaged("not there")), "<f4", (length, 3)), BlockCache(), PLACE)
    assert shown.read(0, len(header)) == header
    assert shown.size == len(header) + 12 * length
    with pytest.raises(Damaged, match="not there"):
        shown.read(len(header) - 1, 2)


def test_headers_around_the_limit_of_npy_1() -> None:
    versions = set()
    for dimensions in range(21_790, 21_850):
        shape = (1,) * dimensions
        fields = {"descr": "<f8", "fortran_order": False, "shape": shape}
        expected = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                np.lib.format.write_array_header_1_0(expected, fields)
            except ValueError:
                np.lib.format.write_array_header_2_0(expected, fields)
        found = file_bytes(Array(KEY, Memory(bytes(8)), "<f8", shape), ".npy")
        assert found == expected.getvalue() + bytes(8)
        versions.add(found[6])
    assert versions == {1, 2}


def test_lazy_shape_is_found_when_size_is_needed() -> None:
    asked: list[int] = []

    def shape() -> tuple[int, ...]:
        asked.append(1)
        return (3,)

    content = Array(KEY, Memory(b"abc"), "|u1", shape)
    data = data_of(content, BlockCache(), PLACE)
    assert not data.is_sized
    assert not asked
    assert data.read(0, data.size) == saved(np.frombuffer(b"abc", "u1"))


def test_a_label_stands_before_the_extension() -> None:
    content = Array(KEY, Memory(bytes(2)), "<i2", (1,), label=".offset_minutes")
    assert file_of(content, BlockCache(), PLACE).suffix == ".offset_minutes.npy"

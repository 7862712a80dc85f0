"""Headers of NPY files in archives, against NumPy."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest

from glassfs.content import Array, Part
from glassfs.content import npy as header
from glassfs.library import arrays as library_arrays
from tests.formats.npz_files import npy, saved, zipped
from tests.helpers import file_data, only, open_bytes


def with_header(text: str, payload: bytes = bytes(64), version: bytes = b"\1\0") -> bytes:
    raw = text.encode("utf-8" if version == b"\3\0" else "latin1")
    length = len(raw).to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + length + raw + payload


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_of_the_header(version: tuple[int, int]) -> None:
    data = zipped(("a.npy", npy(np.arange(5), version)))
    assert only(open_bytes(data), "a").resolved_shape == (5,)


def literal(shape: str = "(8,)", descr: str = "'<f8'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


@pytest.mark.parametrize("text", [
    literal(), "{'shape': (8,), 'fortran_order': False, 'descr': 'f8'}", literal("(8L,)"), literal("(7,)") + "  \n",
    literal("(2, 4)", "'=f8'", "True"), literal(descr="[('x', '<f4'), ('y', '<f4')]"), literal(descr="'|S8'"),
])
def test_headers_that_numpy_reads(text: str) -> None:
    file = with_header(text)
    expected = np.load(io.BytesIO(file))
    content = only(open_bytes(zipped(("a.npy", file))), "a")
    found = library_arrays.array_of(content, False)
    assert found is not None and found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("text", [
    "", "{", "[]", "{'descr': '<f8'}", "__import__('os').getcwd()", "(" * 60000, "[" * 60000,
    literal(order="1"), literal("[8]"), literal("(9,)"), literal("(-1,)"), literal("(8.0,)"), literal("(True,)"),
    literal(descr="'O'"), literal(descr="'|O'"), literal("(1,)", "'<f9'"), literal(descr="[('a', 'O')]"),
    literal("()", "8"), literal("(4611686018427387904,)", "'|S0'"), literal("(1099511627776,)", "'|V0'"),
    literal(descr="9" * 60000), literal("(4611686018427387904, 4611686018427387904, 0)"), literal(f"({'1,' * 65})"),
    literal("(4294967296, 4294967296, 4294967296)"),
])
def test_headers_of_no_array_leave_the_file(text: str) -> None:
    assert_no_array(text)


@pytest.mark.parametrize("text", [
    literal(descr=r"'\d'"), literal("(1or 2,)"), literal("(0x1for,)"), literal(descr=r"b'\u1234'"), literal("1()"),
    literal(descr=r"'\400'"), literal("(8, 'x' is 1)"), literal(descr="'|a8'"), literal(descr="'(1,)f8'"),
    literal(descr="'1f8'"), literal(descr="'f8,f8'"), literal(descr="[('x', '<f4', 1), ('y', '<f4')]"),
    literal(descr="[('x', [('y', '|a8')])]"), literal(descr="{'names': ['x'], 'formats': ['<f8'], 'align': 1}"),
])
def test_headers_of_which_python_or_numpy_warn(text: str) -> None:
    assert_no_array(text)


def assert_no_array(text: str) -> None:
    """Check that the file is shown as it is, and that no warning reaches the user."""
    file = with_header(text)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        content = only(open_bytes(zipped(("a.npy", file))), "a.npy")
    assert isinstance(content, Part) and warned == []
    assert file_data(content).whole() == file


def test_names_of_fields_may_have_any_characters() -> None:
    """What looks like a number before a keyword, escapes, quotes."""
    fields = [("1or", "<f8"), ("in2is", "<i4"), ("a'b\"c\\", "<i4"), ("\u00e9\n\u4e2d", "<f4", (2, 1)), ("[(", "|S3")]
    values = np.zeros(3, fields)
    content = only(open_bytes(saved({"a": values})), "a")
    array = library_arrays.array_of(content, False)
    assert array is not None and array.dtype == values.dtype


def test_header_of_64_kib_is_the_longest(tmp_path: Path) -> None:
    fields = [(f"field{number:05d}", "<f4") for number in range(2000)]
    values = np.zeros(2, fields)
    for is_compressed in (False, True):
        assert isinstance(only(open_bytes(saved({"a": values}, is_compressed)), "a"), Array)
    assert header.length_of(with_header(" " * (70 << 10), version=b"\2\0")[: header.PREFIX]) is None

"""Headers of NPY files and damaged archives, against NumPy and zipfile: no wrong value is shown as a good one."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutants import Seed, damaged

from glassfs.content import Array, Content, Part
from glassfs.content import npy as header
from glassfs.errors import GlassfsError
from glassfs.library import arrays
from glassfs.library import arrays as library_arrays
from tests.conftest import Scale
from tests.formats import npz_files
from tests.formats.npz_files import npy, saved, streamed, with_zip64_end, zipped
from tests.helpers import contents_of, file_data, only, open_bytes


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
    literal(), "{'shape': (8,), 'fortran_order': False, 'descr': 'f8'}", literal("(7,)") + "  \n",
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
    literal(descr=r"'\d'"), literal("(1or 2,)"), literal("(0x1for,)"), literal(descr=r"b'\u1234'"), literal("1()"),
    literal(descr=r"'\400'"), literal("(8, 'x' is 1)"), literal("(8L,)"),
    literal(descr="'|a8'"), literal(descr="'(1,)f8'"),
    literal(descr="'1f8'"), literal(descr="'f8,f8'"), literal(descr="[('x', '<f4', 1), ('y', '<f4')]"),
    literal(descr="[('x', [('y', '|a8')])]"), literal(descr="{'names': ['x'], 'formats': ['<f8'], 'align': 1}"),
])
def test_headers_of_no_array_leave_the_file(text: str) -> None:
    """No warning of Python or NumPy reaches the user."""
    file = with_header(text)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        # What another test has left open may be collected meanwhile, whose warning is about no header.
        warnings.simplefilter("ignore", ResourceWarning)
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


SOUND = {
    "stored": saved(npz_files.arrays()), "deflated": saved(npz_files.arrays(), True),
    "episode": saved(npz_files.episode(), True), "descriptors": streamed(npz_files.arrays()),
    "ZIP64": with_zip64_end(saved({"a": np.arange(9), "b": np.asfortranarray(np.ones((3, 4), ">f4"))})),
    "small": zipped(("a.npy", npy(np.arange(5.0))), ("b.txt", b"text"), comment=b"comment"),
    "front": b"#!/bin/sh\n" + saved({"a": np.arange(9), "b": np.array(["x", "yz"])}, True),
}
REFUSALS = (zipfile.BadZipFile, ValueError, EOFError, OSError, RuntimeError, NotImplementedError, zlib.error, KeyError,
            struct.error, TypeError, SyntaxError, OverflowError, MemoryError, UnicodeError, AttributeError)


def by_zipfile(data: bytes) -> dict[str, bytes | None]:
    """Return the members that Python reads, None for those that it refuses; nothing of what it does not open."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except REFUSALS:
        return {}
    members: dict[str, bytes | None] = {}
    for info in archive.infolist():
        try:
            members[info.orig_filename] = archive.read(info.orig_filename) if info.file_size < 1 << 24 else None
        except REFUSALS:
            members[info.orig_filename] = None
    return members


def by_numpy(file: bytes) -> np.ndarray[Any, Any] | None:
    try:
        return np.load(io.BytesIO(file), allow_pickle=False)
    except REFUSALS:
        return None


def shown(data: bytes) -> dict[str, list[tuple[Content, bytes]]]:
    """Return the members that glassfs reads as a whole, by their names in the archive."""
    try:
        every = contents_of(open_bytes(data, "made.npz").root)
    except GlassfsError:
        return {}
    readable: dict[str, list[tuple[Content, bytes]]] = {}
    for name, contents in every.items():
        for content in contents:
            suffix = ".npy" if isinstance(content, Array) else ""
            try:
                file = file_data(content).whole()
            except GlassfsError:
                continue
            readable.setdefault(name.decode("utf-8", "surrogateescape") + suffix, []).append((content, file))
    return readable


@pytest.mark.parametrize("sound", SOUND)
@pytest.mark.filterwarnings("ignore")
def test_no_wrong_value_is_shown(sound: str, scale: Scale) -> None:
    chance, seeds = random.Random(sound), [Seed(name, data) for name, data in SOUND.items()]
    compared = refused = 0
    for number in range(scale(60, 500, 20_000)):
        data = damaged(SOUND[sound], seeds, chance)
        expected = by_zipfile(data)
        for name, files in shown(data).items():
            for content, file in files:
                # A checksum in the directory says that bytes are right, whatever else zipfile thinks of the archive.
                assert len(files) > 1 or expected.get(name) in (file, None), (number, name)
                refused += expected.get(name) is None
                if isinstance(content, Array):
                    values = by_numpy(file)
                    array = arrays.array_of(content, True)
                    assert values is not None and array is not None, (number, name)
                    assert array.dtype == values.dtype and array.shape == values.shape, (number, name)
                    assert array.tobytes() == values.tobytes() or array.dtype.names, (number, name)
                    compared += 1
    assert compared > 20 or sound == "small"
    assert refused < 5 * compared + 100

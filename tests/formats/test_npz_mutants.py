"""Damaged archives, each compared with what NumPy and zipfile read of it: no wrong value is shown as a good one."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest
from mutants import Seed, damaged

from glassfs.content import Array, Content
from glassfs.errors import GlassfsError
from glassfs.library import arrays
from tests.conftest import Scale
from tests.formats import npz_files
from tests.formats.npz_files import npy, saved, streamed, with_zip64_end, zipped
from tests.helpers import contents_of, file_data, open_bytes

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

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
SIGNATURES = b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"\x93NUMPY"
EDGES = (0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1)
REFUSALS = (zipfile.BadZipFile, ValueError, EOFError, OSError, RuntimeError, NotImplementedError, zlib.error, KeyError,
            struct.error, TypeError, SyntaxError, OverflowError, MemoryError, UnicodeError, AttributeError)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a copy with some bytes changed, most of them in headers and the directory, or a piece moved or lost."""
    changed = bytearray(data)
    places = [at for signature in SIGNATURES for at in found(data, signature)]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = min(len(changed) - 1, chance.choice(places) + chance.randrange(150))
        if chance.random() < 0.2:
            at = chance.randrange(len(changed))
        kind = chance.randrange(6)
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at] = chance.randrange(256)
        elif kind == 2:
            size = chance.choice((1, 2, 4, 8))
            changed[at : at + size] = (chance.choice(EDGES) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif kind == 3:
            number = int.from_bytes(changed[at : at + 2], "little") + chance.choice((-3, -1, 1, 2, 46))
            changed[at : at + 2] = (number & 0xFFFF).to_bytes(2, "little")
        elif kind == 4:
            del changed[at : at + chance.randrange(1, 40)]
        else:
            other = chance.choice(places)
            changed[at : at + 30] = changed[other : other + 30]
        if not changed:
            return b""
    return bytes(changed)


def found(data: bytes, signature: bytes) -> list[int]:
    places, at = [], data.find(signature)
    while at >= 0:
        places.append(at)
        at = data.find(signature, at + 1)
    return places


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
    chance = random.Random(sound)
    compared = refused = 0
    for number in range(scale(60, 500, 20_000)):
        data = damaged(SOUND[sound], chance)
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
    assert compared > 30 or sound == "small"
    assert refused < 5 * compared + 100

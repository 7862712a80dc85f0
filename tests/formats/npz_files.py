"""NPZ archives of all kinds, as NumPy writes them and as ZIP allows."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
STEPS = 12


def arrays() -> dict[str, NDArray[Any]]:
    """Return arrays of every kind that NumPy stores without a pickle."""
    chance = np.random.default_rng(1)
    text = np.array([["a", "bcd"], ["é", ""]])
    times = np.array(["2026-01-02", "NaT"], "M8[us]")
    return {
        "f4": chance.normal(size=(5, 3)).astype("<f4"), "big": chance.normal(size=(4, 3, 2)).astype(">f8"),
        "fortran": np.asfortranarray(chance.integers(0, 99, (4, 6)).astype("<i2")), "scalar": np.array(3.5),
        "big_fortran": np.asfortranarray(chance.integers(0, 99, (3, 4, 2)).astype(">u4")), "empty": np.zeros((0, 3)),
        "text": text, "big_text": text.astype(">U3"), "bytes": np.array([b"csr", b"x"]), "times": times,
        "big_times": times.astype(">M8[us]"), "spans": np.array([1, 2], "m8[10ns]"), "opaque": np.zeros(3, "V7"),
        "bits": np.array([True, False]), "complex": np.array([1 + 2j]), "half": np.arange(3, dtype="<f2"),
        "points": np.array([(1, 2.5), (3, -1.0)], [("x", "<i4"), ("y", ">f8")]),
        "padded": np.zeros(2, np.dtype({"names": ["a", "b"], "formats": ["u1", "<i4"], "offsets": [0, 4]})),
        "video": chance.integers(0, 256, (3, 8, 10, 3)).astype("u1"), "a/b": np.arange(3), "π": np.arange(2),
        "fortran_video": np.asfortranarray(chance.integers(0, 256, (3, 8, 10, 3)).astype("u1")),
    }


def episode() -> dict[str, NDArray[Any]]:
    chance = np.random.default_rng(2)
    return {
        "image": chance.integers(0, 256, (STEPS, 16, 16, 3)).astype("u1"),
        "action": chance.normal(size=(STEPS, 4)).astype("f4"),
        "reward": np.linspace(0, 1, STEPS, dtype="f4"),
        "is_first": np.arange(STEPS) == 0,
        "is_last": np.arange(STEPS) == STEPS - 1,
        "is_terminal": np.zeros(STEPS, bool),
        "log_distance": np.arange(STEPS, dtype="f8"),
        "episode_number": np.array(7),
    }


def saved(values: Arrays, is_compressed: bool = False) -> bytes:
    """Return what ``numpy.savez`` or ``numpy.savez_compressed`` writes."""
    file = io.BytesIO()
    (np.savez_compressed if is_compressed else np.savez)(file, **values)  # type: ignore[arg-type]
    return file.getvalue()


def npy(values: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version)
    return file.getvalue()


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], comment: bytes = b"", **options: Any) -> bytes:
    """Return a ZIP archive written by Python; ``options`` are those of ZipFile."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as archive:
        for name, data in members:
            archive.writestr(name, data)
        archive.comment = comment
    return file.getvalue()


class Unseekable(io.RawIOBase):
    """A pipe: ``zipfile`` writes data descriptors behind the members, as it cannot go back to their headers."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


def streamed(values: Arrays, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an archive whose members have data descriptors (docs/formats/npz.md §3)."""
    pipe = Unseekable()
    with zipfile.ZipFile(pipe, "w", method) as archive:
        for name, array in values.items():
            with archive.open(f"{name}.npy", "w") as member:
                member.write(npy(array))
    return bytes(pipe.data)


def with_zip64_end(data: bytes) -> bytes:
    """Return an archive with ZIP64's end record and locator, and 0xFFFF… in the other (docs/formats/npz.md §4)."""
    import struct

    place = data.rindex(b"PK\5\6")
    count, size, offset = struct.unpack_from("<HLL", data, place + 10)
    record = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, place, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:place] + record + locator + end

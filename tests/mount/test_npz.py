"""NPZ archives, mounted: files are the members of the archive, and damage costs only its member."""

from __future__ import annotations

import errno
import io
import os
import random
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.formats import npz_files
from tests.formats.npz_files import npy, saved, streamed, with_zip64_end, zipped
from tests.formats.test_npz import CRC, patched_entry
from tests.mount.conftest import Mounted
from tests.mount.mounts import Mount, opened

pytestmark = pytest.mark.slow

LARGE = np.random.default_rng(3).integers(0, 40, (2500, 1000))
"""20 MB; deflated, it goes through a spool file."""
ARCHIVES = (
    "stored.npz", "deflated.npz", "piped.npz", "front.npz", "zip64.npz", "replay.npz", "mixed.npz", "large.npz",
    "packed.npz",
)


@cache
def data_by_name() -> dict[str, bytes]:
    stored, deflated = saved(npz_files.arrays()), saved(npz_files.arrays(), True)
    return dict(zip(ARCHIVES, (
        stored, deflated, streamed(npz_files.arrays()), b"#!/bin/sh\n" + stored, with_zip64_end(stored),
        saved(npz_files.episode(), True),
        zipped(("a/b.npy", npy(LARGE[:9])), ("readme.txt", b"text"), comment=b"a comment"),
        saved({"stored": LARGE}), saved({"packed": LARGE, "small": LARGE[0]}, True),
    ), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("npz")
    for name, data in data_by_name().items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def archives(mounted: Mounted, folder: Path) -> object:
    with mounted(folder, options=["cache_size=8M", "views=parquet"]) as mount:
        yield mount


@pytest.mark.parametrize("name", ARCHIVES)
def test_files_are_the_members(archives: Mount, name: str) -> None:
    with zipfile.ZipFile(io.BytesIO(data_by_name()[name])) as archive:
        for member in archive.namelist():
            path = archives.path / name / member
            expected = archive.read(member)
            assert path.stat().st_size == len(expected)
            assert path.read_bytes() == expected
            if member.endswith(".npy"):
                found = np.load(path)
                values = np.load(io.BytesIO(expected))
                assert found.dtype == values.dtype and found.tobytes() == values.tobytes()


@pytest.mark.parametrize("path", ["large.npz/stored.npy", "packed.npz/packed.npy"])
def test_random_ranges(archives: Mount, path: str) -> None:
    expected, chance = npy(LARGE), random.Random(1)
    with opened(archives.path / path) as descriptor:
        for _ in range(60):
            start, size = chance.randrange(len(expected)), chance.choice((1, 100, 5000, 200_000, 3_000_000))
            assert os.pread(descriptor, size, start) == expected[start : start + size]


def test_attributes_say_where_members_are(archives: Mount) -> None:
    path = archives.path / "large.npz/stored.npy"
    found = {name: os.getxattr(path, f"user.glassfs.{name}") for name in ("key", "dtype", "shape", "codec", "checksum")}
    crc = zipfile.ZipFile(io.BytesIO(data_by_name()["large.npz"])).infolist()[0].CRC
    assert found == {
        "key": b"stored", "dtype": b"<i8", "shape": b"[2500, 1000]", "codec": b"none", "checksum": b"crc32:%08x" % crc,
    }
    offset = int(os.getxattr(path, "user.glassfs.offset"))
    assert data_by_name()["large.npz"][offset:].startswith(b"\x93NUMPY")
    assert os.getxattr(archives.path / "stored.npz/big_fortran.npy", "user.glassfs.dtype") == b">u4"


def test_damage_costs_its_member(mounted: Mounted, tmp_path: Path) -> None:
    """EIO with one line in the log; a stored member fails when it is read to its end."""
    for name, is_compressed in (("stored.npz", False), ("packed.npz", True)):
        data = saved({"good": LARGE[:50], "bad": LARGE[50:500]}, is_compressed)
        (tmp_path / name).write_bytes(patched_entry(data, b"bad.npy", CRC, "<L", 5))
    with mounted(tmp_path) as mount:
        for name in ("stored.npz", "packed.npz"):
            assert (mount.path / name / "good.npy").read_bytes() == npy(LARGE[:50])
            with pytest.raises(OSError) as caught:
                (mount.path / name / "bad.npy").read_bytes()
            assert caught.value.errno == errno.EIO
        lines = [line for line in mount.log_lines() if "bad.npy" in line]
        assert len(lines) == 2 and all("its checksum does not match" in line for line in lines)

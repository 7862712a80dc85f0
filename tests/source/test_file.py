"""File objects over sources, for libraries that want one."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from glassfs.errors import Damaged
from glassfs.source import SourceFile
from tests.helpers import CountingSource, opening
from tests.memory_store import MemoryStore

DATA = bytes(range(256)) * 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(DATA)
    return tmp_path / "x"


def test_it_reads_seeks_and_ends_like_a_file(path: Path) -> None:
    with opening(path).file() as file, path.open("rb") as real:
        assert file.readable() and file.seekable() and not file.writable()
        for one in (file, real):
            assert one.seek(-10, io.SEEK_END) == len(DATA) - 10
        assert file.read(100) == real.read(100) == DATA[-10:]
        assert file.read(1) == real.read(1) == b""
        assert file.seek(5) == 5 and file.read(7) == DATA[5:12] and file.tell() == 12
        assert file.seek(3, io.SEEK_CUR) == 15 and file.readline() == DATA[15:267]
        file.seek(len(DATA) + 9)
        assert file.read() == b""
        file.seek(0)
        assert file.read() == DATA
        with pytest.raises(ValueError, match="negative"):
            SourceFile(MemoryStore({"x": b""}).open(("x",))).seek(-1)


def test_libraries_read_through_it(tmp_path: Path) -> None:
    values = np.arange(1000.0)
    np.savez(tmp_path / "x.npz", a=values)
    with opening(tmp_path / "x.npz").file() as file, zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ["a.npy"]
    assert np.array_equal(np.load(opening(tmp_path / "x.npz").file())["a"], values)


def test_small_reads_cost_one_read_of_the_source(path: Path) -> None:
    source = CountingSource(path)
    with opening(source).file() as file:
        assert b"".join(file.read(10) for _ in range(100)) == DATA[:1000]
    assert len(source.reads) == 1
    assert source.read(0, 4) == DATA[:4]  # closing the file object has not closed the source
    source.close()


def test_file_objects_have_positions_of_their_own_and_take_siblings(path: Path) -> None:
    (path.parent / "y").write_bytes(b"sibling")
    given = opening(path)
    first, second = given.file(), given.file(given.sibling("y"))
    first.seek(100)
    assert second.read() == b"sibling"
    assert first.read(2) == DATA[100:102]
    first.close()
    with pytest.raises(ValueError, match="closed"):
        first.read(1)


def test_errors_of_the_source_are_also_errors_of_the_system(path: Path) -> None:
    given = opening(path)
    file = given.file()
    path.write_bytes(b"")
    with pytest.raises(OSError) as raised:
        file.read(10)
    assert isinstance(raised.value, (Damaged, OSError)) and str(path.name) in str(raised.value)

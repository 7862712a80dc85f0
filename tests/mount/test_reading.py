"""Bytes of mounted files by every way the kernel offers to read them, from one reader and from many at a time."""

from __future__ import annotations

import errno
import hashlib
import io
import mmap
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import Mount

# A slice of the container, blocks decoded into the cache and into a spool file, values gathered from records, rows.
KINDS = (
    "store.kas/big.npy", "store.kas/nodes/time.npy", "episode.wshard/signal/rgb.npy",
    "episode.wshard/signal/cloud.npy", "run.kdb/episodes/0/state.npy", "run.kdb/episodes/1/images/cam/000000.jpg",
    "table.idv/columns/Features.npy", "table.idv/columns/Text.jsonl",
)
ROUNDS = 150


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def ranges(size: int, seed: int = 0) -> Iterator[tuple[int, int]]:
    """Offsets and lengths, small and large, inside and across the end."""
    chosen = random.Random(seed)
    for _ in range(ROUNDS):
        yield chosen.randrange(size + 10), chosen.choice((1, 2, 7, 511, 4096, 5000, 131_072, 1_500_000))


@pytest.mark.parametrize("path", KINDS)
def test_random_positional_reads(shown: Mount, gallery: Gallery, path: str) -> None:
    expected = gallery.exact()[path]
    with opened(shown.path / path) as descriptor:
        for offset, length in ranges(len(expected)):
            assert os.pread(descriptor, length, offset) == expected[offset : offset + length]


@pytest.mark.parametrize("path", KINDS)
def test_random_reads_past_the_page_cache(shown: Mount, gallery: Gallery, path: str) -> None:
    """O_DIRECT: every read is a request of its own, of up to the largest size."""
    expected = gallery.exact()[path]
    with opened(shown.path / path, os.O_DIRECT) as descriptor:
        for offset, length in ranges(len(expected), seed=1):
            buffer = mmap.mmap(-1, length)
            count = os.preadv(descriptor, [buffer], offset)
            assert buffer[:count] == expected[offset : offset + length]


@pytest.mark.parametrize("path", KINDS)
def test_memory_map(shown: Mount, gallery: Gallery, path: str) -> None:
    expected = gallery.exact()[path]
    with opened(shown.path / path) as descriptor, mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
        assert len(mapped) == len(expected)
        for offset, length in ranges(len(expected), seed=2):
            assert mapped[offset : offset + length] == expected[offset : offset + length]


@pytest.mark.parametrize("path", KINDS)
def test_sendfile(shown: Mount, gallery: Gallery, path: str, tmp_path: Path) -> None:
    expected = gallery.exact()[path]
    target = tmp_path / "copy"
    with opened(shown.path / path) as descriptor, target.open("wb") as copy:
        offset = 0
        while count := os.sendfile(copy.fileno(), descriptor, offset, 100_000):
            offset += count
    assert target.read_bytes() == expected


def test_copy_file_range(shown: Mount, gallery: Gallery, tmp_path: Path) -> None:
    """The kernel may say that it does not copy between file systems, but it must not copy wrong bytes."""
    expected = gallery.exact()["store.kas/big.npy"]
    target = tmp_path / "copy"
    with opened(shown.path / "store.kas/big.npy") as descriptor, target.open("wb") as copy:
        try:
            while os.copy_file_range(descriptor, copy.fileno(), 1 << 20):
                pass
        except OSError as error:
            assert error.errno in (errno.EXDEV, errno.EOPNOTSUPP), error
            assert os.fstat(copy.fileno()).st_size == 0
            return
    assert target.read_bytes() == expected


def test_scattered_reads(shown: Mount, gallery: Gallery) -> None:
    expected = gallery.exact()["store.kas/big.npy"]
    with opened(shown.path / "store.kas/big.npy") as descriptor:
        for offset, length in ranges(len(expected), seed=3):
            parts = [bytearray(length), bytearray(3), bytearray(4096)]
            count = os.preadv(descriptor, parts, offset)
            assert b"".join(parts)[:count] == expected[offset : offset + length + 3 + 4096]


@pytest.mark.parametrize("path", ["store.kas/big.npy", "episode.wshard/signal/rgb.npy", "store.kas/empty.npy"])
def test_seeking(shown: Mount, gallery: Gallery, path: str) -> None:
    expected = gallery.exact()[path]
    size = len(expected)
    with opened(shown.path / path) as descriptor:
        assert os.lseek(descriptor, 0, os.SEEK_END) == size
        assert os.read(descriptor, 10) == b""
        assert os.lseek(descriptor, -5, os.SEEK_END) == size - 5
        assert os.read(descriptor, 10) == expected[-5:]
        assert os.lseek(descriptor, 3, os.SEEK_SET) == 3
        assert os.lseek(descriptor, 4, os.SEEK_CUR) == 7
        assert os.read(descriptor, 1) == expected[7:8]
        assert os.lseek(descriptor, 0, os.SEEK_DATA) == 0
        assert os.lseek(descriptor, 9, os.SEEK_HOLE) == size
        assert os.lseek(descriptor, size + 100, os.SEEK_SET) == size + 100
        assert os.read(descriptor, 10) == b""
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with pytest.raises(OSError) as caught:
                os.lseek(descriptor, size, whence)
            assert caught.value.errno == errno.ENXIO
        with pytest.raises(OSError) as caught:
            os.lseek(descriptor, -1, os.SEEK_SET)
        assert caught.value.errno == errno.EINVAL


def test_handles_have_positions_of_their_own(shown: Mount, gallery: Gallery) -> None:
    expected = gallery.exact()["store.kas/big.npy"]
    path = shown.path / "store.kas/big.npy"
    with opened(path) as first, opened(path) as second:
        os.lseek(second, 1000, os.SEEK_SET)
        assert os.read(first, 100) == expected[:100]
        assert os.read(second, 100) == expected[1000:1100]
        assert os.read(first, 100) == expected[100:200]


def checksums_by_threads(root: Path, paths: list[str]) -> dict[str, str]:
    def checksum(path: str) -> str:
        with (root / path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else \
                hashlib.sha256(file.read()).hexdigest()

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(paths, pool.map(checksum, paths), strict=True))


def checksums_by_processes(root: Path, paths: list[str]) -> dict[str, str]:
    done = subprocess.run(
        ["xargs", "-0", "-P8", "-n4", "sha256sum", "-z", "--"], input="\0".join(paths).encode(), cwd=root,
        capture_output=True, check=True,
    )
    lines = [line.split("  ", 1) for line in done.stdout.decode().split("\0") if line]
    return {path: digest for digest, path in lines}


@pytest.mark.parametrize("checksums", [checksums_by_threads, checksums_by_processes])
def test_parallel_checksums(
    mounted: Mounted, gallery: Gallery, checksums: Callable[[Path, list[str]], dict[str, str]],
) -> None:
    """A mount of its own, with nothing in its cache: eight readers ask for the same blocks at the same time."""
    expected = {path: hashlib.sha256(data).hexdigest() for path, data in gallery.exact().items()}
    paths = sorted(expected)
    with mounted(gallery.folder, options=["cache_size=8M"]) as mount:
        for start in (0, 3):
            assert checksums(mount.path, paths[start:] + paths[:start]) == expected


def test_eight_readers_of_one_file(mounted: Mounted, gallery: Gallery) -> None:
    """Each reads other ranges of the same two blocks: one kept in memory, one decoded into a spool file."""
    with mounted(gallery.folder / "episode.wshard", options=["cache_size=8M"]) as mount:

        def read(number: int) -> None:
            name = ("signal/cloud.npy", "signal/rgb.npy")[number % 2]
            expected = gallery.exact()[f"episode.wshard/{name}"]
            with opened(mount.path / name, os.O_DIRECT) as descriptor:
                for offset, length in ranges(len(expected), seed=number):
                    assert os.pread(descriptor, length, offset) == expected[offset : offset + length]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))


def test_arrays_open_as_memory_maps(shown: Mount, gallery: Gallery) -> None:
    arrays = {path: data for path, data in gallery.exact().items() if path.endswith(".npy")}
    assert len(arrays) > 20
    for path, data in arrays.items():
        expected = np.load(io.BytesIO(data))
        # NumPy cannot map an array without elements, from any file system.
        found = np.load(shown.path / path, mmap_mode="r" if expected.size else None)
        assert found.dtype == expected.dtype, path
        np.testing.assert_array_equal(found, expected, err_msg=path)


def test_frames_open_as_pictures(shown: Mount, gallery: Gallery) -> None:
    images = gallery.images()
    assert len(images) > 20
    for path, expected in images.items():
        with Image.open(shown.path / path) as image:
            image.verify()
        with Image.open(shown.path / path) as image:
            assert image.size == expected.shape[1::-1], path
            np.testing.assert_array_equal(np.asarray(image), expected, err_msg=path)


def test_stored_pictures_open_as_what_they_are(shown: Mount) -> None:
    for name, kind in (("000000.jpg", "JPEG"), ("000001.png", "PNG")):
        with Image.open(shown.path / "run.kdb/episodes/1/images/cam" / name) as image:
            image.load()
            assert image.format == kind


def test_any_range_of_a_frame(shown: Mount, gallery: Gallery) -> None:
    """A range of a picture that is made when it is read is that range of the whole picture."""
    path = shown.path / "episode.wshard/signal/rgb/000003.png"
    whole = path.read_bytes()
    with opened(path, os.O_DIRECT) as descriptor:
        for offset in range(0, len(whole), 3):
            assert os.pread(descriptor, 11, offset) == whole[offset : offset + 11]

"""Bytes of mounted files, read by one and by several readers in all ways of the kernel."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import Mount, opened

# A slice of the container; blocks decoded into the cache and into a spool file; values gathered from records; rows.
KINDS = (
    "store.kas/big.npy", "store.kas/nodes/time.npy", "episode.wshard/signal/rgb.npy",
    "episode.wshard/signal/cloud.npy", "run.kdb/episodes/0/state.npy", "run.kdb/episodes/1/images/cam/000000.jpg",
    "table.idv/columns/Features.npy", "table.idv/columns/Text.jsonl",
)
ROUNDS = 150


def ranges(size: int, seed: int = 0) -> Iterator[tuple[int, int]]:
    """Offsets and lengths, small and large, inside and across the end."""
    chosen = random.Random(seed)
    for _ in range(ROUNDS):
        yield chosen.randrange(size + 10), chosen.choice((1, 2, 7, 511, 4096, 5000, 131_072, 1_500_000))


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["cached", "direct"])
@pytest.mark.parametrize("path", KINDS)
def test_random_positional_reads(shown: Mount, gallery: Gallery, path: str, flags: int) -> None:
    """With O_DIRECT each read is a request of its own."""
    expected = gallery.files[path]
    with opened(shown.path / path, flags) as descriptor:
        for offset, length in ranges(len(expected), seed=flags):
            buffer = mmap.mmap(-1, length)
            count = os.preadv(descriptor, [buffer], offset)
            assert buffer[:count] == expected[offset : offset + length]


@pytest.mark.parametrize("path", KINDS)
def test_memory_map(shown: Mount, gallery: Gallery, path: str) -> None:
    expected = gallery.files[path]
    with opened(shown.path / path) as descriptor, mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
        assert len(mapped) == len(expected)
        for offset, length in ranges(len(expected), seed=2):
            assert mapped[offset : offset + length] == expected[offset : offset + length]


@pytest.mark.parametrize("path", ["store.kas/big.npy", "store.kas/empty.npy"])
def test_seeking(shown: Mount, gallery: Gallery, path: str) -> None:
    expected = gallery.files[path]
    size = len(expected)
    with opened(shown.path / path) as descriptor:
        assert os.lseek(descriptor, -5, os.SEEK_END) == size - 5
        assert os.read(descriptor, 10) == expected[-5:]
        assert os.lseek(descriptor, 0, os.SEEK_DATA) == 0
        assert os.lseek(descriptor, 9, os.SEEK_HOLE) == size
        assert os.lseek(descriptor, size + 100, os.SEEK_SET) == size + 100
        assert os.read(descriptor, 10) == b""
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with pytest.raises(OSError) as caught:
                os.lseek(descriptor, size, whence)
            assert caught.value.errno == errno.ENXIO


def checksums(root: Path, paths: list[str]) -> dict[str, str]:
    done = subprocess.run(
        ["xargs", "-0", "-P8", "-n4", "sha256sum", "-z", "--"], input="\0".join(paths).encode(), cwd=root,
        capture_output=True, check=True,
    )
    lines = [line.split("  ", 1) for line in done.stdout.decode().split("\0") if line]
    return {path: digest for digest, path in lines}


@pytest.mark.slow
def test_parallel_checksums(mounted: Mounted, gallery: Gallery) -> None:
    """Eight processes read the same blocks at the same time, with an empty cache."""
    expected = {path: hashlib.sha256(data).hexdigest() for path, data in gallery.files.items()}
    paths = sorted(expected)
    with mounted(gallery.folder, options=["cache_size=8M"]) as mount:
        for start in (0, 3):
            assert checksums(mount.path, paths[start:] + paths[:start]) == expected

"""64 readers of all formats at once get only right bytes, and the daemon's memory stays flat."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.connections import nodes_after_forgetting
from tests.mount.gallery import Gallery
from tests.waiting import wait_until

READERS = 64
WARM_UP = 10
GROWTH = 32 << 20
THREADS = 40
"""Limit for an idle daemon."""
NODES = 20
"""Limit of references: those of the root, of the status, and of concurrent processes."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_readers_get_only_right_bytes(mounted: Mounted, gallery: Gallery, scale: Scale) -> None:
    duration = scale(3, 10, 600)
    expected = gallery.exact()
    paths = sorted(expected)

    with mounted(gallery.folder, options=["cache_size=8M,max_open=2"]) as mount:

        def read(seed: int, seconds: float, least: int) -> int:
            chance = random.Random(seed)
            end = time.monotonic() + seconds
            count = 0
            while time.monotonic() < end or count < least:
                path = chance.choice(paths)
                data = expected[path]
                descriptor = os.open(mount.path / path, os.O_RDONLY)
                try:
                    # Otherwise the kernel answers most reads from the page cache.
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    if chance.random() < 0.5:
                        with os.fdopen(os.dup(descriptor), "rb") as file:
                            assert file.read() == data, path
                    else:
                        for _ in range(5):
                            offset = chance.randrange(len(data) + 1)
                            size = chance.choice((1, 100, 4096, 100_000))
                            assert os.pread(descriptor, size, offset) == data[offset : offset + size], (path, offset)
                finally:
                    os.close(descriptor)
                count += 1
            return count

        def load(seconds: float, least: int = 1) -> int:
            with ThreadPoolExecutor(READERS) as pool:
                return sum(pool.map(read, range(READERS), [seconds] * READERS, [least] * READERS))

        load(duration / 3, WARM_UP)
        memory, descriptors = mount.resident(), mount.descriptors()
        assert load(duration * 2 / 3) >= READERS
        assert mount.resident() - memory < GROWTH
        # The kernel sends the last releases asynchronously.
        wait_until(lambda: mount.descriptors() <= descriptors + 2)
        status = mount.status()
        assert status["errors"] == 0
        wait_until(lambda: mount.threads() < THREADS)
        assert status["cache"]["used"] <= status["cache"]["budget"]
        if os.geteuid() == 0:
            wait_until(lambda: nodes_after_forgetting(mount)["references"] < NODES)

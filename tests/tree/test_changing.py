"""Failures and changes under many readers: files of one version or an error, and no reader waits for another's source.

Tests of mounts cover the same with a kernel.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from glassfs.errors import Changed, Damaged, DeviceFailed, NotADirectory, NotFound
from glassfs.source import Path, Source
from glassfs.tree import Sources, Tree
from tests.memory_store import MemoryStore
from tests.tree.made import made
from tests.tree.trees import sources_of
from tests.waiting import wait_until

LENGTH = 40_000
CHANGES = 40
REFUSED = (Changed, NotFound, NotADirectory)


def version(number: int) -> bytes:
    """A container whose files have nothing but their version's number in them."""
    raw = bytes([number % 256]) * (LENGTH + number)
    return made({"raw": raw, "deep/packed.z": raw})


@contextmanager
def readers(tree: Tree, *paths: str) -> Iterator[Counter[str]]:
    """Threads that read files in parts all the time. What they see is counted; a mix is ``wrong``."""
    seen: Counter[str] = Counter()
    is_over = threading.Event()

    def read(path: str) -> None:
        while not is_over.is_set():
            try:
                node = tree.file(path)
                with node.origin.lease:
                    size = node.size
                    data = b"".join(node.read(offset, 7000) for offset in range(0, size, 7000))
                is_right = len(set(data)) == 1 and len(data) == size and data[0] == (size - LENGTH) % 256
                seen["right" if is_right else "wrong"] += 1
            except REFUSED as error:
                seen[type(error).__name__] += 1
            except Exception as error:
                seen["wrong"] += 1
                seen[repr(error)] += 1

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(read, paths[number % len(paths)]) for number in range(4)]
        try:
            yield seen
        finally:
            is_over.set()
        for one in running:
            one.result()


@pytest.mark.parametrize("name", ["", "some"], ids=["in a folder", "named"])
@pytest.mark.parametrize("change", [
    "put", *(pytest.param(change, marks=pytest.mark.slow) for change in ("rewrite", "cut and put", "remove and put")),
])
def test_readers_of_what_changes_never_see_a_mix(name: str, change: str) -> None:
    store = MemoryStore({"some": version(0)})
    store.delay = 0.002
    sources = sources_of(store, *filter(None, [name]))
    root = "" if name else "/some"
    paths = f"{root}/raw.bin", f"{root}/deep/packed.z.bin"
    with readers(sources.tree, *paths) as seen:
        for number in range(1, CHANGES + 1):
            if change.startswith("cut"):
                store.rewrite("some", version(number)[:1000])
                sources.refresh()
            if change.startswith("remove"):
                store.remove("some")
                sources.refresh()
            (store.rewrite if change == "rewrite" else store.put)("some", version(number))
            sources.refresh()
            before = sum(seen.values())
            wait_until(lambda before=before: sum(seen.values()) > before, what="another read")  # type: ignore[misc]
        wait_until(lambda: seen["right"], what="a whole read")
    assert seen["wrong"] == 0, seen
    sources.refresh()  # a reader may have been opening an old version until now
    for path in paths:
        assert sources.tree.file(path).size == LENGTH + CHANGES
    sources.tree.close()
    assert not store.held


def test_64_readers_of_a_damaged_block_get_an_error_each() -> None:
    """All of them wait for the one decode, which fails; the file beside it is fine."""
    whole = made({"bad.z": bytes(range(256)) * 300, "good.z": b"good" * 1000})
    place = whole.index(b"}") + 20
    store = MemoryStore({"some": whole[:place] + b"\xff\xff\xff\xff" + whole[place + 4 :]})
    tree = sources_of(store, "some").tree
    together = threading.Barrier(64)

    def read(_: int) -> str:
        together.wait(60)
        try:
            tree.file("/bad.z.bin").read(0, 100)
        except Damaged as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(64) as threads:
        said = set(threads.map(read, range(64)))
    assert len(said) == 1
    assert next(iter(said)).startswith("memory/some: bad.z: ")
    assert tree.file("/good.z.bin").read(0, 8) == b"goodgood"


def test_a_passing_device_failure_does_not_damage_blocks() -> None:
    store = MemoryStore({"some": made({"a.z": b"abc" * 100})})
    sources = sources_of(store, "some")
    node = sources.tree.file("/a.z.bin")
    store.reading["some"] = DeviceFailed("cannot be read", "memory/some")
    for _ in range(3):
        with pytest.raises(DeviceFailed):
            node.read(0, 3)
    store.reading.clear()
    assert node.read(0, 3) == b"abc"


class Stalled(MemoryStore):
    """A store whose file ``slow`` does not open before ``go`` is set."""

    def __init__(self) -> None:
        super().__init__({f"{number}": made(a=b"%d" % number) for number in range(300)} | {"slow": made(a=b"slow")})
        self.go = threading.Event()
        self.waiting = threading.Semaphore(0)

    def open(self, path: Path) -> Source:
        if path == ("slow",):
            self.waiting.release()
            assert self.go.wait(60)
        return super().open(path)


@pytest.mark.parametrize("wait_for", [
    lambda sources: sources.tree.lookup("/slow"), lambda sources: sources.tree.file("/slow/a.bin").read(0, 9),
], ids=["looked at", "opened"])
def test_a_stalled_file_delays_no_other(wait_for: Callable[[Sources], object]) -> None:
    """None of three hundred containers beside the one that does not come."""
    store = Stalled()
    sources = sources_of(store)
    with ThreadPoolExecutor(4) as threads:
        stalled = [threads.submit(wait_for, sources) for _ in range(4)]
        try:
            assert store.waiting.acquire(timeout=60)
            for number in range(300):
                assert sources.tree.file(f"/{number}/a.bin").read(0, 9) == b"%d" % number
            assert sources.refresh() == []
            assert not any(one.done() for one in stalled)
        finally:
            store.go.set()
        for one in stalled:
            one.result()
    assert sources.tree.file("/slow/a.bin").read(0, 9) == b"slow"

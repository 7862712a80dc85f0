"""Conformance tests for formats, to subclass: for built-in formats and those of other packages.

    class TestMine(FormatTests):
        format = mine.FORMAT

        def containers(self) -> Iterable[Path | bytes]:
            yield small_container()
            yield container_of_several_mib()

pytest collects the class, but nothing here needs pytest. Damage is random with a fixed seed, so that failures can be
reproduced. The sound containers should have every kind of content of the format, and one of them should be larger than
``LARGE`` bytes, most of it payload: laziness is measured on that one.
"""

from __future__ import annotations

import gc
import math
import os
import random
import tempfile
import time
import tracemalloc
import unittest
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path

from glassfs.cache import BlockCache
from glassfs.content import (
    Array,
    Collection,
    Container,
    Content,
    Data,
    Fields,
    Group,
    Image,
    Member,
    Omitted,
    Series,
    Stored,
    dtypes,
    members_of,
)
from glassfs.errors import Changed, GlassfsError
from glassfs.formats.registry import HEAD, Format, Head, Opening, built_in
from glassfs.lazy import np
from glassfs.source import Path as StorePath
from glassfs.source import Source
from glassfs.source.local import LocalStore
from glassfs.source.local_source import LocalSource
from glassfs.view import ALL, chosen, data_of, folder_of, has_file

LARGE = 1 << 20
PART = 64 << 10
MOST_MEMBERS = 500
MOST_DAMAGED_FILES = 60
OTHER_FILES = (b"", b"\0", bytes(HEAD), b"\xff" * HEAD, b"# notes\n" * 20, b"%PDF-1.7\n", b"\x7fELF\x02\x01\x01")


class WatchedSource(LocalSource):
    """A local file that counts the bytes that reads take from it."""

    bytes_read = 0
    read = Source.read  # by read_into

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.bytes_read += len(buffer)
        super().read_into(buffer, offset)


class WatchedStore(LocalStore):
    """A folder that opens files as ``WatchedSource``; ``opened`` are all of them, the container's own first."""

    @cached_property
    def opened(self) -> list[WatchedSource]:
        return []

    def open(self, path: StorePath) -> WatchedSource:
        self.opened.append(WatchedSource(self.open_descriptor, self.shown(path), path, self.entry(path)))
        return self.opened[-1]

    @property
    def bytes_read(self) -> int:
        return sum(source.bytes_read for source in self.opened)


class FormatTests(ABC):
    """The conformance tests of a format. Subclasses set ``format`` and implement ``containers``."""

    format: Format

    opening_share = 0.125
    """The part of a container larger than LARGE that opening may read."""

    damaged_copies = 60
    """Number of damaged copies of each sound container; a tenth of it for those larger than LARGE."""

    most_memory = 64 << 20
    """Peak memory in bytes for opening and reading a damaged container, the cache's budget included."""

    most_seconds = 10.0
    """CPU time for opening and reading one damaged container."""

    budget = 8 << 20
    """Budget of the block cache in bytes."""

    @abstractmethod
    def containers(self) -> Iterable[Path | bytes]:
        """Return sound containers: bytes, or paths, which are needed if neighboring files matter."""

    def damaged(self) -> Iterable[Path | bytes]:
        """Return containers with damage that is specific to the format."""
        return ()

    # Tests

    def test_recognises_only_its_own_files(self) -> None:
        for head in map(Head, OTHER_FILES):
            assert not self.format.recognises(head), f"recognises a file that starts with {head[:16]!r}"
        for path in self._paths():
            data = path.read_bytes()
            head = _head(path.name, data)
            found = {one.name for one in (self.format, *built_in()) if one.recognises(head)}
            assert found == {self.format.name}, f"{path.name} is recognised as {found}"
            for length in range(min(len(data), 128)):  # raises nothing
                cut = Head(data[:length], path.name)
                self.format.recognises(cut)
                self.format.hint(cut)

    def test_opening_is_lazy(self) -> None:
        measured = 0
        for path in self._paths():
            with self._opened(path) as (store, _):
                read, size = store.bytes_read, sum(source.size for source in store.opened)
                if size > LARGE:
                    measured += 1
                    assert read <= size * self.opening_share, f"{path.name}: opening reads {read} of {size} bytes"
        if not measured:
            raise unittest.SkipTest(f"no container is larger than {LARGE} bytes")

    def test_contents_are_what_they_say(self) -> None:
        for path in self._paths():
            with self._opened(path) as (_, container):
                assert container.format == self.format.name
                for name, content in walk(container.root):
                    assert {type(part) for part in (*name, content.key)} == {bytes}, f"{name}: or its key is not bytes"
                    assert name, "a content has no name"
                    try:
                        _check(content, BlockCache(self.budget))
                    except AssertionError as error:
                        raise AssertionError(f"{_shown(name)}: {error}") from error
                faults = [f"{fault.place}: {fault.reason}" for fault in container.check()]
                assert not faults, f"{path.name}: {faults[:3]}"

    def test_bytes_are_the_same_when_opened_again(self) -> None:
        """Sizes that are known cost no reading, and threads read what the other container has as a whole."""
        for path in self._paths():
            with self._opened(path) as (store, first), self._opened(path) as (_, second):
                sized = [(name, data) for (name, _), data in self._files(first) if data.is_sized]
                read = store.bytes_read
                for name, data in sized:
                    assert data.size >= 0 and store.bytes_read == read, f"{_shown(name)}: its size is known, but read"
                jobs = []
                files = zip(self._files(first, ALL), self._files(second, ALL), strict=True)
                for ((name, content), data), (again, other) in files:
                    assert (name, type(content), content.key) == (again.name, type(again.content), again.content.key)
                    whole = data.read(0, data.size)
                    assert len(whole) == data.size == other.size, f"{_shown(name)}: not as many bytes as announced"
                    jobs += [(name, other, start, whole[start:end]) for start, end in _ranges(len(whole))]
                random.Random(2).shuffle(jobs)
                with ThreadPoolExecutor(8) as threads:
                    reads = threads.map(lambda job: job[1].read(job[2], len(job[3])), jobs)
                    for (name, _, start, part), found in zip(jobs, reads, strict=True):
                        assert found == part, f"{_shown(name)}: wrong bytes in {len(part)} from {start} on"

    def test_nothing_stays_open(self) -> None:
        for path in self._paths():
            with self._opened(path) as (store, container):
                for _, data in self._files(container):
                    data.read(0, min(PART, data.size))
                assert container.sources[0] is store.opened[0], "a container's sources begin with its own"
                container.close()
                for source in store.opened:
                    with suppress(Changed):
                        source.read_into(memoryview(bytearray(1)), 0)
                        raise AssertionError("a source is open after Container.close")
            del store, container, source, data
            gc.collect()
            for name in os.listdir("/dev/fd"):
                with suppress(OSError):  # the descriptor of the listing
                    is_open = os.path.samestat(os.fstat(int(name)), os.stat(path))
                    assert not is_open, "a file is open after Container.close"

    def test_damage_raises_only_errors_of_glassfs(self) -> None:
        for number, container in enumerate(self.damaged()):
            data = container if isinstance(container, bytes) else container.read_bytes()
            self._survive("damaged", data, f"damaged container {number}")
        for path in self._paths():
            whole, chance = path.read_bytes(), random.Random(4)
            copies = self.damaged_copies // (10 if len(whole) > LARGE else 1)
            for cut in {*range(min(len(whole), copies, 16)), *(chance.randrange(len(whole)) for _ in range(copies))}:
                self._survive(path.name, whole[:cut], f"cut to {cut} bytes")
            for number in range(copies):
                self._survive(path.name, _changed(whole, chance), f"damaged copy {number}")

    # Helpers

    def _paths(self) -> Iterator[Path]:
        """Yield the sound containers as files; those given as bytes get a name without a suffix."""
        containers = [*self.containers()]
        assert containers, "containers() returns none"
        with tempfile.TemporaryDirectory() as folder:
            for number, container in enumerate(containers):
                path = Path(folder, f"container{number}")
                if isinstance(container, bytes):
                    path.write_bytes(container)
                yield path if isinstance(container, bytes) else container

    @contextmanager
    def _opened(self, path: Path) -> Iterator[tuple[WatchedStore, Container]]:
        store = WatchedStore(path.parent)
        try:
            source = store.open((path.name,))
            container = self.format.open(Opening(source, BlockCache(self.budget), store, (path.name,)))
            yield store, container
            container.close()
        finally:
            for source in store.opened:
                source.close()
            store.close()

    def _files(self, container: Container, views: str = "") -> Iterator[tuple[Member, Data]]:
        """Yield the files of all contents, and those of these views."""
        cache = BlockCache(self.budget)
        for number, place in enumerate(walk(container.root)):
            for data in _shown_as(place.content, cache, number, views):
                yield place, data

    def _survive(self, name: str, data: bytes, what: str) -> None:
        """Open and read a damaged container: only GlassfsError may be raised, in bounded time and memory."""
        if not self.format.recognises(_head(name, data)):
            return  # glassfs would never open it
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_bytes(data)
            tracemalloc.start()
            start = time.process_time()
            try:
                with suppress(GlassfsError), self._opened(path) as (_, container):
                    cache = BlockCache(self.budget)
                    for number, place in enumerate(islice(walk(container.root, is_damaged=True), MOST_DAMAGED_FILES)):
                        with suppress(GlassfsError):
                            place.content.attributes()
                            for file in _shown_as(place.content, cache, number, ALL):
                                _read_some(file)
                    for _ in islice(container.check(), MOST_MEMBERS):
                        pass
            except Exception as error:
                raise AssertionError(f"{name}, {what}: {type(error).__name__}: {error}") from error
            finally:
                seconds = time.process_time() - start
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
        assert peak <= self.most_memory, f"{name}, {what}: {peak} bytes of memory"
        assert seconds <= self.most_seconds, f"{name}, {what}: {seconds:.1f} s"


def walk(root: Collection, is_damaged: bool = False) -> Iterator[Member]:
    """Yield all contents below ``root``, in order, under the names of all groups above them and their own.

    For damaged containers, skip groups that raise GlassfsError, and all but the first members of large groups.
    """
    waiting = [Member((), root)]
    while waiting:
        name, content = waiting.pop()
        if content is not root:
            yield Member(name, content)
        inner: list[Member] = []
        with suppress(*[GlassfsError] * is_damaged):
            if isinstance(content, Collection):
                for below, one in islice(members_of(content), MOST_MEMBERS if is_damaged else None):
                    inner.append(Member((*name, *below), one))
        waiting += reversed(inner)


def _check(content: Content, cache: BlockCache) -> None:
    """Raise AssertionError unless a content has the sizes, kinds and members that it announces."""
    if isinstance(content, Array):
        dtype, shape, stored = dtypes.parsed(content.dtype), content.resolved_shape, content.stored
        descriptions = {dtypes.description_of(dtype), dtypes.little_endian(content.dtype)}
        assert descriptions == {content.dtype}, f"is no descr, or big-endian: {content.dtype}"
        sizes = {content.data.size, stored.data.size, stored.rows.size}
        assert sizes == {math.prod(shape) * dtype.itemsize}, "wrong size"
        values = np.ndarray(shape, dtypes.parsed(stored.dtype), stored.data.whole(), order=stored.order)
        assert values.astype(dtype).tobytes() == content.data.whole(), "converted to other values"
    elif isinstance(content, Image):
        pixels = content.width * content.height * content.channels
        assert content.data.size == pixels * content.bits // 8, "wrong size"
    elif isinstance(content, Omitted):
        assert content.is_damage or ": " in content.reason, f"has no kind: {content.reason!r}"
        assert content.reason and "\n" not in content.reason, f"not one line: {content.reason!r}"
    elif isinstance(content, Fields):
        for number, name in enumerate(content.outline.names):
            field = content.item(name)
            is_collection = number < content.outline.collections
            assert isinstance(field, Collection) == is_collection, f"{name!r}: not as the outline says"
            assert folder_of(field) is None, f"{name!r}: a video needs a folder, and fields have none"
    elif isinstance(content, Group) and content.find is not None:
        members = [(member.name, type(member.content), member.content.key) for member in content.members()]
        for name in {name[0] for name, _, _ in members} | {b"no member"}:
            found, below = content.find(name), [member for member in members if member[0][0] == name]
            what = f"finds {name!r}, which is not the only member of this name"
            assert found is None or below == [((name,), type(found), found.key)], what
    elif isinstance(content, Series) and (content.sizes is not None or content.is_uniform):
        items = [content.item(number) for number in content.numbers]
        lengths = [item.data.size for item in items if isinstance(item, Stored)]
        assert len(lengths) == len(items), "not only bytes"
        if content.sizes is not None:
            assert list(content.sizes(0, len(items))) == lengths, "other sizes"
            assert list(content.sizes(1, 3)) == lengths[1:3], "other sizes in a part of it"
        if content.is_uniform:
            shown = {data_of(item, cache, (content.key, number)).size for number, item in enumerate(items)}
            assert max(len(set(lengths)), len(shown)) <= 1, "sizes differ"


def _read_some(data: Data) -> None:
    with suppress(GlassfsError):
        size = data.size
        for start in {0, size // 2, max(0, size - PART)}:
            data.read(start, min(PART, size - start))


def _shown_as(content: Content, cache: BlockCache, number: int, views: str) -> Iterator[Data]:
    """Yield the file of a content, and those that views make of it."""
    if has_file(content):
        yield data_of(content, cache, (number,))
    for shown in chosen(views).shown(content, cache, (number,), lambda view, error: None):
        if isinstance(shown.thing, Data):
            yield shown.thing


def _head(name: str, data: bytes) -> Head:
    return Head(data[:HEAD], name, len(data), lambda offset, size: data[offset : offset + size])


def _ranges(size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of a file, short and long: they begin at its first and last byte, at each part, and anywhere."""
    chance = random.Random(size)
    anywhere = [chance.randrange(size) for _ in range(12)] if size else []
    for start in (max(0, size - 1), *range(0, size, PART), *anywhere):
        for length in (1, PART, chance.choice((7, 300, 5000, 8 * PART))):
            yield start, min(size, start + length)


def _changed(whole: bytes, chance: random.Random) -> bytes:
    """Return a copy with a few bytes changed, mostly near its ends, where headers and indexes are."""
    changed = bytearray(whole)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        # Headers and indexes are short, so random places in the whole file would mostly hit payload.
        at = chance.randrange(min(len(whole), chance.choice((64, 512, 4096, len(whole)))))
        at = at if chance.random() < 0.7 else len(whole) - 1 - at
        new = chance.choice((chance.randbytes(8), bytes(8), b"\xff" * 7 + b"\x7f", b"\xff" * 8, bytes(5) + b"\x08\0\0"))
        new = new[-chance.choice((1, 4, 8)) :][: len(whole) - at]
        changed[at : at + len(new)] = new
    return bytes(changed)


def _shown(name: Sequence[bytes]) -> str:
    return b"/".join(name).decode("utf-8", "backslashreplace")

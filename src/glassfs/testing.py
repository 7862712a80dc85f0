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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.opened: list[WatchedSource] = []

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

    def test_is_recognised_by_its_first_bytes(self) -> None:
        for path in self._paths():
            data = path.read_bytes()
            head = _head(path.name, data)
            assert self.format.recognises(head), f"{path.name} is not recognised by its first {len(head)} bytes"
            others = [other.name for other in built_in() if other.name != self.format.name and other.recognises(head)]
            assert not others, f"{path.name} is also recognised by {', '.join(others)}"
            for length in range(min(len(data), 128)):  # raises nothing
                cut = Head(data[:length], path.name)
                self.format.recognises(cut)
                self.format.hint(cut)

    def test_does_not_recognise_other_files(self) -> None:
        for head in map(Head, OTHER_FILES):
            assert not self.format.recognises(head), f"recognises a file that starts with {head[:16]!r}"

    def test_opening_is_lazy(self) -> None:
        measured = 0
        for path, store, _ in self._all_opened():
            read, size = store.bytes_read, sum(source.size for source in store.opened)
            if size > LARGE:
                measured += 1
                assert read <= size * self.opening_share, f"{path.name}: opening reads {read} of {size} bytes"
        if not measured:
            raise unittest.SkipTest(f"no container is larger than {LARGE} bytes")

    def test_known_sizes_cost_no_reading(self) -> None:
        for _, store, container in self._all_opened():
            for place, data in self._files(container):
                if data.is_sized:
                    before = store.bytes_read
                    size = data.size
                    assert size >= 0, f"{_shown(place)} has the size {size}"
                    assert store.bytes_read == before, f"{_shown(place)}: its size is known, but reads the file"

    def test_names_and_keys_are_bytes(self) -> None:
        for place in self._all_contents():
            assert place.name, "a content has no name"
            types = {type(part) for part in (*place.name, place.content.key)}
            assert types == {bytes}, f"{place.name}: its name or its key are not bytes"

    def test_is_the_same_when_opened_again(self) -> None:
        for path in self._paths():
            listings = []
            for _ in range(2):
                with self._opened(path) as (_, container):
                    assert container.format == self.format.name
                    listings.append([
                        (place.name, type(place.content), place.content.key, data.size)
                        for place, data in self._files(container)
                    ])
            assert listings[0] == listings[1]

    def test_arrays_and_images_have_the_size_of_their_shape(self) -> None:
        for place in self._all_contents():
            content = place.content
            if isinstance(content, Array):
                dtype, shape, stored = dtypes.parsed(content.dtype), content.resolved_shape, content.stored
                assert dtypes.description_of(dtype) == content.dtype, f"{_shown(place)}: no descr: {content.dtype}"
                assert dtypes.little_endian(content.dtype) == content.dtype, f"{_shown(place)}: is big-endian"
                sizes = {content.data.size, stored.data.size, stored.rows.size}
                assert sizes == {math.prod(shape) * dtype.itemsize}, f"{_shown(place)}: wrong size"
                values = np.ndarray(shape, dtypes.parsed(stored.dtype), stored.data.whole(), order=stored.order)
                converted = values.astype(dtype).tobytes()
                assert converted == content.data.whole(), f"{_shown(place)}: converted to other values"
            elif isinstance(content, Image):
                pixels = content.width * content.height * content.channels
                assert content.data.size == pixels * content.bits // 8, f"{_shown(place)}: wrong size"

    def test_omitted_members_have_a_reason_that_begins_with_the_kind(self) -> None:
        for name, content in self._all_contents():
            if isinstance(content, Omitted):
                assert content.is_damage or ": " in content.reason, f"{name}: {content.reason!r} has no kind"
                assert content.reason and "\n" not in content.reason, f"{name}: not one line: {content.reason!r}"

    def test_fields_are_what_their_outline_says(self) -> None:
        for _, fields in self._all_contents():
            if isinstance(fields, Fields):
                for number, name in enumerate(fields.outline.names):
                    content = fields.item(name)
                    is_collection = number < fields.outline.collections
                    assert isinstance(content, Collection) == is_collection, f"{name!r}: not as the outline says"
                    assert folder_of(content) is None, f"{name!r}: a video needs a folder, and fields have none"

    def test_groups_find_only_members(self) -> None:
        for _, group in self._all_contents():
            if not isinstance(group, Group) or group.find is None:
                continue
            members = [(member.name, type(member.content), member.content.key) for member in group.members()]
            for name in {name[0] for name, _, _ in members} | {b"no member"}:
                found, below = group.find(name), [member for member in members if member[0][0] == name]
                what = f"{group.key!r} finds {name!r}, which is not the only member of this name"
                assert found is None or below == [((name,), type(found), found.key)], what

    def test_series_have_the_sizes_that_they_tell(self) -> None:
        cache = BlockCache(self.budget)
        for _, series in self._all_contents():
            if not isinstance(series, Series) or (series.sizes is None and not series.is_uniform):
                continue
            contents = [series.item(number) for number in series.numbers]
            sizes = [content.data.size for content in contents if isinstance(content, Stored)]
            assert len(sizes) == len(series.numbers), f"{series.key!r}: not only bytes"
            if series.sizes is not None:
                assert list(series.sizes(0, len(sizes))) == sizes, f"{series.key!r}: other sizes"
                assert list(series.sizes(1, 3)) == sizes[1:3], f"{series.key!r}: other sizes in a part of it"
            if series.is_uniform:
                shown = {data_of(content, cache, (series.key, number)).size for number, content in enumerate(contents)}
                assert max(len(set(sizes)), len(shown)) <= 1, f"{series.key!r}: sizes differ"

    def test_every_range_is_that_of_the_whole(self) -> None:
        for _, _, container in self._all_opened():
            cache = BlockCache(self.budget)
            for number, place in enumerate(walk(container.root)):
                for data in _shown_as(place.content, cache, number):
                    whole = data.read(0, data.size)
                    assert len(whole) == data.size, f"{_shown(place)}: not as many bytes as announced"
                    for start, end in _ranges(len(whole)):
                        read = data.read(start, end - start)
                        assert read == whole[start:end], f"{_shown(place)}: wrong bytes in {start} to {end}"

    def test_threads_read_the_same(self) -> None:
        for path, _, container in self._all_opened():
            with self._opened(path) as (_, other):
                whole = [data.read(0, data.size) for _, data in self._files(other)]
            jobs = [
                (data, start, whole[number][start : start + PART])
                for number, (_, data) in enumerate(self._files(container))
                for start in range(0, len(whole[number]), PART)
            ] * 2
            random.Random(2).shuffle(jobs)
            with ThreadPoolExecutor(8) as threads:
                for is_same in threads.map(lambda job: job[0].read(job[1], len(job[2])) == job[2], jobs):
                    assert is_same, "threads that read at the same time get wrong bytes"

    def test_sound_containers_have_no_fault(self) -> None:
        for path, _, container in self._all_opened():
            faults = [f"{fault.place}: {fault.reason}" for fault in container.check()]
            assert not faults, f"{path.name}: {faults[:3]}"

    def test_nothing_stays_open(self) -> None:
        for path in self._paths():
            before = _descriptors()
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
            assert _descriptors() <= before, "a file is open after Container.close"

    def test_damaged_copies_raise_only_errors_of_glassfs(self) -> None:
        for path in self._paths():
            whole, chance = path.read_bytes(), random.Random(4)
            copies = self.damaged_copies // (10 if len(whole) > LARGE else 1)
            cuts = {*range(min(len(whole), copies, 16)), *(chance.randrange(len(whole)) for _ in range(copies))}
            for cut in cuts:
                self._survive(path.name, whole[:cut], f"cut to {cut} bytes")
            for number in range(copies):
                self._survive(path.name, _changed(whole, chance), f"damaged copy {number}")

    def test_damaged_containers_raise_only_errors_of_glassfs(self) -> None:
        for number, container in enumerate(self.damaged()):
            data = container if isinstance(container, bytes) else container.read_bytes()
            self._survive("damaged", data, f"damaged container {number}")

    # Helpers

    def _paths(self) -> Iterator[Path]:
        """Yield the sound containers as files; those given as bytes get a name without a suffix."""
        containers = [*self.containers()]
        assert containers, "containers() returns none"
        with tempfile.TemporaryDirectory() as folder:
            for number, container in enumerate(containers):
                if isinstance(container, bytes):
                    path = Path(folder, f"container{number}")
                    path.write_bytes(container)
                    yield path
                else:
                    yield container

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

    def _all_opened(self) -> Iterator[tuple[Path, WatchedStore, Container]]:
        """Open each sound container while the caller uses it."""
        for path in self._paths():
            with self._opened(path) as (store, container):
                yield path, store, container

    def _all_contents(self) -> Iterator[Member]:
        """Yield the contents of each sound container while it is open."""
        for _, _, container in self._all_opened():
            yield from walk(container.root)

    def _files(self, container: Container) -> Iterator[tuple[Member, Data]]:
        cache = BlockCache(self.budget)
        for number, place in enumerate(walk(container.root)):
            if has_file(place.content):
                yield place, data_of(place.content, cache, (number,))

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
                        _read_some(place.content, cache, number)
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
        try:
            if isinstance(content, Collection):
                for below, one in islice(members_of(content), MOST_MEMBERS if is_damaged else None):
                    inner.append(Member((*name, *below), one))
        except GlassfsError:
            if not is_damaged:
                raise
        waiting += reversed(inner)


def _read_some(content: Content, cache: BlockCache, number: int) -> None:
    with suppress(GlassfsError):
        content.attributes()
        for data in _shown_as(content, cache, number):
            with suppress(GlassfsError):
                size = data.size
                for start in {0, size // 2, max(0, size - PART)}:
                    data.read(start, min(PART, size - start))


def _shown_as(content: Content, cache: BlockCache, number: int) -> Iterator[Data]:
    """Yield the files of a content, those of derived views included."""
    if has_file(content):
        yield data_of(content, cache, (number,))
    for shown in chosen(ALL).shown(content, cache, (number,), lambda view, error: None):
        if isinstance(shown.thing, Data):
            yield shown.thing


def _head(name: str, data: bytes) -> Head:
    return Head(data[:HEAD], name, len(data), lambda offset, size: data[offset : offset + size])


def _ranges(size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of a file: its first and last bytes, and random ones, short and long."""
    chance = random.Random(size)
    yield 0, min(1, size)
    yield max(0, size - 1), size
    for _ in range(12 if size else 0):
        start = chance.randrange(size)
        yield start, min(size, start + chance.choice((1, 7, 300, 5000, PART, size)))


def _changed(whole: bytes, chance: random.Random) -> bytes:
    """Return a copy with a few bytes changed, mostly near its ends, where headers and indexes are."""
    changed = bytearray(whole)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        # Headers and indexes are short, so random places in the whole file would mostly hit payload.
        near = min(len(whole), chance.choice((64, 512, 4096, len(whole))))
        at = chance.randrange(near) if chance.random() < 0.7 else len(whole) - 1 - chance.randrange(near)
        new = chance.choice((chance.randbytes(8), bytes(8), b"\xff" * 7 + b"\x7f", b"\xff" * 8, bytes(5) + b"\x08\0\0"))
        new = new[-chance.choice((1, 4, 8)) :][: len(whole) - at]
        changed[at : at + len(new)] = new
    return bytes(changed)


def _descriptors() -> int:
    """Return the number of open files of this process."""
    return len(os.listdir("/dev/fd"))


def _shown(place: Member) -> str:
    return b"/".join(place.name).decode("utf-8", "backslashreplace")

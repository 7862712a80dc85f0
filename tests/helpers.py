"""Small tools for tests below the tree: opening bytes, counting reads, looking through contents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from glassfs.cache import BlockCache
from glassfs.content import Collection, Container, Content, Data, members_of
from glassfs.formats.registry import Opening, open_container
from glassfs.source import Source
from glassfs.source.local import LocalSource, LocalStore
from glassfs.view import data_of, has_file


def local(path: str | Path) -> Source:
    """The file at a path of this system, opened."""
    path = Path(path)
    return LocalStore(path.parent).open((path.name,))


def opening(source: str | Path | Source, budget: int = 64 << 20) -> Opening:
    """What a format is given for this file, which has its neighbours if it is given by its path."""
    if isinstance(source, Source):
        return Opening(source, BlockCache(budget))
    path = Path(source)
    return Opening(local(path), BlockCache(budget), LocalStore(path.parent), (path.name,))


class CountingSource(LocalSource):
    """A source that remembers the ranges read from it."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        store = LocalStore(path.parent)
        number, entry = store.open_descriptor((path.name,))
        super().__init__(store, (path.name,), entry, number)
        self.reads: list[tuple[int, int]] = []

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        self.reads.append((offset, sum(map(len, buffers))))
        super().scatter(buffers, offset)

    @property
    def bytes_read(self) -> int:
        return sum(size for _, size in self.reads)


def open_bytes(data: bytes, name: str = "made") -> Container:
    """Opens a container of these bytes. The file is gone afterwards, but stays readable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        return open_path(path)


def open_path(path: str | Path, budget: int = 64 << 20) -> Container:
    return open_container(opening(path, budget))


def file_data(content: Content, cache: BlockCache | None = None) -> Data:
    """The bytes of the file that shows a content."""
    return data_of(content, cache or BlockCache(), (id(content),))


def walk(content: Content, name: bytes = b"") -> Iterator[tuple[bytes, Content]]:
    """Everything below a group that has a file: names joined with `/`, and contents."""
    if isinstance(content, Collection):
        for member in members_of(content):
            yield from walk(member.content, b"/".join((name, *member.name)))
    elif has_file(content):
        yield name.removeprefix(b"/"), content


def contents_of(group: Content) -> dict[bytes, list[Content]]:
    """All contents below a group by their name, several where they share it."""
    found: dict[bytes, list[Content]] = {}
    for name, content in walk(group):
        found.setdefault(name, []).append(content)
    return found


def read_in_parts(data: Data, part: int = 4096) -> bytes:
    """All bytes of `data`, a part at a time."""
    return b"".join(data.read(offset, min(part, data.size - offset)) for offset in range(0, data.size, part))

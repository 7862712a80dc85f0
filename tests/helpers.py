"""Small tools for tests below the tree: opening bytes, counting reads, looking through contents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from glassfs.cache import BlockCache
from glassfs.content import Container, Content, Data, Group, Series
from glassfs.formats.registry import open_container
from glassfs.source import LocalSource


class CountingSource(LocalSource):
    """A source that remembers the ranges read from it."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.reads: list[tuple[int, int]] = []

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.reads.append((offset, len(buffer)))
        super().read_into(buffer, offset)

    @property
    def bytes_read(self) -> int:
        return sum(size for _, size in self.reads)


def open_bytes(data: bytes, name: str = "made") -> Container:
    """Opens a container of these bytes. The file is gone afterwards, but stays readable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        return open_container(LocalSource(path), BlockCache())


def open_path(path: str | Path, budget: int = 64 << 20) -> Container:
    return open_container(LocalSource(path), BlockCache(budget))


def walk(content: Content, name: bytes = b"") -> Iterator[tuple[bytes, Content]]:
    """Everything below a group, groups left out: names joined with `/`, and contents."""
    if isinstance(content, Group):
        for member in content.members():
            yield from walk(member.content, b"/".join(part for part in (name, *member.name)))
    elif isinstance(content, Series):
        for number in range(content.count):
            item = b"%0*d" % (content.digits, number)
            yield from walk(content.item(number), b"/".join((name, item)))
    else:
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

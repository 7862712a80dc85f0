"""Helpers of tests below the tree: open bytes, count reads, walk contents, check something in a forked process."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from glassfs.cache import BlockCache
from glassfs.content import Array, Collection, Container, Content, Data, Group, Omitted, members_of
from glassfs.formats.registry import Opening
from glassfs.sandbox.pool import Pool
from glassfs.source import Source
from glassfs.source.local import LocalStore
from glassfs.source.local_source import LocalSource
from glassfs.tree import Directory
from glassfs.tree.containers.lease import parse
from glassfs.tree.omissions import as_attributes
from glassfs.view import data_of, has_file


def local(path: str | Path) -> Source:
    """Open a local file as a source."""
    path = Path(path)
    return LocalStore(path.parent).open((path.name,))


def opening(source: str | Path | Source, budget: int = 64 << 20) -> Opening:
    """Return what a format gets for this file; siblings can be opened if it is given as a path."""
    if isinstance(source, Source):
        return Opening(source, BlockCache(budget))
    path = Path(source)
    return Opening(local(path), BlockCache(budget), LocalStore(path.parent), (path.name,))


def worker_processes(workers: Pool) -> list[int]:
    """Return the process ids of the live workers, 0 for one that has not greeted."""
    return [worker.process for worker in workers._workers]


class CountingSource(LocalSource):
    """A source that records the ranges read from it."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        store = LocalStore(path.parent)
        number, entry = store.open_descriptor((path.name,))
        super().__init__(store.open_descriptor, store.shown((path.name,)), (path.name,), entry, number)
        self.reads: list[tuple[int, int]] = []

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.reads.append((offset, len(buffer)))
        super().read_into(buffer, offset)

    def read(self, offset: int, size: int) -> bytes:
        return Source.read(self, offset, size)  # through ``read_into``

    @property
    def bytes_read(self) -> int:
        return sum(size for _, size in self.reads)


def open_bytes(data: bytes, name: str = "made") -> Container:
    """Open a container of these bytes. Its file is deleted, but stays readable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        return open_path(path)


def open_path(path: str | Path, budget: int = 64 << 20) -> Container:
    return parse(opening(path, budget))


def file_data(content: Content, cache: BlockCache | None = None) -> Data:
    """Return the bytes of the file that shows a content."""
    return data_of(content, cache or BlockCache(), (id(content),))


def walk(content: Content, name: bytes = b"") -> Iterator[tuple[bytes, Content]]:
    """Yield the contents below a group that have a file, with their names joined with `/`."""
    if isinstance(content, Collection):
        for member in members_of(content):
            yield from walk(member.content, b"/".join((name, *member.name)))
    elif has_file(content):
        yield name.removeprefix(b"/"), content


def contents_of(group: Content) -> dict[bytes, list[Content]]:
    """Return the contents below a group by name, several if they share one."""
    found: dict[bytes, list[Content]] = {}
    for name, content in walk(group):
        if not isinstance(content, Omitted):
            found.setdefault(name, []).append(content)
    return found


def omitted_in(group: Content) -> dict[str, str]:
    """Return why members of a group are not shown, by name."""
    assert isinstance(group, Group)
    return {
        b"/".join(name).decode(): content.reason for name, content in group.members() if isinstance(content, Omitted)
    }


def attributes_of(node: Directory) -> dict[str, str]:
    """Return what the extended attributes of a directory say is omitted or damaged."""
    return {name.rpartition(".")[2]: text.decode() for name, text in as_attributes(node.omitted()).items()}


def only(container: Container, name: str, label: str = "") -> Any:
    """Return the one content of this name, of arrays the one with this label."""
    same = contents_of(container.root).get(name.encode(), [])
    found = [content for content in same if not isinstance(content, Array) or content.label == label]
    assert len(found) == 1, f"{name}: {len(found)} contents among {sorted(contents_of(container.root))}"
    return found[0]


def values_of(content: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array, whose size must agree with its shape."""
    shape = content.shape if isinstance(content.shape, tuple) else content.shape()
    assert content.data.size == math.prod(shape) * np.dtype(content.dtype).itemsize
    return np.frombuffer(content.data.whole(), content.dtype).reshape(shape)


def array_of(container: Container, name: str, label: str = "") -> np.ndarray[Any, Any]:
    return values_of(only(container, name, label))


def read_in_parts(data: Data, part: int = 4096) -> bytes:
    """Read all bytes of `data`, a part at a time."""
    return b"".join(data.read(offset, min(part, data.size - offset)) for offset in range(0, data.size, part))


def in_fork(check: Callable[[], bool]) -> bool:
    """Return what ``check`` returns in a forked process."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

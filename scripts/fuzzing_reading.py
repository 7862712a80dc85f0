"""Read containers with the library and through a mount, in terms that can be compared.

Both sides walk everything and read the same files, chosen by their paths, in the same ranges, and completely unless
they are large. Each side runs in a process of its own (``serve``).
"""

from __future__ import annotations

import os
import random
import stat
import traceback
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

ENTRIES = 20_000
FILES = 40
WHOLE = 2 << 20
"""Files up to this size are read completely; of larger ones both ends."""
RANGE = 64 << 10
CACHE = 32 << 20
LONGEST_PATH = 3500
"""Bytes of a path inside a container. The kernel takes 4095 for all of a path, the library any number."""


class Seen(NamedTuple):
    """An entry: ``d``, ``f`` or ``l``, a file's size, and a digest of what each reading gave; None is an error."""

    kind: str
    size: int | None = None
    parts: tuple[int | None, ...] = ()


Tree = dict[str, Seen]
"""What is inside a container by its path; "" is the container itself, ``f`` if it was refused."""
Reader = Callable[[int, int], bytes]
NOWHERE = Seen("?")


def look_at_library(folder: Path, views: str = "") -> dict[str, Tree]:
    """Read each container of a folder with the library."""
    return {os.fsdecode(path.name): _tree_of(path, views) for path in sorted(folder.iterdir())}


def _tree_of(path: Path, views: str) -> Tree:
    from glassfs.errors import GlassfsError, Refused
    from glassfs.library import open_tree

    try:
        tree = open_tree(path, cache_size=CACHE, views=views)
    except Refused:
        return {"": _file("", path.stat().st_size, lambda: _reader(path))}
    with tree:
        found: Tree = {"": Seen("d", 0)}
        files = {}

        def on_error(place: str, error: GlassfsError) -> None:
            if _is_reachable(place):
                found[place.strip("/")] = Seen("d", None)

        nodes = ((place, node) for place, node in tree.walk(on_error=on_error) if _is_reachable(place))
        for place, node in islice(nodes, ENTRIES):
            name = place.strip("/")
            if stat.S_ISDIR(node.mode):
                found.setdefault(name, Seen("d", 0))
                continue
            if stat.S_ISLNK(node.mode):
                found[name] = Seen("l", 0)
                continue
            try:
                found[name] = Seen("f", node.size)  # type: ignore[attr-defined]
                files[name] = node
            except OSError:
                found[name] = Seen("f", None)
        for name in _chosen(files):
            node = files[name]
            found[name] = _file(name, found[name].size, lambda node=node: node.read)  # type: ignore[misc]
        return found


def look_at_mount(folder: Path) -> dict[str, Tree]:
    """Read each entry of a folder through a mount."""
    return {entry.name: _mounted_tree(Path(entry.path)) for entry in os.scandir(folder)}


def _mounted_tree(path: Path) -> Tree:
    if not path.is_dir():
        return {"": _mounted_file("", path)}
    found: Tree = {"": Seen("d", 0)}
    files = {}
    for name, mode, size in islice(_walk(path, found), ENTRIES):
        if stat.S_ISDIR(mode):
            found.setdefault(name, Seen("d", 0))
        elif stat.S_ISLNK(mode):
            found[name] = Seen("l", 0)
        else:
            found[name] = Seen("f", size)
            if size is not None:
                files[name] = path / name
    for name in _chosen(files):
        found[name] = _mounted_file(name, files[name])
    return found


def _walk(root: Path, found: Tree) -> Iterator[tuple[str, int, int | None]]:
    """Yield names, modes and sizes in the library's order: parents first, depth first."""
    waiting = [""]
    while waiting:
        place = waiting.pop()
        try:
            entries = list(os.scandir(root / place))
        except OSError:
            found[place] = Seen("d", None)
            continue
        inner = []
        for entry in entries:
            name = f"{place}/{entry.name}".lstrip("/")
            if not _is_reachable(name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                yield name, 0, None
                continue
            yield name, status.st_mode, status.st_size
            if stat.S_ISDIR(status.st_mode):
                inner.append(name)
        waiting += reversed(inner)


def _is_reachable(place: str) -> bool:
    return len(os.fsencode(place.strip("/"))) <= LONGEST_PATH


def _mounted_file(name: str, path: Path) -> Seen:
    """Read ranges with O_DIRECT, so that an error is that of these bytes, and the whole file through the page cache."""
    try:
        size = path.lstat().st_size
        direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return Seen("f", None)
    try:
        buffered = os.open(path, os.O_RDONLY)
        try:

            def read(offset: int, count: int) -> bytes:
                descriptor = direct if count <= RANGE and count < size else buffered
                data = b""
                while len(data) < count:
                    piece = os.pread(descriptor, count - len(data), offset + len(data))
                    if not piece:
                        break
                    data += piece
                return data

            return _file(name, size, lambda: read)
        finally:
            os.close(buffered)
    finally:
        os.close(direct)


def _reader(path: Path) -> Reader:
    data = path.read_bytes()
    return lambda offset, count: data[offset : offset + count]


def _chosen(files: dict[str, Any]) -> list[str]:
    """Return the files to read: those whose names have the least checksums, so that both sides choose the same."""
    return sorted(files, key=lambda name: zlib.crc32(os.fsencode(name)))[:FILES]


def _file(name: str, size: int | None, opened: Callable[[], Reader]) -> Seen:
    """Read some ranges and, if the file is not too large, everything."""
    if size is None:
        return Seen("f", None)
    read = opened()
    return Seen("f", size, tuple(_digest(read, offset, count) for offset, count in ranges(name, size)))


def ranges(name: str, size: int) -> list[tuple[int, int]]:
    """Return the ranges to read of a file of this name and size."""
    chance = random.Random(f"{name!a} {size}")
    found = []
    for _ in range(3 if size else 0):
        offset = chance.randrange(size)
        found.append((offset, min(chance.choice((1, 100, 4096, RANGE)), size - offset)))
    if size <= WHOLE:
        return [*found, (0, size)]
    return [*found, (0, RANGE), (size - RANGE, RANGE)]


def _digest(read: Reader, offset: int, count: int) -> int | None:
    try:
        data = read(offset, count)
    except OSError:
        return None
    return zlib.crc32(data) << 32 | len(data)


def differences(expected: Tree, found: Tree) -> list[str]:
    """Return the differences of two sides, one line for each entry."""
    if min(len(expected), len(found)) >= ENTRIES:
        common = expected.keys() & found.keys()
        expected, found = ({name: tree[name] for name in common} for tree in (expected, found))
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        wanted, seen = expected.get(name, NOWHERE), found.get(name, NOWHERE)
        if wanted[:2] != seen[:2]:
            lines.append(f"{name!a}: the library shows {_in_words(wanted)}, the mount {_in_words(seen)}")
        elif wanted.parts != seen.parts and wanted.size is not None:
            for (offset, count), one, other in zip(ranges(name, wanted.size), wanted.parts, seen.parts, strict=False):
                if one != other:
                    both = f"the library has {_bytes_in_words(one)}, the mount {_bytes_in_words(other)}"
                    lines.append(f"{name!a}: {count} bytes at {offset}: {both}")
    return lines


def _in_words(seen: Seen) -> str:
    what = {"d": "a directory", "f": "a file", "l": "a link", "?": "nothing"}[seen.kind]
    return what if seen.kind != "f" else f"{what} of {seen.size} bytes" if seen.size is not None else f"{what}, unsized"


def _bytes_in_words(part: int | None) -> str:
    return "an error" if part is None else f"{part & 0xFFFFFFFF} bytes with checksum {part >> 32:08x}"


def serve(pipe: Connection, look: Callable[[Path], dict[str, Tree]]) -> None:
    """Read one folder after another; send the results or a traceback."""
    while True:
        folder = pipe.recv()
        try:
            pipe.send(look(folder))
        except Exception:
            pipe.send(traceback.format_exc())

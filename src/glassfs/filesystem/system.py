"""A read-only file system of fsspec over what is in containers: the tree of ``glassfs.open``, under the same paths.

Any thread. Nothing is opened before something is asked for, so that making one, or getting one pickled, costs nothing;
a process that was forked off opens its own. File systems that were asked for the same share what is open in a process,
and the last one that goes closes it.

Paths are exact names, those of views included, whether they are listed or not. Errors are those of ``glassfs.errors``,
each of them also the built-in that fsspec's callers expect; all that would write raises OSError with EROFS.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary, finalize

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from glassfs.errors import (
    Changed,
    Damaged,
    GlassfsError,
    IsADirectory,
    NoSuchEntry,
    NotADirectory,
    NotFound,
    Refused,
)
from glassfs.filesystem.file import GlassfsFile
from glassfs.filesystem.options import source_of
from glassfs.library.documents import bytes_of
from glassfs.library.finding import Paths
from glassfs.library.session import Asked, LibrarySession
from glassfs.names import text
from glassfs.source.remote.storage_options import GENERAL
from glassfs.source.remote.url import is_url, shown
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node
from glassfs.tree.nodes import Facts, Settled, facts_of
from glassfs.tree.tree import normal

PROTOCOL = "glassfs"
AT_ONCE = 16
"""Ranges of what is elsewhere that are read at once."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Info = dict[str, Any]
_Range = tuple[str, int | None, int | None]
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Opened:
    """What the file systems that were asked for the same have open in this process."""

    def __init__(self, asked: Asked, token: str) -> None:
        self.session = LibrarySession(asked, token)
        # Not by __del__: while that runs another thread may still find this one.
        finalize(self, self.session.close).atexit = False


_lock = threading.RLock()
_all: WeakValueDictionary[str, _Opened] = WeakValueDictionary()


def _opened(asked: Asked, token: str) -> _Opened:
    with _lock:
        found = _all.get(token)
        if found is None:
            found = _all[token] = _Opened(asked, token)
        return found


class GlassfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """What is in a container, or in a folder of them: ``glassfs://PATH::CONTAINER``.

    ``fo`` names it, as a local name or a URL; ``target_protocol`` and ``target_options`` say the rest as fsspec does.
    ``views`` are further forms of contents to be listed, ``cache_size`` bounds the decoded blocks in memory, in bytes,
    and ``spool`` is the folder for those too large for it, as of ``glassfs.open``.
    """

    protocol = PROTOCOL
    root_marker = ""
    cachable = False

    def __init__(
        self, fo: str | os.PathLike[str] = "", target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None, views: str = "", cache_size: int | None = None,
        spool: str | None = None, **options: Any,
    ) -> None:
        unknown = sorted(options.keys() - GENERAL)
        if unknown:
            raise Refused(f"glassfs has no option {', '.join(unknown)}; those of the source go into target_options")
        super().__init__(**options)
        source, connection = source_of(fo, target_protocol, target_options)
        asked = Asked((source,), cache_size, spool, views, connection)
        token = hashlib.sha256(repr(astuple(asked)).encode("utf-8", "surrogatepass")).hexdigest()
        self._opened = _opened(asked, token)
        self._shown = shown(source)
        self._is_elsewhere = is_url(source)
        asked_for = {
            "fo": os.fspath(fo) if self._is_elsewhere else source, "target_protocol": target_protocol,
            "target_options": target_options, "views": views, "cache_size": cache_size, "spool": spool,
        }
        self._asked_for = {name: value for name, value in asked_for.items() if value not in (None, "", {})}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._asked_for)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._shown}>"

    @property
    def _fs_token(self) -> str:
        """The same for whoever asked for the same, in all threads and processes: fsspec compares it, dask hashes it."""
        return self._opened.session.token

    @property
    def fsid(self) -> str:
        return f"{PROTOCOL}_{self._fs_token}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """The path alone: of a name nothing is taken but the protocol in front, and slashes at both ends."""
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(one) for one in path]
        return str(stringify_path(path)).removeprefix(f"{PROTOCOL}://").strip("/")

    # What there is.

    def info(self, path: str, **kwargs: Any) -> Info:
        """``name``, ``type``, ``size``, ``mode``, and the times of the container."""
        path = self._strip_protocol(path)
        return self._fresh(lambda: _info_of(path, self._node(path)))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What is in a directory. ``size`` is None where it takes reading to find that out, which ``info`` does."""
        path = self._strip_protocol(path)
        node = self._node(path)
        if not isinstance(node, Directory):
            return [self.info(path)] if detail else [path]
        above = f"{path}/" if path else ""
        try:
            if not detail:
                return [above + name for name in node.names()]
            return [
                self._linked(above + name, fact) if stat.S_ISLNK(fact[2]) else _info(above + name, fact, owner)
                for name, fact, owner in _listed(node)
            ]
        except Refused as error:  # a container in a folder: whoever walks passes over what is an OSError
            raise Damaged(error.reason, error.source or self._shown, error.part) from error
        except GlassfsError as error:
            raise self._located(error) from None

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._found(path) is not None

    def isdir(self, path: str) -> bool:
        return isinstance(self._found(path), Directory)

    def isfile(self, path: str) -> bool:
        return isinstance(self._found(path), File)

    def walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = "omit", **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """As fsspec's, at one listing a directory, however deep they are. Links to directories are among these, but not
        followed; links that lead nowhere are left out."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        has_detail = bool(kwargs.pop("detail", False))
        self._paths()  # a container that cannot be opened is no directory to be passed over
        waiting: list[tuple[str, Any, Any, Iterator[str]]] = []

        def enter(place: str) -> Iterator[tuple[str, Any, Any]]:
            try:
                listed = self.ls(place)
            except (OSError, GlassfsError) as error:
                if on_error == "raise":
                    raise
                if callable(on_error):
                    on_error(error)
                return
            names = {_name(info, place): info for info in listed if info["type"] != "link"}
            dirs: Any = {name: info for name, info in names.items() if name and info["type"] == "directory"}
            files: Any = {name: info for name, info in names.items() if name not in dirs}
            links = {name for name, info in dirs.items() if info.get("islink")}
            if not has_detail:
                dirs, files = list(dirs), list(files)
            if topdown:
                yield place, dirs, files
            is_end = maxdepth is not None and len(waiting) + 1 >= maxdepth
            waiting.append((place, dirs, files, iter(() if is_end else [name for name in dirs if name not in links])))

        yield from enter(self._strip_protocol(path))
        while waiting:
            place, dirs, files, inner = waiting[-1]
            name = next(inner, None)
            if name is not None:
                yield from enter(f"{place}/{name}".lstrip("/"))
                continue
            waiting.pop()
            if not topdown:
                yield place, dirs, files

    def ukey(self, path: str) -> str:
        """Another one whenever the bytes may be others."""
        path = self._strip_protocol(path)
        node = self._node(path)
        words = path, node.origin.identity, str(node.origin.mtime_ns)
        return hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()

    def checksum(self, path: str) -> int:
        return int(self.ukey(path), 16)

    def modified(self, path: str) -> datetime:
        """When the container was written last."""
        return _EPOCH + timedelta(microseconds=self._node(self._strip_protocol(path)).origin.mtime_ns // 1000)

    def created(self, path: str) -> datetime:
        """The same: nothing in a container is older than the container."""
        return self.modified(path)

    # What is in it.

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of a file, or a part of them as of a slice: negative numbers count from the end."""
        return self._fresh(lambda: _part(self._file(path), start, end))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """The bytes of a file, or those of several by their paths: for a pattern, a list, or all below a directory."""
        paths = self.expand_path(path, recursive=recursive)
        if paths == [self._strip_protocol(path)] and not self.isdir(paths[0]):
            return self.cat_file(paths[0], **kwargs)
        if recursive:
            paths = [one for one in paths if not self.isdir(one)]
        found = self.cat_ranges(
            paths, kwargs.get("start"), kwargs.get("end"), on_error="raise" if on_error == "raise" else "return",
        )
        is_left_out = on_error == "omit"
        return {
            one: data for one, data in zip(paths, found, strict=True)
            if not (is_left_out and isinstance(data, Exception))
        }

    def cat_ranges(
        self, paths: Iterable[str], starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """The bytes of many ranges, all those of a file in one version; of what is elsewhere, several at once.

        Ranges are not joined, whatever ``max_gap``: what lies close together is fetched once in any case. An error
        stands in the place of what could not be read, unless ``on_error`` is "raise".
        """
        if isinstance(paths, (str, bytes)):
            raise TypeError("paths must be a list")
        paths = [self._strip_protocol(path) for path in paths]
        ranges = list(zip(paths, _each(starts, len(paths)), _each(ends, len(paths)), strict=True))
        results = self._ranges(ranges)
        replaced = {path for (path, _, _), result in zip(ranges, results, strict=True) if isinstance(result, Changed)}
        if replaced:
            self._paths().expire()
            again = [number for number, (path, _, _) in enumerate(ranges) if path in replaced]
            for number, result in zip(again, self._ranges([ranges[number] for number in again]), strict=True):
                results[number] = result
        if on_error == "raise":
            for result in results:
                if isinstance(result, Exception):
                    raise result
        return results

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> GlassfsFile:
        if set(mode) & set("wax+"):
            _read_only(path)
        if mode != "rb":
            raise ValueError(f"there is no mode {mode}")
        try:
            return self._fresh(lambda: GlassfsFile(self, path, self._file(path)))
        except NoSuchEntry as error:
            near = self._paths().nearest(path)
            raise NoSuchEntry(
                f"{error.reason}{'; the nearest: ' if near else ''}{', '.join(near)}", error.source, error.part,
            ) from None

    # What it takes.

    def _paths(self) -> Paths:
        return self._opened.session.paths

    def _node(self, path: str) -> Node:
        """What a path leads to, over links. Raises NoSuchEntry, NotADirectory, and what finding out raises."""
        paths = self._paths()
        try:
            return paths.entered(normal(path), is_exact=True)
        except GlassfsError as error:
            raise self._located(error) from None

    def _found(self, path: str) -> Node | None:
        """The same, or None where there is nothing in a container that could be opened."""
        self._paths()
        try:
            return self._node(self._strip_protocol(path))
        except (NotFound, NotADirectory):
            return None

    def _file(self, path: str) -> File:
        path = self._strip_protocol(path)
        node = self._node(path)
        if not isinstance(node, File):
            raise IsADirectory("is a directory", self._shown, printable(path))
        return node

    def _fresh(self, do: Callable[[], Result]) -> Result:
        """What ``do`` finds out of a path, once more if what it found has been replaced meanwhile."""
        try:
            return do()
        except Changed:
            self._paths().expire()
        except GlassfsError as error:
            raise self._located(error) from None
        try:
            return do()
        except GlassfsError as error:
            raise self._located(error) from None

    def _ranges(self, ranges: list[_Range]) -> list[bytes | Exception]:
        def found(path: str) -> File | Exception:
            try:
                return self._file(path)
            except Exception as error:
                return error

        def part(one: _Range) -> bytes | Exception:
            path, start, end = one
            file = files[path]
            if isinstance(file, Exception):
                return file
            try:
                return _part(file, start, end)
            except GlassfsError as error:
                return self._located(error)
            except Exception as error:
                return error

        distinct = list(dict.fromkeys(path for path, _, _ in ranges))
        files = dict(zip(distinct, self._all_of(found, distinct), strict=True))
        return self._all_of(part, ranges)

    def _all_of(self, do: Callable[[Item], Result], items: list[Item]) -> list[Result]:
        """What ``do`` gives for each; of what is elsewhere, several at once."""
        if not self._is_elsewhere or len(items) < 2:
            return [do(item) for item in items]
        with ThreadPoolExecutor(min(AT_ONCE, len(items)), "glassfs-ranges") as pool:
            return list(pool.map(do, items))

    def _linked(self, path: str, fact: Facts) -> Info:
        """A link, as what it leads to; of type "link" if that is nothing that can be seen."""
        try:
            return self.info(path) | {"islink": True}
        except (GlassfsError, OSError):
            return {"name": path, "size": None, "type": "link", "mode": fact[2], "islink": True}

    def _located(self, error: GlassfsError) -> GlassfsError:
        """The same error, which names what was opened."""
        return error.at(self._shown)

    # What it does not do.

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> NoReturn:
        _read_only(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> NoReturn:
        _read_only(path)

    def rmdir(self, path: str) -> NoReturn:
        _read_only(path)

    def _rm(self, path: str) -> NoReturn:
        _read_only(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> NoReturn:
        _read_only(path)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> NoReturn:
        _read_only(path2)

    def copy(self, path1: Any, path2: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _read_only(path2)

    def mv(self, path1: Any, path2: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _read_only(path2)

    def put_file(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _read_only(rpath)

    def put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _read_only(rpath)

    def pipe_file(self, path: Any, value: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _read_only(path)

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> NoReturn:
        _read_only(path)

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> NoReturn:
        _read_only(path)


def _restored(kind: type[GlassfsFileSystem], asked_for: dict[str, Any]) -> GlassfsFileSystem:
    return kind(**asked_for)


def _read_only(path: Any) -> NoReturn:
    name = path if isinstance(path, str) else ", ".join(map(str, path)) if isinstance(path, Iterable) else str(path)
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)


def _listed(directory: Directory) -> Iterator[tuple[str, Facts, Node]]:
    """Name and facts of what is in a directory, and a node that has the same times."""
    if isinstance(directory, Settled):
        facts: Iterable[tuple[Facts, Node]] = ((fact, directory) for fact in directory.facts(0, directory.count))
    else:
        facts = ((facts_of(node), node) for node in directory.listing())
    return ((text(fact[0]), fact, node) for fact, node in facts)


def _part(file: File, start: int | None, end: int | None) -> bytes:
    with file.origin.lease:
        file.prepare()
        first, last, _ = slice(start, end).indices(file.size)
        return bytes_of(file, first, max(first, last))


def _info_of(path: str, node: Node) -> Info:
    return _info(path, (b"", node.ino, node.mode, node.size if isinstance(node, File) else None), node)


def _info(path: str, fact: Facts, node: Node) -> Info:
    _, _, mode, size = fact
    time = node.origin.mtime_ns / 1e9
    is_directory = stat.S_ISDIR(mode)
    return {
        "name": path, "size": 0 if is_directory else size, "type": "directory" if is_directory else "file",
        "mode": mode, "mtime": time, "created": time,
    }


def _name(info: Info, place: str) -> str:
    """The last component; nothing of what was listed itself."""
    name: str = info["name"]
    return "" if name == place else name.rpartition("/")[2]


def _each(values: Any, count: int) -> list[Any]:
    return [values] * count if values is None or isinstance(values, int) else list(values)


def _begin_after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_begin_after_fork)

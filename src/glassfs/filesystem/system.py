"""A read-only file system of fsspec over containers: the tree of ``glassfs.open`` under the same paths. Any thread.

Sources are opened on first use, so that creating or unpickling a file system costs nothing; a forked process opens them
again. File systems with equal arguments share one open tree in a process, which the last of them closes.

Paths are exact names, including those of views, listed or not. Errors are those of ``glassfs.errors``, each also the
built-in exception that callers of fsspec expect. Methods that write raise OSError with EROFS.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary, finalize

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from glassfs.datasets.selections import Words
from glassfs.errors import Changed, Damaged, GlassfsError, IsADirectory, NoSuchEntry, NotADirectory, NotFound, Refused
from glassfs.library.finding import LibraryPaths
from glassfs.library.session import LibrarySession, OpenArguments
from glassfs.library.stream import BUFFERED, Raw, bytes_of
from glassfs.source.remote.options import IGNORED, connection_of
from glassfs.source.remote.url import KNOWN, Connection, is_url, local_name, protocol_of, shown
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node, Symlink
from glassfs.tree.tree import normal

PROTOCOL = "glassfs"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Info = dict[str, Any]
_Range = tuple[str, int | None, int | None]
Item = TypeVar("Item")
Result = TypeVar("Result")


class _OpenTree:
    """The open tree that file systems with equal arguments share in this process."""

    def __init__(self, asked: OpenArguments, token: str) -> None:
        self.session = LibrarySession(asked, token)
        # Not by __del__: another thread may still find this object while that runs.
        finalize(self, self.session.close).atexit = False


_all: WeakValueDictionary[str, _OpenTree] = WeakValueDictionary()


class GlassfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The contents of a container, or of a folder of containers: ``glassfs://PATH::CONTAINER``.

    ``fo`` is a local path or a URL, with ``target_protocol`` and ``target_options`` as in fsspec. ``views`` (further
    forms of contents to list), ``cache_size`` (memory for decoded blocks, in bytes), ``spool`` (a folder for blocks
    that are too large for it), ``where``, ``trim`` and ``every`` (which episodes and steps) are those of
    ``glassfs.open``.
    """

    protocol = PROTOCOL
    root_marker = ""
    cachable = False

    def __init__(
        self, fo: str | os.PathLike[str] = "", target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None, views: str = "", cache_size: int | None = None,
        spool: str | None = None, where: str = "", trim: str = "", every: int = 1, **options: Any,
    ) -> None:
        unknown = sorted(options.keys() - IGNORED)
        if unknown:
            raise Refused(f"glassfs has no option {', '.join(unknown)}; those of the source go into target_options")
        super().__init__(**options)
        source, connection = source_of(fo, target_protocol, target_options)
        asked = OpenArguments(
            (source,), cache_size, spool, views, connection, words=Words.of(where, trim, every),
        )
        token = hashlib.sha256(repr(astuple(asked)).encode()).hexdigest()
        # The token covers all arguments, in every process: file systems with the same one show the same.
        self._opened = _all.get(token) or _all.setdefault(token, _OpenTree(asked, token))
        self._shown = shown(source)
        self._is_remote = is_url(source)
        name = os.fspath(fo) if self._is_remote else source
        self._arguments = (name, target_protocol, target_options, views, cache_size, spool, where, trim, every)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._shown}>"

    @property
    def _fs_token(self) -> str:
        """Equal for equal arguments, in all threads and processes. fsspec compares it, dask hashes it."""
        return self._opened.session.token

    @property
    def fsid(self) -> str:
        return f"{PROTOCOL}_{self._fs_token}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the path without the protocol and without slashes at both ends."""
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(one) for one in path]
        return str(stringify_path(path)).removeprefix(f"{PROTOCOL}://").strip("/")

    # Paths.

    def info(self, path: str, **kwargs: Any) -> Info:
        """Return ``name``, ``type``, ``size``, ``mode``, and the times of the container."""
        path = self._strip_protocol(path)

        def found() -> Info:
            node = self._node(path)
            return _info(path, node, node.size if isinstance(node, File) else None)

        return self._fresh(found)

    def ls(self, path: str, detail: bool = True, walking: Any = None, **kwargs: Any) -> list[Any]:
        """List a directory. ``size`` is None where it needs a read, which ``info`` makes.

        In a walk (``walking``) broken links and links to directories are left out.
        """
        path = self._strip_protocol(path)
        above = f"{path}/" if path else ""
        self._paths()  # raises what the source itself does
        try:
            node = self._node(path)
            if not isinstance(node, Directory):
                return [self.info(path)] if detail else [path]
            if not detail:
                return [above + name for name in node.names()]
            infos = [
                self._linked(above + one.name, one.mode) if isinstance(one, Symlink)
                else _info(above + one.name, one, one.size if isinstance(one, File) and one.data.is_sized else None)
                for one in node.listing()
            ]
        except Refused as error:  # a container in a folder: callers that walk skip OSErrors
            raise Damaged(error.reason, error.source or self._shown, error.part) from error
        except GlassfsError as error:
            raise error.at(self._shown) from None
        return [info for info in infos if walking is None or "islink" not in info or info["type"] == "file"]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._found(path) is not None

    def isdir(self, path: str) -> bool:
        return isinstance(self._found(path), Directory)

    def isfile(self, path: str) -> bool:
        return isinstance(self._found(path), File)

    def walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = "omit",
        walking: Any = None, **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """Walk as fsspec does, with one listing per directory. Broken links, and links to directories, are left out.
        """
        self._paths()  # raises if a source cannot be opened, whatever ``on_error`` is
        # fsspec passes ``walking`` on to ``ls`` and to this method, which it calls for each directory.
        on_error = on_error if walking is None else walking
        yield from super().walk(path, maxdepth, topdown, on_error, walking=on_error, **kwargs)

    def ukey(self, path: str) -> str:
        """Return a key that changes whenever the bytes may have changed."""
        path = self._strip_protocol(path)
        node = self._node(path)
        version = path, node.origin.identity, node.origin.mtime_ns
        return hashlib.sha256(repr(version).encode()).hexdigest()

    def modified(self, path: str) -> datetime:
        """Return when the container was last modified."""
        # Whole microseconds, as a float would round them.
        return _EPOCH + timedelta(microseconds=self._node(self._strip_protocol(path)).origin.mtime_ns // 1000)

    created = modified

    # Bytes.

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return the bytes of a file, or of a range as in a slice: negative numbers count from the end."""
        return self._fresh(lambda: _part(self._file(path), start, end))

    def cat_ranges(
        self, paths: Iterable[str], starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Return the bytes of many ranges, those of one file in one version; of a remote source, several at once.

        ``max_gap`` is ignored: close ranges are fetched together in any case. Unless ``on_error`` is "raise", the error
        is returned in place of the bytes of a failed range.
        """
        if isinstance(paths, (str, bytes)):
            raise TypeError("paths must be a list")
        paths = [self._strip_protocol(path) for path in paths]
        ranges = list(zip(paths, _each(starts, len(paths)), _each(ends, len(paths)), strict=True))
        results = self._ranges(ranges)
        # A container was replaced meanwhile. All ranges are read again, so that those of one file are of one version.
        if any(isinstance(result, Changed) for result in results):
            self._paths().expire()
            results = self._ranges(ranges)
        if on_error == "raise":
            for result in results:
                if isinstance(result, Exception):
                    raise result
        return results

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> GlassfsFile:
        if set(mode) & set("wax+"):
            self._refuse()
        if mode != "rb":
            raise ValueError(f"invalid mode {mode}")
        try:
            return self._fresh(lambda: GlassfsFile(self, path, self._file(path)))
        except NoSuchEntry as error:
            raise NoSuchEntry(f"{error.reason}{self._paths().hint(path)}", error.source, error.part) from None

    # Implementation.

    def _paths(self) -> LibraryPaths:
        return self._opened.session.paths

    def _node(self, path: str) -> Node:
        """Return the node at a path, following links. Raises NoSuchEntry, NotADirectory, or a read error."""
        paths = self._paths()
        try:
            return paths.entered(normal(path), is_exact=True)
        except GlassfsError as error:
            raise error.at(self._shown) from None

    def _found(self, path: str) -> Node | None:
        """Return the node at a path, or None. Raises if a source cannot be opened."""
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
        """Return what ``do`` returns; call it again if a container was replaced meanwhile."""
        try:
            try:
                return do()
            except Changed:
                self._paths().expire()
                return do()
        except GlassfsError as error:
            raise error.at(self._shown) from None

    def _ranges(self, ranges: list[_Range]) -> list[bytes | Exception]:
        def part(one: _Range) -> bytes:
            path, start, end = one
            file = files[path]
            if isinstance(file, Exception):
                raise file
            return _part(file, start, end)

        # Each file is looked up once, so that all its ranges are of one version.
        distinct = list(dict.fromkeys(path for path, _, _ in ranges))
        files = dict(zip(distinct, self._all_of(self._file, distinct), strict=True))
        return self._all_of(part, ranges)

    def _all_of(self, do: Callable[[Item], Result], items: list[Item]) -> list[Result | Exception]:
        """Return what ``do`` returns or raises for each item; for a remote source, several at once."""

        def done(item: Item) -> Result | Exception:
            try:
                return do(item)
            except Exception as error:
                return error.at(self._shown) if isinstance(error, GlassfsError) else error

        if not self._is_remote or len(items) < 2:
            return [done(item) for item in items]
        with ThreadPoolExecutor(min(16, len(items)), "glassfs-ranges") as pool:
            return list(pool.map(done, items))

    def _linked(self, path: str, mode: int) -> Info:
        """Return the info of a link's target, or of type "link" if it is broken."""
        try:
            return self.info(path) | {"islink": True}
        except (GlassfsError, OSError):
            return {"name": path, "size": None, "type": "link", "mode": mode, "islink": True}

    # Writing.

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self._shown)

    mkdir = makedirs = rmdir = _rm = rm = pipe_file = pipe = touch = cp_file = copy = mv = put_file = put = _refuse


class GlassfsFile(io.BufferedReader):
    """A file of the file system ``fs``, read directly from the tree, without fsspec's caches. One thread at a time.

    Until closed it holds the lease on its container and keeps the file system open.
    """

    def __init__(self, fs: AbstractFileSystem, path: str, file: File) -> None:
        raw = Raw(file, path)
        super().__init__(raw, BUFFERED)
        self.fs = fs
        self.path = path
        self.size = raw.size


def _part(file: File, start: int | None, end: int | None) -> bytes:
    with file.origin.lease:
        file.prepare()
        first, last, _ = slice(start, end).indices(file.size)
        return bytes_of(file, first, last)


def _info(path: str, node: Node, size: int | None) -> Info:
    time = node.origin.mtime_ns / 1e9
    is_directory = isinstance(node, Directory)
    return {
        "name": path, "size": 0 if is_directory else size, "type": "directory" if is_directory else "file",
        "mode": node.mode, "mtime": time, "created": time,
    }


def _each(values: Any, count: int) -> list[Any]:
    return [values] * count if values is None or isinstance(values, int) else list(values)


# fsspec has split the URL of a container into protocol, path and options.


def source_of(
    fo: str | os.PathLike[str], target_protocol: str | None = None, target_options: Mapping[str, Any] | None = None,
) -> tuple[str, Connection]:
    """Return what to open, and the connection. Local names become absolute. Raises Refused if they do not fit."""
    name = os.fspath(fo)
    if not name:
        raise Refused("no container is named: name it as in glassfs://episodes.parquet::run.kdb, or by fo=")
    options = dict(target_options or {})
    scheme = protocol_of(name.partition("://")[0]) if is_url(name) else "" if name == local_name(name) else "file"
    typed = (target_protocol or "").lower()
    protocol = protocol_of(typed or scheme or "file")
    if protocol == "file":
        if is_url(name):
            raise Refused(f"is not a name of the protocol {protocol}", shown(name))
        return os.path.abspath(local_name(name)), connection_of(protocol, options, shown(name))
    if not scheme:
        name = _whole(name, typed, options)
    elif scheme != protocol:
        raise Refused(f"is not a name of the protocol {protocol}", shown(name))
    return name, connection_of(protocol, options, shown(name))


def _whole(name: str, protocol: str, options: dict[str, Any]) -> str:
    """Return the URL: fsspec has removed the protocol, and moved host and user to the options."""
    if protocol_of(protocol) in KNOWN or not options.get("host"):
        return f"{protocol}://{name}"
    host, port, user = (options.pop(option, None) for option in ("host", "port", "username"))
    return f"{protocol}://{f'{user}@' if user else ''}{host}{f':{port}' if port else ''}/{name.lstrip('/')}"

"""The public classes: entries of a tree, each a file or a directory, and the library that contains them.

An entry stays in the version of its container in which it was found. Lookups from it find what is there now.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import ItemsView as Items
from collections.abc import Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from glassfs import content as contents
from glassfs.errors import (
    Changed,
    Closed,
    Damaged,
    GlassfsError,
    IsADirectory,
    NoSuchEntry,
    NotADirectory,
    NotAllowed,
    NotFound,
    Refused,
    TooLarge,
    Unsuited,
)
from glassfs.library import arrays, documents, images, shown
from glassfs.library.finding import REPLACED, below, parts, version_of
from glassfs.library.session import Asked, LibrarySession, named
from glassfs.library.stream import stream_of
from glassfs.library.table import Table
from glassfs.library.tables import episodes_in, table_of
from glassfs.source import Connection
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node
from glassfs.tree.nodes import FIRST_EXTENSION, XATTR_PREFIX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

Default = TypeVar("Default")
_WILD = frozenset("*?[")
_BROKEN = (Damaged, Refused, Changed, TooLarge, NotAllowed, NotFound, NotADirectory)
"""Errors of a directory that do not concern other directories."""


class Entry:
    """A file or a directory of what was opened.

    A directory is a mapping from names, or paths, to entries: ``entry["images/front"]``, ``in``, ``get``, ``keys``,
    ``values``, ``items``, ``len``. Iteration yields the listed names, with the extensions of files. A lookup finds the
    exact name, else the file of that name plus an extension (preferably ``.npy``), else a view, whether views are
    listed or not. A missing name raises ``glassfs.errors.NoSuchEntry``, a KeyError and FileNotFoundError that suggests
    similar names.

    ``numpy``, ``image``, ``json``, ``text``, ``table``, ``bytes`` and ``open`` read a file. A file of another kind
    raises ``glassfs.errors.Unsuited`` (a TypeError and AttributeError), a directory IsADirectory. Damaged data raises
    ``glassfs.errors.Damaged``, and a container replaced since the entry was found ``Changed``; both are OSErrors.

    Entries can be compared, hashed and pickled. Another process opens the sources again, once for all entries; an
    entry in a container raises ``Changed`` if the container has another version there.
    """

    __slots__ = ("__weakref__", "_era", "_identity", "_node", "_path", "_session")

    def __init__(self, session: LibrarySession, path: str, node: Node | None, identity: str = "") -> None:
        self._session = session
        self._path = path
        self._node = node
        self._era = session.era
        self._identity = identity

    # Facts.

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self._path.rpartition("/")[2]

    @property
    def path(self) -> str:
        """The path from the root, without a leading slash; "" for the root."""
        return self._path.lstrip("/")

    def is_dir(self) -> bool:
        return isinstance(self._found, Directory)

    def is_file(self) -> bool:
        return isinstance(self._found, File)

    @property
    def size(self) -> int:
        """The size of a file in bytes."""
        return self._file().size

    @property
    def attributes(self) -> dict[str, str]:
        """Metadata, such as ``dtype``, ``shape``, ``codec``, or an ``error``."""
        found = self._entered.xattrs()
        return {name.removeprefix(XATTR_PREFIX): value.decode("utf-8", "replace") for name, value in found.items()}

    # Directories.

    def __getitem__(self, path: str) -> Entry:
        try:
            return self._at(path)
        except NoSuchEntry as error:
            near = self._session.paths.nearest(below(self._path, path))
            if not near:
                raise
            raise NoSuchEntry(f"{error.reason}; the nearest: {', '.join(near)}", error.source, error.part) from None

    @overload
    def get(self, path: str) -> Entry | None: ...
    @overload
    def get(self, path: str, default: Default) -> Entry | Default: ...
    def get(self, path: str, default: Any = None) -> Any:
        """Return the entry at a path, or ``default``."""
        try:
            return self._at(path)
        except (NotFound, NotADirectory):
            return default

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.get(path) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(builtins.list(self._directory().names()))

    def __len__(self) -> int:
        return sum(1 for _ in self._directory().names())

    def __bool__(self) -> bool:
        return True

    def keys(self) -> KeysView[str]:
        """Return the listed names."""
        return KeysView(self._mapping())

    def values(self) -> ValuesView[Entry]:
        """Return the listed entries."""
        return ValuesView(self._mapping())

    def items(self) -> Items[str, Entry]:
        """Return the listed names and entries."""
        return Items(self._mapping())

    def glob(self, pattern: str) -> Iterator[Entry]:
        """Yield the entries whose paths match: ``*``, ``?`` and ``[…]`` in a name, ``**`` for any directories.

        In the order of the listings. Names without wildcards are looked up like ``entry[name]``. ``**`` skips
        directories whose listing raises ``Damaged`` or the like, but not the one from which it starts.
        """
        self._directory()
        return _matching(self, builtins.list(parts(pattern)))

    def episodes(self) -> Table:
        """Return the table of all episodes in this container, or in this folder and all below it."""
        return episodes_in(self._directory(), self._session.paths, self.path)

    # Files.

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``numpy()``. For some columns this needs a pass over the data."""
        content = self._array_content()
        shape = None if content is None else arrays.shape_of(content)
        return self.numpy().shape if shape is None else shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of ``numpy()``."""
        content = self._array_content()
        dtype = None if content is None else arrays.dtype_of(content)
        return self.numpy().dtype if dtype is None else dtype

    def numpy(self, *, copy: bool = False) -> NDArray[Any]:
        """Return an array, a scalar, or the pixels of an image: (height, width, channels), or (height, width) if gray.
        For a directory of frames, return the array of the whole video.

        The result is read-only. Arrays of 16 KiB and more that a local container stores uncompressed are mapped from
        its file: they change if another process writes to the container, and if it truncates it, reading them ends
        this process (SIGBUS). With ``copy`` the values are always in memory of their own, and writable.

        Times keep the unit of the container, which other libraries may not know (``<M8[100ns]``); convert them with
        ``.astype("M8[us]")``.
        """
        file = self._of_array()
        with self._located():
            content = _canonical(file)
            values = None if content is None else arrays.array_of(content, copy)
            if values is None and file.name.endswith(FIRST_EXTENSION):
                values = arrays.loaded(stream_of(file, self.path), copy)
            elif values is None and file.content is None and file.name.lower().endswith(images.SUFFIXES):
                import numpy as np

                values = np.array(images.pixels(images.of_file(documents.bytes_of(file))))
                values.flags.writeable = copy
        if values is None:
            raise self._unsuited("an array")
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.numpy(copy=bool(copy) and dtype is None)
        return values if dtype is None else values.astype(dtype, copy=bool(copy))

    def image(self) -> Image:
        """Return an image decoded by Pillow."""
        file = self._file()
        with self._located():
            content = _canonical(file)
            if isinstance(content, contents.EncodedImage):
                return images.decoded(content)
            if isinstance(content, contents.Image):
                return images.of_raw(content) or images.of_file(documents.bytes_of(file))
            if file.content is None and file.name.lower().endswith(images.SUFFIXES):
                return images.of_file(documents.bytes_of(file))
        raise self._unsuited("an image")

    def bytes(self) -> builtins.bytes:
        """Return all bytes of a file."""
        with self._located():
            return documents.bytes_of(self._file())

    def text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return a file as text. Raises UnicodeDecodeError unless ``errors`` says otherwise (see ``str``)."""
        return str(self.bytes(), encoding, errors)

    def json(self) -> Any:
        """Return the value of a JSON document or a scalar; of JSON lines, the list of their values."""
        with self._located():
            file = self._file()
            if isinstance(file.content, (contents.Null, contents.Scalar)) or ".json" in file.name[-6:]:
                return documents.value_of(file)
        raise self._unsuited("JSON")

    def table(self) -> Table:
        """Return the table of a directory of columns, or of a view's ``.parquet`` file."""
        found = table_of(self._entered, self._session.paths, self._path)
        if found is None:
            raise self._unsuited("a table")
        return found

    def open(self) -> io.BufferedReader:
        """Return a file object with ``read`` and ``seek``. The caller must close it."""
        with self._located():
            return stream_of(self._file(), self.path)

    # Representation, comparison, pickling.

    def __repr__(self) -> str:
        return shown.line(type(self).__name__, self._shown_name(), self._shown_node())

    def _repr_html_(self) -> str:
        return shown.page(self._shown_name(), self._shown_node())

    def _repr_png_(self) -> builtins.bytes | None:
        return self._image_bytes(".png")

    def _repr_jpeg_(self) -> builtins.bytes | None:
        return self._image_bytes(".jpg")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return self._session.token == other._session.token and self._path == other._path

    def __hash__(self) -> int:
        return hash((self._session.token, self._path))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._session, self._path, None, self._identity or version_of(self._found))

    # The node behind it.

    @property
    def _found(self) -> Node:
        """The node in this process. Raises Closed, Changed, or a read error."""
        node, session = self._node, self._session
        if node is not None and self._era == session.era:
            return node
        if node is not None:
            self._identity = self._identity or version_of(node)
        if session.is_closed:
            raise Closed("was closed", session.asked.shown)
        era = session.era
        _, node = session.paths.find(self._path)
        if self._identity and isinstance(node, Directory):
            node.enter()  # a presumed container has no version to compare
        if self._identity and version_of(node) != self._identity:
            raise Changed(REPLACED, part=printable(self.path))
        self._node, self._era = node, era
        return node

    @property
    def _entered(self) -> Node:
        """The node, parsed if it is presumed."""
        node = self._found
        try:
            if isinstance(node, Directory):
                node.enter()
        except Changed:
            self._node = None
            node = self._found
        return node

    def _at(self, path: str) -> Entry:
        session = self._session
        if session.is_closed:
            raise Closed("was closed", session.asked.shown)
        if self._path != "/" and isinstance(self._node, File):
            raise NotADirectory("is not a directory", part=printable(self.path))
        found, node = session.paths.find(below(self._path, path))
        return Entry(session, found, node)

    def _directory(self) -> Directory:
        node = self._entered
        if not isinstance(node, Directory):
            raise NotADirectory("is not a directory", part=printable(self.path))
        return node

    def _file(self) -> File:
        node = self._entered
        if not isinstance(node, File):
            raise IsADirectory("is a directory", part=printable(self.path))
        return node

    def _mapping(self) -> Mapping[str, Entry]:
        self._directory()
        return cast("Mapping[str, Entry]", self)

    def _of_array(self) -> File:
        """Return the file, or for a directory of frames that of the video."""
        node = self._found
        if isinstance(node, Directory) and self._path != "/":
            beside = self._session.paths.beside(self._path, node, FIRST_EXTENSION)
            if isinstance(beside, File):
                return beside
        return self._file()

    def _array_content(self) -> contents.Content | None:
        return _canonical(self._of_array())

    def _image_bytes(self, suffix: str) -> builtins.bytes | None:
        node = self._shown_node()
        return self.bytes() if isinstance(node, File) and node.name.endswith(suffix) else None

    def _shown_name(self) -> str:
        return self.path or self._session.asked.shown

    def _shown_node(self) -> Node | None:
        try:
            return self._found
        except GlassfsError:
            return None

    def _unsuited(self, wanted: str) -> Unsuited:
        return Unsuited(f"is not {wanted}", part=printable(self.path))

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Add the path to errors that do not name a part themselves."""
        try:
            yield
        except GlassfsError as error:
            error.part = error.part or printable(self.path)
            raise


class Library(Entry):
    """The root of what ``glassfs.open`` opened. A context manager.

    ``close`` releases everything; entries raise ``glassfs.errors.Closed`` then. Arrays and file objects stay valid.
    """

    __slots__ = ()

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    @property
    def closed(self) -> bool:
        return self._session.is_closed


def opened(
    sources: tuple[str | os.PathLike[str], ...], cache_size: int | None, spool: str | None, views: str,
    storage_options: Mapping[str, Any],
) -> Library:
    """Implement ``glassfs.open``."""
    names = named(sources)
    connection = Connection()
    if storage_options:
        from glassfs.source.remote.storage_options import connection_to  # rarely needed

        connection = connection_to(names, storage_options)
    session = LibrarySession(Asked(names, cache_size, spool, views, connection))
    _, node = session.paths.find("/")
    return Library(session, "/", node)


def _canonical(file: File) -> contents.Content | None:
    """Return the content of a file, unless the file is another view of an array."""
    content = file.content
    if isinstance(content, contents.Array) and not file.name.endswith(FIRST_EXTENSION):
        return None
    return content


def _matching(entry: Entry, pattern: list[str], is_lenient: bool = False) -> Iterator[Entry]:
    """Yield the entries that match. If ``is_lenient``, directories that cannot be listed are skipped."""
    if not pattern:
        yield entry
        return
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        yield from _below(entry, rest or ["*"], is_lenient)
    elif not _WILD & set(first):
        found = _inner(entry, first, is_lenient)
        if found is not None and (not rest or found.is_dir()):
            yield from _matching(found, rest, is_lenient)
    else:
        is_lenient = is_lenient or "**" in rest
        for name in _names(entry, is_lenient):
            if fnmatchcase(name, first):
                found = _inner(entry, name, is_lenient)
                if found is not None and (not rest or found.is_dir()):
                    yield from _matching(found, rest, is_lenient)


def _below(entry: Entry, rest: list[str], is_lenient: bool) -> Iterator[Entry]:
    """Yield the matches of ``rest`` in a directory, which must be listable unless ``is_lenient``, and all below it."""
    _names(entry, is_lenient)
    waiting = [entry]
    while waiting:
        directory = waiting.pop()
        yield from _matching(directory, rest, True)
        inner = [
            found for name in _names(directory, True)
            if (found := _inner(directory, name, True)) is not None and found.is_dir()
            and found.path == below(directory.path, name)[1:]  # not through a link, which may lead in a circle
        ]
        waiting += reversed(inner)


def _names(directory: Entry, is_lenient: bool) -> list[str]:
    try:
        return list(directory)
    except NotADirectory:  # it was only presumed to be a directory
        return []
    except _BROKEN:
        if not is_lenient:
            raise
        return []


def _inner(directory: Entry, name: str, is_lenient: bool) -> Entry | None:
    try:
        return directory.get(name)
    except _BROKEN:
        if not is_lenient:
            raise
        return None

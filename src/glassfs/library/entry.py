"""The public classes: entries of a tree, each a file or a directory, and the library that contains them.

An entry stays in the version of its container in which it was found. Lookups from it find what is there now.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import ItemsView as Items
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from fnmatch import fnmatchcase
from types import EllipsisType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast, overload

from glassfs import content as contents
from glassfs.datasets.selections import Words, asked, is_selection
from glassfs.errors import (
    Changed,
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
from glassfs.lazy import NDArray
from glassfs.library import arrays
from glassfs.library.arraylike import VIDEO, ArrayLike, PartInErrors, canonical, is_plain_image
from glassfs.library.finding import REPLACED, below, parts, version_of
from glassfs.library.session import LibrarySession, OpenArguments, named
from glassfs.library.shown import description
from glassfs.library.stream import bytes_of, stream_of, value_of
from glassfs.source import Connection
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node
from glassfs.tree.nodes import FIRST_EXTENSION, XATTR_PREFIX
from glassfs.tree.omissions import as_attributes

if TYPE_CHECKING:
    from PIL.Image import Image

    from glassfs.library.table import Table

Default = TypeVar("Default")
_WILD = frozenset("*?[")
_BROKEN = (Damaged, Refused, Changed, TooLarge, NotAllowed, NotFound, NotADirectory)
"""Errors of a directory that do not concern other directories."""


class Entry(ArrayLike):
    """A file or a directory of what was opened.

    A directory is a mapping from names, or paths, to entries: ``entry["images/front"]``, ``in``, ``get``, ``keys``,
    ``values``, ``items``, ``len``. Iteration yields the listed names, with the extensions of files. A lookup finds the
    exact name, else the file of that name plus an extension (preferably ``.npy``), else a view, whether views are
    listed or not. A missing name raises ``glassfs.errors.NoSuchEntry``, a KeyError and FileNotFoundError that suggests
    similar names.

    An array is indexed, iterated and measured like those of NumPy, h5py and zarr: ``entry[3:9]``, ``len``, ``shape``,
    ``size``. What an index selects is read, and nothing else. A video, or a directory of frames, is an array of frames.

    ``numpy``, ``image``, ``json``, ``text``, ``table``, ``bytes`` and ``open`` read a file. A file of another kind
    raises ``glassfs.errors.Unsuited`` (a TypeError and AttributeError), a directory IsADirectory. Damaged data raises
    ``glassfs.errors.Damaged``, and a container replaced since the entry was found ``Changed``; both are OSErrors.

    Entries are equal if they are the same path of one library, whatever values they have; they can be hashed and
    pickled. Another process opens the sources again, once for all entries; an
    entry in a container raises ``Changed`` if the container has another version there.
    """

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
    def file_size(self) -> int:
        """The size of a file in bytes."""
        return self._file().size

    @property
    def attributes(self) -> dict[str, str]:
        """Metadata, such as ``dtype``, ``shape``, ``codec``, an ``error``, or what a directory has and does not show
        as ``omitted``.
        """
        node = self._entered
        found = node.xattrs()
        if isinstance(node, Directory):
            found |= as_attributes(node.omitted())
        return {name.removeprefix(XATTR_PREFIX): value.decode("utf-8", "replace") for name, value in found.items()}

    # Directories, and arrays.

    @overload
    def __getitem__(self, key: str) -> Entry: ...
    @overload
    def __getitem__(self, key: slice | EllipsisType | arrays.Numbers) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, key: SupportsIndex | tuple[arrays.Index, ...]) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        """Return the entry at a path; of an array, what an index of NumPy selects, in memory of its own.

        Raises NoSuchEntry for a missing path, IndexError as NumPy does, and Unsuited if the entry is not an array.
        """
        if not isinstance(key, str):
            try:
                return self._selected(key)
            except IsADirectory as error:
                raise self._error(Unsuited, "is a directory, whose entries have names") from error
        try:
            return self._at(key)
        except NoSuchEntry as error:
            hint = self._session.paths.hint(below(self._path, key))
            raise NoSuchEntry(f"{error.reason}{hint}", error.source, error.part) from None

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

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the listed names of a directory, or over the first axis of an array."""
        if self._is_array():
            return self._iterated()
        return iter(builtins.list(self._directory().names()))

    def __len__(self) -> int:
        """Return the number of listed names, or the length of the first axis of an array."""
        if not self._is_array():
            return sum(1 for _ in self._directory().names())
        if not self.shape:
            raise self._error(Unsuited, "is a single value and has no length")
        return self.shape[0]

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
        from glassfs.library.table import joined_in  # programs that only load samples need no tables

        return joined_in(self._directory(), self.path, contents.EPISODES)

    def arrays(self) -> Table:
        """Return the table of all arrays in this container, or in this folder and all below it, without their values.

        They are those of NPZ, safetensors, HDF5 and kastore. Finding them may take a while. Raises Unsuited if there
        are none.
        """
        from glassfs.library.table import joined_in

        return joined_in(self._directory(), self.path, contents.ARRAYS)

    def joined(self) -> dict[str, Table]:
        """Return the tables with a row for each thing of a kind in this container, or in this folder and all below it.

        By name: ``episodes``, ``trees`` for tree sequences, ``tables`` for ML.NET data, ``arrays``, and those of other
        formats.
        """
        from glassfs.library.table import all_joined_in

        return all_joined_in(self._directory(), self.path)

    # Files.

    def image(self) -> Image:
        """Return an image decoded by Pillow."""
        file = self._file()
        with PartInErrors(self):
            content = canonical(file)
            if isinstance(content, contents.EncodedImage):
                return arrays.decoded_image(content)
            if isinstance(content, contents.Image):
                return arrays.image_of(content) or arrays.image_in(bytes_of(file))
            if is_plain_image(file):
                return arrays.image_in(bytes_of(file))
        raise self._error(Unsuited, "is not an image")

    def bytes(self) -> builtins.bytes:
        """Return all bytes of a file."""
        with PartInErrors(self):
            return bytes_of(self._file())

    def text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return a file as text. Raises UnicodeDecodeError unless ``errors`` says otherwise (see ``str``)."""
        return str(self.bytes(), encoding, errors)

    def json(self) -> Any:
        """Return the value of a JSON document or a scalar; of JSON lines, the list of their values."""
        with PartInErrors(self):
            return value_of(self._file())

    def table(self) -> Table:
        """Return the table of a directory of columns, or of a view's ``.parquet`` file."""
        from glassfs.library.table import table_of

        found = table_of(self._entered, self._session.paths, self._path)
        if found is None:
            raise self._error(Unsuited, "is not a table")
        return found

    def open(self) -> io.BufferedReader:
        """Return a file object with ``read`` and ``seek``. The caller must close it."""
        with PartInErrors(self):
            return stream_of(self._file(), self.path)

    # Representation, comparison, pickling.

    def __repr__(self) -> str:
        try:
            node: Node | None = self._found
        except GlassfsError:
            node = None
        words = [f"glassfs.{type(self).__name__}", repr(printable(self.path or self._session.asked.shown))]
        return f"<{' '.join(filter(None, [*words, description(node)]))}>"

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
        era = session.era
        _, node = session.paths.find(self._path)
        # An entry that was unpickled, or outlived a fork, must be of the version that it was found in.
        if self._identity and isinstance(node, Directory):
            node.enter()  # a presumed container has no version to compare
        if self._identity and version_of(node) != self._identity:
            raise self._error(Changed, REPLACED)
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
        paths = self._session.paths
        if isinstance(self._node, File) and self._path != "/":
            raise self._error(NotADirectory, "is not a directory")
        found, node = paths.find(below(self._path, path))
        return Entry(self._session, found, node)

    def _directory(self) -> Directory:
        node = self._entered
        if not isinstance(node, Directory):
            raise self._error(NotADirectory, "is not a directory")
        return node

    def _file(self) -> File:
        node = self._entered
        if not isinstance(node, File):
            raise self._error(IsADirectory, "is a directory")
        return node

    def _mapping(self) -> Mapping[str, Entry]:
        self._directory()
        return cast("Mapping[str, Entry]", self)

    def _of_array(self) -> File:
        """Return the file, or for a directory of frames that of the video."""
        node = self._found
        if isinstance(node, File):
            return node
        if isinstance(node, Directory) and self._path != "/":
            beside = self._session.paths.beside(self._path, node, FIRST_EXTENSION)
            if isinstance(beside, File):
                return beside
            beside = self._session.paths.beside(self._path, node, VIDEO)
            if isinstance(beside, File) and isinstance(beside.content, contents.Video):
                return beside
        return self._file()

    def _is_array(self) -> bool:
        """Return whether the entry is a file of an array, rather than a directory or another file."""
        node = self._entered
        return isinstance(node, File) and self._has_array(node)



class Library(Entry):
    """The root of what ``glassfs.open`` opened. A context manager.

    ``close`` releases everything; entries raise ``glassfs.errors.Closed`` then. Arrays and file objects stay valid.
    """

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
    layout: str, storage_options: Mapping[str, Any], selected: tuple[str, str, int],
) -> Library:
    """Implement ``glassfs.open``."""
    names = named(sources)
    connection = Connection()
    if storage_options:
        from glassfs.source.remote.options import connection_to  # rarely needed

        sources = asked(names, None).sources if any(map(is_selection, names)) else names
        connection = connection_to(sources, storage_options)
    session = LibrarySession(OpenArguments(names, cache_size, spool, views, connection, layout, Words.of(*selected)))
    _, node = session.paths.find("/")
    return Library(session, "/", node)


def _matching(entry: Entry, pattern: Sequence[str], is_lenient: bool = False) -> Iterator[Entry]:
    """Yield the entries that match. If ``is_lenient``, directories that cannot be listed are skipped."""
    if not pattern:
        yield entry
        return
    first, rest = pattern[0], pattern[1:]
    is_deep, names = first == "**", [first]
    if _WILD & set(first):
        # With ``**`` further on, a directory that is broken costs its own entries only.
        is_lenient = is_lenient or "**" in rest
        names = [name for name in _names(entry, is_lenient) if fnmatchcase(name, first)]
    if is_deep:
        yield from _matching(entry, rest or ["*"], True)
        rest, is_lenient = pattern, True
    for name in names:
        found = _inner(entry, name, is_lenient)
        if found is None or (rest and not found.is_dir()):
            continue
        if not is_deep or found.path == below(entry.path, name)[1:]:  # not through a link, which may lead in a circle
            yield from _matching(found, rest, is_lenient)


def _names(directory: Entry, is_lenient: bool) -> list[str]:
    try:
        return list(directory.keys())
    except _BROKEN as error:
        # What was only presumed to be a directory has no names, and that is no error.
        if not (is_lenient or isinstance(error, NotADirectory)):
            raise
        return []


def _inner(directory: Entry, name: str, is_lenient: bool) -> Entry | None:
    try:
        return directory.get(name)
    except _BROKEN:
        if not is_lenient:
            raise
        return None

"""The known formats, and opening a source with the right one.

Third parties add a format with an entry point in the group ``glassfs.formats``, called as the format; its value is a
``Format``. The first bytes of a file decide its format, or its last ones if a format keeps its index there. In stores
where reading them is too slow (``Store.is_remote``), the file name decides whether the file is listed as a container,
and its bytes decide when a reader enters it.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from glassfs.cache import BlockCache
from glassfs.cache.catalogue import Findings
from glassfs.content import ARRAYS, EPISODES, Container
from glassfs.content.allowance import Allowance
from glassfs.errors import GlassfsError, NotFound, Passing, Postponed, Refused, Unrecognised
from glassfs.source import BUFFERED, Kind, Path, Source, SourceFile, Store

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from glassfs.sandbox.client import Sandbox

GROUP = "glassfs.formats"
HEAD = 4096
LONGEST_TAIL = 128 << 10
AHEAD = 16 << 10
"""A file of up to so many bytes is read whole to recognize and open it, of others the first HEAD bytes: copying more
takes as long as another read."""
INDEX = ".index.json"
"""After the name of a container: the index of its shards, as the libraries of Hugging Face write it."""
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "kinodb": (".kdb",),
    # A recording that was interrupted just before its renaming is complete.
    "wshard": (".wshard", ".wshard.partial", ".shard"),
    "kastore": (".kas", ".trees"),
    "ikv": (".ikv",),
    "idv": (".idv",),
    "npz": (".npz",),
    "safetensors": (".safetensors", f".safetensors{INDEX}"),
    "mcap": (".mcap",),
    "hdf5": (".h5", ".hdf5"),
}
"""Built-in formats in the order of recognition, and their suffixes. Modules are imported on demand."""
JOINED: Mapping[str, tuple[str, ...]] = {
    "kinodb": (EPISODES,), "wshard": (EPISODES,), "kastore": ("trees", ARRAYS), "idv": ("tables",),
    "npz": (EPISODES, ARRAYS), "mcap": (EPISODES, "recordings"), "safetensors": (ARRAYS,), "hdf5": (EPISODES, ARRAYS),
}
"""The joined tables to which containers of built-in formats may contribute rows; those of others have none."""
EXPECTED: Mapping[str, tuple[str, ...]] = {
    ".kas": (ARRAYS,), ".npz": (ARRAYS,), ".mcap": ("recordings",), ".h5": (), ".hdf5": (),
}
"""Suffixes of files that seldom give rows to other tables: tree sequences are called ``.trees``, most arrays are no
episode. Arrays of HDF5 are not expected either, as a listing whose sizes are asked for would have workers find all."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Opening:
    """What a format needs to open a container: its ``source``, and a ``cache`` for decoded blocks. Never changed.

    ``store`` and ``path`` locate the source; a source without a store has none. ``known`` are open siblings that the
    caller keeps. ``asked`` records the requested siblings and their sources, or the stamps of those that could not be
    opened, "" for those that are missing. ``findings`` are what formats keep.
    ``may_wait`` says that the caller only wants to know whether the file looks like a container, if opening it is slow.
    ``layout`` says with which layouts generic containers are compared (``layouts.known``).
    """

    source: Source
    cache: BlockCache
    store: Store | None = None
    path: Path = ()
    asked: list[tuple[Path, Source | str]] = field(default_factory=list)
    known: Mapping[Path, Source] = field(default_factory=dict)
    findings: Findings | None = None
    may_wait: bool = False
    layout: str = ""

    @cached_property
    def allowance(self) -> Allowance:
        """The memory that may be taken for what is parsed of the container. Raises TooLarge beyond it."""
        return Allowance.of_container(self.source.size, self.cache.budget)

    def found(self, name: bytes) -> bytes | None:
        """Return what ``keep`` stored under a name for this version of the container; the format must check it."""
        if self.findings is None or self.store is None or not self.store.has_lasting_versions:
            return None
        return self.findings.find(self.source.entry.stamp, name)

    def keep(self, name: bytes, value: bytes) -> None:
        """Store, if possible, what took long to find in the container, for other processes and later."""
        if self.findings is not None and self.store is not None and self.store.has_lasting_versions:
            entry = self.source.entry
            self.findings.keep(entry.stamp, entry.mtime_ns, name, value)

    def sibling(self, name: str) -> Source:
        """Open the file ``name`` in the container's folder. Raises NotFound, also for names outside that folder.

        Several threads may call it at once.
        """
        if self.store is None or name in ("", ".", "..") or "/" in name or "\0" in name:
            raise NotFound("is not the name of a file in the same folder", part=repr(name))
        path = (*self.path[:-1], name)
        if path in self.known:
            return self.known[path]
        found: Source | str = ""
        try:
            entry = self.store.entry(path)
            found = entry.stamp
            if entry.kind is not Kind.FILE:
                raise NotFound(f"is not a regular file ({entry.kind.value})", self.store.shown(path))
            source = found = self.store.open(path)
        except NotFound as error:
            raise error if found else NotFound("is missing", self.store.shown(path)) from error
        finally:
            self.asked.append((path, found))
        return source

    def sandbox(self, library: str = "hdf5", memory: int = 0) -> Sandbox:
        """Return requests on the source to a worker process with a library, which a module in ``sandbox/`` names.

        It may take so many bytes of memory beside those of every worker.
        """
        from glassfs.sandbox.client import Sandbox  # few formats need one

        return Sandbox(self.source, library, memory)

    def close_asked(self) -> None:
        for _, source in self.asked:
            if isinstance(source, Source):
                source.close()

    def file(self, source: Source | None = None) -> io.BufferedReader:
        """Return a seekable, read-only file object over a source, by default the container's own.

        It is for libraries that want one, and for one thread at a time. Reads raise the errors of the source, which are
        also OSErrors. Closing it leaves the source open.
        """
        return io.BufferedReader(SourceFile(source or self.source), BUFFERED)

    def warn(self, reason: str, part: str = "") -> None:
        """Log an error that costs at most part of the container."""
        log.warning("%s", GlassfsError(reason, self.source.name, part))


class Head(bytes):
    """The first bytes of a file, at most HEAD, which decide its format, and on request its last bytes.

    ``name`` is the file's name without its folder, empty if unknown, and ``size`` its size.
    """

    name: str
    size: int
    _read: Callable[[int, int], bytes] | None

    def __new__(
        cls, data: bytes, name: str = "", size: int | None = None, read: Callable[[int, int], bytes] | None = None,
    ) -> Head:
        made = bytes.__new__(cls, data)
        made.name, made.size, made._read = name, len(data) if size is None else size, read
        return made

    @classmethod
    def of(cls, source: Source, data: bytes) -> Head:
        """Return the head of a source that starts with ``data``."""
        return cls(data[:HEAD], source.name.rpartition("/")[2], source.entry.size, source.read)

    def tail(self, size: int) -> bytes:
        """Return the last ``size`` bytes, at most LONGEST_TAIL, or all if there are fewer.

        They are read from the file unless the head reaches so far: check head, name and size before, as every file of
        a folder is asked. Raises what prevents reading.
        """
        size = min(size, LONGEST_TAIL, self.size)
        return self.part(self.size - size, size)

    def part(self, offset: int, size: int) -> bytes:
        """Return bytes from ``offset`` on, fewer at the end of the file. The same holds as for ``tail``."""
        if offset + size <= len(self) or self._read is None:
            return bytes(self[offset : offset + size])
        return self._read(offset, min(size, self.size - offset)) if offset < self.size else b""


@dataclass(frozen=True)
class Format:
    """A format. ``recognises`` receives the first bytes of a file (at most HEAD) and must be quick and certain.

    ``open`` reads and checks header and index. It raises Damaged or Refused if nothing can be shown, and must not
    allocate by counts that it has not compared with the source's size.
    """

    name: str
    recognises: Callable[[Head], bool]
    open: Callable[[Opening], Container]

    hint: Callable[[Head], str | None] = lambda head: None
    """Return why a file with these first bytes is not of this format although it looks similar, or None."""

    suffixes: tuple[str, ...] = ()
    """Suffixes of such files, lower case with the dot, for stores where reading first bytes is too slow. Without
    suffixes, files of the format must be named explicitly there."""

    joined: tuple[str, ...] = ()
    """The joined tables to which its containers may contribute rows (``Container.tables``). A folder lists those of
    the formats that it seems to contain, before any container is opened."""

    is_slow: Callable[[Head], bool] = lambda head: False
    """Return whether opening a container with these first bytes takes milliseconds. Folders list it by them alone."""

    missing: Callable[[], str] = lambda: ""
    """Return what its containers need and how to install it, if that is not installed."""

    ahead: int = HEAD
    """First bytes of a file that are read at once before ``open``, for formats that read more than HEAD in pieces."""


def open_container(opening: Opening) -> Container:
    """Open a container with the format that recognizes it.

    Raises Unrecognised if none does, Refused if the container cannot be opened, Passing if it cannot be determined now,
    and Postponed if the format is slow and the caller may wait.
    """
    source = opening.source
    try:
        size = source.entry.size
        head = Head.of(source, source.read_ahead(size if size <= AHEAD else HEAD))
        chosen = recognise(head)
        if chosen is None:
            raise _why_unrecognised(source, head)
        if opening.may_wait and chosen.is_slow(head):
            raise Postponed(f"is opened as {chosen.name} when it is needed", source.name)
        if chosen.ahead > HEAD:
            source.read_ahead(chosen.ahead)
        try:
            return chosen.open(opening)
        except BaseException as error:
            opening.close_asked()
            if not isinstance(error, GlassfsError):
                raise
            if isinstance(error, (Refused, Passing)):
                raise error.at(source.name) from error
            shown = error if error.source in ("", source.name) else GlassfsError(str(error))
            raise Refused(shown.reason, source.name, shown.part) from error
    finally:
        source.drop_ahead()


def recognise(head: Head) -> Format | None:
    """Return the format of a file that starts with ``head``, or None."""
    # The format that the name suggests is asked first, as others need not be imported then; next, those with the most
    # certain signatures. Those of other packages are last, as loading their entry points takes longer than all checks.
    named = (_built_in(name) for name, suffixes in BUILT_IN.items() if head.name.lower().endswith(suffixes))
    for known in chain(named, built_in()):
        if known.recognises(head):
            return known
    return next((known for known in installed() if known.recognises(head)), None)


def may_be_container(name: str) -> bool:
    """Return whether a file of this name is listed as a container before its first bytes are read. Ignores case."""
    return joined_by(name) is not None


def joined_by(name: str, has_unexpected: bool = False) -> Sequence[str] | None:
    """Return the joined tables to which a file of this name should give rows, None if no format has its suffix.

    If it ``has_unexpected``, those to which it may give rows.
    """
    name = name.lower()
    for known, suffixes in BUILT_IN.items():
        if name.endswith(suffixes):
            tables = JOINED.get(known, ())
            return tables if has_unexpected else EXPECTED.get(f".{name.rpartition('.')[2]}", tables)
    return next((added.joined for added in installed() if name.endswith(tuple(added.suffixes))), None)


@cache
def joined_names() -> frozenset[str]:
    """Return the names of all joined tables that formats say they contribute to."""
    return frozenset().union(*JOINED.values(), *(added.joined for added in installed()))


def built_in() -> Iterator[Format]:
    """Return the built-in formats in the order of recognition, importing each on demand."""
    return map(_built_in, BUILT_IN)


@cache
def _built_in(name: str) -> Format:
    known: Format = import_module(f"glassfs.formats.{name}").FORMAT
    return replace(known, suffixes=BUILT_IN[name], joined=JOINED.get(name, ()))


class PlugIn(NamedTuple):
    """A format of another package: the name of its entry point, and the package with its version.

    ``format`` is None if it cannot be used, ``reason`` says why.
    """

    name: str
    package: str
    format: Format | None
    reason: str = ""


@cache
def plug_ins() -> tuple[PlugIn, ...]:
    """Load the formats of other packages. None of them can fail another."""
    from importlib.metadata import entry_points

    return tuple(map(_loaded, entry_points(group=GROUP)))


def _loaded(entry: EntryPoint) -> PlugIn:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    try:
        loaded = entry.load()
    except Exception as error:
        return PlugIn(entry.name, package, None, f"cannot be loaded: {type(error).__name__}: {error}")
    if not isinstance(loaded, Format):
        return PlugIn(entry.name, package, None, "is not a glassfs.formats.registry.Format")
    return PlugIn(entry.name, package, loaded)


@cache
def installed() -> tuple[Format, ...]:
    """Return the formats of other packages, and log which cannot be used.

    Called only for files that no built-in format recognizes.
    """
    for one in plug_ins():
        if one.format is None:
            log.warning("format %s %s", one.name, one.reason)
    return tuple(one.format for one in plug_ins() if one.format is not None)


def _why_unrecognised(source: Source, head: Head) -> Refused:
    """Return why no format recognizes a file: Refused if its name is that of a container, whose bytes are missing then.
    """
    from glassfs.formats.mistaken import mistaken  # not needed for names

    hints = (known.hint(head) for known in chain(built_in(), installed()))
    if not head:
        reason: str | None = "is empty"
    elif hint := next(filter(None, hints), None):
        reason = hint
    elif not any(head[:64]):  # bytes that writers leave zero, at least, until they finish the file
        reason = (
            "starts with zeros: its writer has not finished it (KinoDB and WShard both reserve zeros first), or it is "
            "not a container"
        )
    else:
        reason = mistaken(head)
    kind = Refused if may_be_container(head.name) else Unrecognised
    return kind(reason or "is not a container of a known format", source.name)

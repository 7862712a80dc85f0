"""The known formats, and opening a source with the right one.

Third parties add a format with an entry point in the group ``glassfs.formats``: the entry point's name is the format's
name, its value a ``Format``.

The first bytes of a file decide its format. In stores where reading them is too slow (``Store.is_remote``), the file
name decides whether the file is listed as a container, and its first bytes decide when a reader enters it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.errors import GlassfsError, NotFound, Passing, Refused, Unrecognised
from glassfs.source import Path, Source, Store

GROUP = "glassfs.formats"
HEAD = 4096
AHEAD = 16 << 10
"""Bytes of a file read at once to recognize and open it; enough for small containers."""
RESERVED = 64  # bytes that writers leave zero, at least, until they finish the file
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "kinodb": (".kdb",),
    # A recording that was interrupted just before its renaming is complete.
    "wshard": (".wshard", ".wshard.partial", ".shard"),
    "kastore": (".kas", ".trees"),
    "ikv": (".ikv",),
    "idv": (".idv",),
}
"""Built-in formats in the order of recognition, and their suffixes. Modules are imported on demand."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """What a format needs to open a container: its ``source``, and a ``cache`` for decoded blocks.

    ``store`` and ``path`` locate the source; a source without a store has none. ``known`` are open siblings that the
    caller keeps. ``asked`` records the requested siblings and the opened sources.
    """

    source: Source
    cache: BlockCache
    store: Store | None = None
    path: Path = ()
    asked: list[tuple[Path, Source | None]] = field(default_factory=list)
    known: Mapping[Path, Source] = field(default_factory=dict)

    def sibling(self, name: str) -> Source:
        """Open the file ``name`` in the container's folder. Raises NotFound, also for names outside that folder."""
        if self.store is None or name in ("", ".", "..") or "/" in name or "\0" in name:
            raise NotFound("is not the name of a file in the same folder", part=repr(name))
        path = (*self.path[:-1], name)
        source = self.known.get(path)
        if source is None:
            self.asked.append((path, None))
            source = self.store.open(path)
            self.asked[-1] = path, source
        return source

    def close_asked(self) -> None:
        """Close the siblings that were opened."""
        for _, source in self.asked:
            if source is not None:
                source.close()

    def warn(self, reason: str, part: str = "") -> None:
        """Log an error that costs at most part of the container."""
        log.warning("%s", GlassfsError(reason, self.source.name, part))


@dataclass(frozen=True)
class Format:
    """A format. ``recognises`` receives the first bytes (at most HEAD) and must be quick and certain.

    ``open`` reads and checks header and index. It raises Damaged or Refused if nothing can be shown, and must not
    allocate by counts that it has not compared with the source's size.
    """

    name: str
    recognises: Callable[[bytes], bool]
    open: Callable[[Opening], Container]

    hint: Callable[[bytes], str | None] = lambda head: None
    """Return why a file with these first bytes is not of this format although it looks similar, or None."""

    suffixes: tuple[str, ...] = ()
    """Suffixes of such files, lower case with the dot, for stores where reading first bytes is too slow. Without
    suffixes, files of the format must be named explicitly there."""


def open_container(opening: Opening) -> Container:
    """Open a container with the format that recognizes it.

    Raises Unrecognised if none does, Refused if the container cannot be opened, Passing if it cannot be determined now.
    """
    source = opening.source
    with source.ahead(AHEAD) as ahead:
        head = ahead[:HEAD]
        chosen = recognise(head)
        if chosen is None:
            raise Unrecognised(why_unrecognised(head), source.name)
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


def recognise(head: bytes) -> Format | None:
    """Return the format of a file that starts with ``head`` (its first HEAD bytes), or None."""
    return next((known for known in _all_formats() if known.recognises(head)), None)


def may_be_container(name: str) -> bool:
    """Return whether a file of this name is listed as a container before its first bytes are read. Ignores case."""
    name = name.lower()
    if any(map(name.endswith, BUILT_IN.values())):
        return True
    return any(name.endswith(tuple(added.suffixes)) for added in installed())


def built_in() -> Iterator[Format]:
    """Yield the built-in formats in the order of recognition, importing each on demand."""
    for name in BUILT_IN:
        yield import_module(f"glassfs.formats.{name}").FORMAT


def _all_formats() -> Iterator[Format]:
    yield from built_in()
    yield from installed()


@cache
def installed() -> tuple[Format, ...]:
    """Return the formats of other packages. Called only for files that no built-in format recognizes."""
    from importlib.metadata import entry_points

    found = []
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
        except Exception as error:
            log.warning("format %s cannot be loaded: %s", entry.name, error)
            continue
        if isinstance(loaded, Format):
            found.append(loaded)
        else:
            log.warning("format %s is not a glassfs.formats.registry.Format", entry.name)
    return tuple(found)


def why_unrecognised(head: bytes) -> str:
    """Return why no format recognizes a file that starts with ``head``."""
    if not head:
        return "is empty"
    for known in _all_formats():
        hint = known.hint(head)
        if hint:
            return hint
    if not any(head[:RESERVED]):
        return (
            "starts with zeros: its writer has not finished it (KinoDB and WShard both reserve zeros first), or it is "
            "not a container"
        )
    return "is not a container of a known format"

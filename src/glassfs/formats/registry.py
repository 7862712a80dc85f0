"""Which formats there are, and opening a source with the right one.

A third party adds a format by an entry point in the group ``glassfs.formats``: its name is the format's, its value a
``Format``.

What a file is, its first bytes decide. Where looking at them costs too much (``Store.is_remote``) its name tells
whether it may be a container at all, and the first bytes decide once somebody wants to see inside.
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
"""Bytes that are read of a file at once to see whether it is a container: what small ones need to be opened."""
RESERVED = 64  # bytes that writers leave zero at the least, until they know what to write there
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "kinodb": (".kdb",),
    # A recording that was broken off just before it got its name is whole.
    "wshard": (".wshard", ".wshard.partial", ".shard"),
    "kastore": (".kas", ".trees"),
    "ikv": (".ikv",),
    "idv": (".idv",),
}
"""The formats of this package in the order in which they are tried, and their suffixes: a name imports none of them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """What a format is given to open a container: its ``source``, and the ``cache`` for what it decodes.

    ``store`` and ``path`` say where the source comes from; there are none where only bytes are there. ``known`` are
    siblings that are there already, and stay whatever happens. ``asked`` are the siblings that were asked for, with
    what was opened.
    """

    source: Source
    cache: BlockCache
    store: Store | None = None
    path: Path = ()
    asked: list[tuple[Path, Source | None]] = field(default_factory=list)
    known: Mapping[Path, Source] = field(default_factory=dict)

    def sibling(self, name: str) -> Source:
        """Opens the file called ``name`` in the folder of the container. Raises NotFound; never leaves that folder."""
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
        """Closes the siblings that were opened for this."""
        for _, source in self.asked:
            if source is not None:
                source.close()

    def warn(self, reason: str, part: str = "") -> None:
        """Tells whoever reads the log of something wrong that costs part of the container or nothing."""
        log.warning("%s", GlassfsError(reason, self.source.name, part))


@dataclass(frozen=True)
class Format:
    """A format. ``recognises`` is given the first bytes (up to HEAD) and must be quick and certain.

    ``open`` reads header and index and checks them. It raises Damaged or Refused where nothing can be shown, and must
    not allocate by counts that it has not compared with the source's size.
    """

    name: str
    recognises: Callable[[bytes], bool]
    open: Callable[[Opening], Container]

    hint: Callable[[bytes], str | None] = lambda head: None
    """Why a file with these first bytes is not of this format, although one might expect it, or None."""

    suffixes: tuple[str, ...] = ()
    """How the names of such files end, in small letters with the point: for stores in which looking at first bytes
    costs too much. There, files of a format that gives none have to be named one by one."""


def open_container(opening: Opening) -> Container:
    """Opens a container with the format that recognises it.

    Raises Unrecognised where none does, Refused where it cannot be opened, and Passing where nobody can tell.
    """
    source = opening.source
    with source.ahead(AHEAD) as ahead:
        head = ahead[:HEAD]
        chosen = recognise(head)
        if chosen is None:
            raise Unrecognised(why_unrecognised(head), source.name)
        return _opened_with(chosen, opening)


def _opened_with(chosen: Format, opening: Opening) -> Container:
    source = opening.source
    try:
        return chosen.open(opening)
    except BaseException as error:
        opening.close_asked()
        if not isinstance(error, GlassfsError):
            raise
        if isinstance(error, (Refused, Passing)):
            raise error.at(source.name) from error
        told = error if error.source in ("", source.name) else GlassfsError(str(error))
        raise Refused(told.reason, source.name, told.part) from error


def recognise(head: bytes) -> Format | None:
    """The format of a file that starts with ``head`` (its first HEAD bytes), or None."""
    for known in (built_in, installed):
        for candidate in known():
            if candidate.recognises(head):
                return candidate
    return None


def may_be_container(name: str) -> bool:
    """Whether a file of this name is to be taken for a container until its first bytes are there. Case is no matter."""
    name = name.lower()
    if any(map(name.endswith, BUILT_IN.values())):
        return True
    return any(name.endswith(tuple(added.suffixes)) for added in installed())


def built_in() -> Iterator[Format]:
    """The formats of this package, in the order in which they are tried; each is imported when its turn comes."""
    for name in BUILT_IN:
        yield import_module(f"glassfs.formats.{name}").FORMAT


@cache
def installed() -> tuple[Format, ...]:
    """The formats that other packages add. Looked up only for files that no built-in format knows."""
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
    """Why no format knows a file that starts with ``head``."""
    if not head:
        return "is empty"
    for known in (built_in, installed):
        for candidate in known():
            hint = candidate.hint(head)
            if hint:
                return hint
    if not any(head[:RESERVED]):
        return (
            "starts with zeros: its writer has not finished it (KinoDB and WShard both reserve zeros first), or it is "
            "not a container"
        )
    return "is not a container of a known format"

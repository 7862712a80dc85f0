"""Which formats there are, and opening a source with the right one.

A third party adds a format by an entry point in the group ``glassfs.formats``: its name is the format's, its value a
``Format``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from glassfs.cache import BlockCache
from glassfs.content import Container
from glassfs.errors import GlassfsError, Refused, Unrecognised
from glassfs.source import Source

GROUP = "glassfs.formats"
HEAD = 4096

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Format:
    """A format. ``recognises`` is given the first bytes (up to HEAD) and must be quick and certain.

    ``open`` reads header and index and checks them. It raises Damaged or Refused where nothing can be shown, and must
    not allocate by counts that it has not compared with the source's size.
    """

    name: str
    recognises: Callable[[bytes], bool]
    open: Callable[[Source, BlockCache], Container]

    hint: Callable[[bytes], str | None] = lambda head: None
    """Why a file with these first bytes is none of this format although one might expect it, or None."""


_BUILT_IN = ("kinodb", "wshard", "kastore", "ikv", "idv")


def open_container(source: Source, cache: BlockCache) -> Container:
    """Opens ``source`` with the format that recognises it.

    Raises Unrecognised where none does, Refused (one line: the file's name and the reason) where it cannot be opened.
    """
    head = source.read(0, min(HEAD, source.size))
    chosen = recognise(head)
    if chosen is None:
        raise Unrecognised(source.name, _why_unrecognised(head))
    try:
        return chosen.open(source, cache)
    except Refused:
        raise
    except GlassfsError as error:
        raise Refused(source.name, str(error).removeprefix(f"{source.name}: ")) from error


def recognise(head: bytes) -> Format | None:
    """The format of a file that starts with ``head`` (its first HEAD bytes), or None."""
    for known in (built_in, installed):
        for candidate in known():
            if candidate.recognises(head):
                return candidate
    return None


def built_in() -> Iterator[Format]:
    """The formats of this package, in the order in which they are tried; each is imported when its turn comes."""
    for name in _BUILT_IN:
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


def _why_unrecognised(head: bytes) -> str:
    if not head:
        return "is empty"
    if not any(head):
        return "starts with zeros: its writer did not finish it, or it is no container"
    for candidate in built_in():
        hint = candidate.hint(head)
        if hint:
            return hint
    return "is not a container of a known format"

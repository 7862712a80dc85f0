"""Groups as contents: their links are described by the worker when a caller lists them (§7, §8). Any thread.

Hard links show the same contents under each name, soft links are symbolic ones. A group that contains itself ends with
a symbolic link to the first. External links are never followed: they are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

from glassfs import work
from glassfs.content import Content, Document, Group, Link, Member, Omitted
from glassfs.errors import GlassfsError, Passing
from glassfs.formats.hdf5 import dataset, description
from glassfs.formats.hdf5.answers import Answers
from glassfs.formats.hdf5.description import Object
from glassfs.formats.hdf5.elements import Asked
from glassfs.formats.hdf5.episodes import Ancestor, Episodes
from glassfs.formats.registry import Opening
from glassfs.lru import LRU
from glassfs.source import Version

AT_ONCE = 1_000
"""Objects that are asked for together."""
MOST_SHARED = 4
"""Groups with several names on one path: more would multiply the paths to what is below."""
DEEPEST = 128
"""Groups on one path."""
LARGEST_RECENT, MOST_RECENT = 200, 2_000
"""Objects of a group that is remembered, and of all of them."""
DOCUMENT_COST = 8 << 20
MOST_CHUNKS = 2_000
"""Chunks of a dataset whose list may be asked for together with others."""
ATTRIBUTES = b"attributes"

_recent: LRU[tuple[Version, tuple[bytes, ...]], list[Object]] = LRU(MOST_RECENT)
"""What was listed last, of all containers: an answer describes small groups with the group above."""


class Listing:
    """Makes contents of the objects in one container. ``may_have_episodes``: its names look like those of episodes."""

    def __init__(self, opening: Opening, answers: Answers, may_have_episodes: bool) -> None:
        self._opening = opening
        self._answers = answers
        self.episodes = Episodes(self, may_have_episodes)

    def root(self, found: Object) -> Group:
        """Return the root group."""
        return self._group((), (Ancestor(found.address, False),), found.attributes)

    def asked(self, path: tuple[bytes, ...]) -> Asked:
        opening = self._opening
        return Asked(self._answers, opening.cache, opening.source.version, path)

    def objects(self, path: tuple[bytes, ...]) -> Iterator[Object]:
        """Yield what is in a group. Raises Damaged."""
        version = self._opening.source.version
        known = _recent.get((version, path))
        if known is not None:
            yield from known
            return
        first, count = 0, 1
        while first < count:
            work.check()
            names = [part.decode("latin-1") for part in path]
            answer = self._answers.described({"do": "list", "path": names, "first": first, "count": AT_ONCE})
            count, objects, inner = description.listed(answer)
            for group, found in (*inner, (path, objects)) if len(objects) == count else ():
                self._answers.note(_small(group, found))
                if len(found) <= LARGEST_RECENT:
                    _recent.put((version, group), found, 1 + len(found))
            if not objects:
                return
            yield from objects
            first += len(objects)

    def attributes(self, path: tuple[bytes, ...]) -> Any:
        """Return the attributes of an object, untrusted JSON. Raises Damaged."""
        request = {"do": "attributes", "path": [part.decode("latin-1") for part in path]}
        # Those of episodes are rows of tables, which the catalogue keeps itself.
        return self._answers.ask(request)[0] if len(path) > 1 else self._answers.described(request)

    def contents(self, path: tuple[bytes, ...], above: tuple[Ancestor, ...]) -> Iterator[Member]:
        """Yield the contents of a group's objects."""
        for found in self.objects(path):
            try:
                yield from self._object(found, (*path, found.name), above)
            except Passing:
                raise
            except GlassfsError as error:
                yield Member((found.name,), Omitted(found.name, error.reason, is_damage=True))

    def _group(self, path: tuple[bytes, ...], above: tuple[Ancestor, ...], attributes: int = 0) -> Group:
        return Group(path[-1] if path else b"", partial(self._members, path, above, attributes))

    def _members(self, path: tuple[bytes, ...], above: tuple[Ancestor, ...], attributes: int) -> Iterator[Member]:
        if not path and attributes:
            yield Member((b"meta", ATTRIBUTES), self._document(()))
        contents = partial(self.contents, path, above)
        yield from self.episodes.members(path, contents) if self.episodes.is_episode(path) else contents()
        if not path:
            yield from self.episodes.links()

    def _object(self, found: Object, path: tuple[bytes, ...], above: tuple[Ancestor, ...]) -> Iterator[Member]:
        """Yield the contents of an object. Raises Damaged if the library cannot describe it."""
        name = path[-1]
        if found.kind == "group":
            yield Member((name,), self._subgroup(found, path, above))
        elif found.dataset is not None:
            hidden = dataset.why_hidden(found.dataset)
            if hidden:
                yield Member((name,), Omitted(name, hidden))
                return
            yield from dataset.members(self._opening.source, self.asked(path), found.dataset)
        elif found.kind == "soft":
            yield self._link(found, path)
        elif found.kind == "external":
            yield Member((name,), Omitted(name, "external link: other files are never read"))
            return
        elif found.kind != "type":
            raise self._opening.source.damage(found.reason or "is of an unknown kind")
        if found.attributes:
            yield Member((b"%b.%b" % (name, ATTRIBUTES),), self._document(path))

    def _subgroup(self, found: Object, path: tuple[bytes, ...], above: tuple[Ancestor, ...]) -> Content:
        for number, ancestor in enumerate(above):
            if ancestor.address == found.address:
                return Link(path[-1], (b"..",) * (len(above) - 1 - number) or (b".",))
        is_shared = found.names > 1
        if len(above) > DEEPEST or (is_shared and sum(one.is_shared for one in above) >= MOST_SHARED):
            return Omitted(path[-1], "nested group: it is below too many others, or others with several names")
        return self._group(path, (*above, Ancestor(found.address, is_shared)))

    def _link(self, found: Object, path: tuple[bytes, ...]) -> Member:
        """Return a symbolic link. Its target may not exist; the missing names stay in it."""
        parts = [part for part in found.target.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            return Member((path[-1],), Omitted(path[-1], "reserved link: its target contains .."))
        suffix = b"" if found.final is None else _suffix(found.final)
        target = (*(b"..",) * (len(path) - 1), *parts) if found.target.startswith(b"/") else tuple(parts)
        if suffix and target:
            target = (*target[:-1], target[-1] + suffix)
        return Member((path[-1] + suffix,), Link(path[-1], target or (b".",)))

    def _document(self, path: tuple[bytes, ...]) -> Document:
        return Document(ATTRIBUTES, partial(self.attributes, path), DOCUMENT_COST)


def _small(group: tuple[bytes, ...], found: list[Object]) -> Iterator[tuple[tuple[bytes, ...], int]]:
    """Yield the paths of datasets in a group that have few chunks, and how many these may be."""
    for one in found:
        if one.dataset is not None and one.dataset.layout == "chunked":
            count = prod(-(-length // step) for length, step in zip(one.dataset.shape, one.dataset.chunks, strict=True))
            if count <= MOST_CHUNKS:
                yield (*group, one.name), count


def _suffix(found: Object) -> bytes:
    """Return the suffix of an object's file."""
    one = found.dataset
    if one is None or dataset.why_hidden(one):
        return b""
    if one.is_null:
        return b".null"
    if one.kind.name == "text":
        return (b".txt", b".jsonl", b".json")[min(2, len(one.shape))]
    return {"number": b".npy", "compound": b".npy", "bytes": b".bin"}.get(one.kind.name, b"")

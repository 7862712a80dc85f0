"""Groups as contents: their links are described by the worker when a caller lists them (§7, §8). Any thread.

Hard links show the same contents under each name, soft links are symbolic ones. A group that contains itself ends with
a symbolic link to the first. External links are never followed: they are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

from glassfs import work
from glassfs.content import Content, Document, Group, Link, Member, Omitted
from glassfs.content.allowance import held
from glassfs.errors import Damaged, GlassfsError, Passing
from glassfs.formats.hdf5 import dataset, description
from glassfs.formats.hdf5.answers import Answers, Path, as_text
from glassfs.formats.hdf5.description import Object
from glassfs.formats.hdf5.elements import Asked
from glassfs.formats.hdf5.episodes import Ancestor, Episodes
from glassfs.formats.registry import Opening
from glassfs.lru import LRU

AT_ONCE = 1_000
"""Objects that are asked for together."""
MOST_SHARED = 4
"""Groups with several names on one path: more would multiply the paths to what is below."""
DEEPEST = 128
"""Groups on one path."""
MOST_RECENT = 1 << 20
"""Bytes of objects that are remembered: an answer describes small groups with the group above."""
MOST_AHEAD = 64
"""Groups that are asked for together with the one before them."""
DOCUMENT_COST = 8 << 20
MOST_CHUNKS = 2_000
"""Chunks of a dataset whose list may be asked for together with others."""
ATTRIBUTES = b"attributes"


class Listing:
    """Makes contents of the objects in one container. ``may_have_episodes``: its names look like those of episodes."""

    def __init__(self, opening: Opening, answers: Answers, may_have_episodes: bool) -> None:
        self._opening = opening
        self._answers = answers
        self._recent: LRU[Path, list[Object]] = LRU(MOST_RECENT)
        """What was listed last. It belongs to the container, and is weighed and dropped with it."""
        self._ahead = 1
        self.kept, self.keep = answers.kept, answers.keep
        self.episodes = Episodes(self, may_have_episodes)

    def root(self, found: Object) -> Group:
        """Return the root group."""
        return self._group((), (Ancestor(found.address, False),), found.attributes)

    def asked(self, path: Path) -> Asked:
        opening = self._opening
        return Asked(self._answers, opening.cache, opening.source.version, path)

    def objects(self, path: Path) -> Iterator[Object]:
        """Yield what is in a group. Raises Damaged."""
        known = self._recent.get(path)
        if known is not None:
            yield from known
            return
        first, count = 0, 1
        while first < count:
            work.check()
            count, objects = self._some_objects(path, first, () if first else self._following(path))
            if not objects:
                return
            yield from objects
            first += len(objects)

    def ask_ahead(self, paths: Sequence[Path]) -> None:
        """Ask for several groups at once, of which ``objects`` then knows those that were described."""
        wanted = [path for path in paths if self._recent.peek(path) is None]
        with suppress(Damaged):  # as asking for one of them will show
            if wanted:
                self._some_objects(wanted[0], 0, wanted[1:])

    def _some_objects(self, path: Path, first: int, more: Iterable[Path]) -> tuple[int, list[Object]]:
        """Return the number of objects in a group and some of them, and remember those of small groups."""
        request = {"do": "list", "path": as_text(path), "first": first, "count": AT_ONCE}
        count, objects, inner = description.listed(self._answers.described(request, more=list(map(as_text, more))))
        for group, found in [*inner, (path, objects)] if len(objects) == count else inner:
            self._answers.note(_small(group, found))
            weight = held(found)
            if weight <= MOST_RECENT // 2:
                self._recent.put(group, found, weight)
        return count, objects

    def _following(self, path: Path) -> list[Path]:
        """Return groups to be asked for with this one: some that follow it, if the previous one was listed as well."""
        beside = self._recent.get(path[:-1]) if path else None
        names = [one.name for one in beside or () if one.kind == "group"]
        at = names.index(path[-1]) if path and path[-1] in names else 0
        is_next = at > 0 and self._recent.peek((*path[:-1], names[at - 1])) is not None
        self._ahead = min(2 * self._ahead, MOST_AHEAD) if is_next else 1
        following = [(*path[:-1], name) for name in names[at + 1 : at + self._ahead]]
        return [one for one in following if self._recent.peek(one) is None]

    def attributes(self, path: Path) -> Any:
        """Return the attributes of an object, untrusted JSON. Raises Damaged."""
        request = {"do": "attributes", "path": as_text(path)}
        # Those of episodes are rows of tables, which are kept.
        return self._answers.ask(request)[0] if len(path) > 1 else self._answers.described(request)

    def some_attributes(self, paths: Sequence[Path], names: Sequence[str]) -> Any:
        """Return those attributes of several objects that have these names, untrusted JSON. Raises Damaged."""
        request = {"do": "some_attributes", "paths": list(map(as_text, paths)), "names": names}
        return self._answers.ask(request)[0]

    def contents(self, path: Path, above: tuple[Ancestor, ...]) -> Iterator[Member]:
        """Yield the contents of a group's objects."""
        for found in self.objects(path):
            try:
                yield from self._object(found, (*path, found.name), above)
            except Passing:
                raise
            except GlassfsError as error:
                yield Member((found.name,), Omitted(found.name, error.reason, is_damage=True))

    def _group(self, path: Path, above: tuple[Ancestor, ...], attributes: int = 0) -> Group:
        return Group(path[-1] if path else b"", partial(self._members, path, above, attributes))

    def _members(self, path: Path, above: tuple[Ancestor, ...], attributes: int) -> Iterator[Member]:
        if not path and attributes:
            yield Member((b"meta", ATTRIBUTES), self._document(()))
        contents = partial(self.contents, path, above)
        yield from self.episodes.members(path, contents) if self.episodes.is_episode(path) else contents()
        if not path:
            yield from self.episodes.links()

    def _object(self, found: Object, path: Path, above: tuple[Ancestor, ...]) -> Iterator[Member]:
        """Yield the contents of an object. Raises Damaged if the library cannot describe it."""
        name = path[-1]
        if found.kind == "group":
            yield Member((name,), self._subgroup(found, path, above))
        elif found.dataset is not None:
            hidden = dataset.why_hidden(found.dataset)
            if hidden:
                yield Member((name,), Omitted(name, hidden))
            else:
                yield from dataset.members(self._opening.source, self.asked(path), found.dataset)
        elif found.kind == "soft":
            yield self._link(found, path)
        elif found.kind == "external":
            yield Member((name,), Omitted(name, "external link: other files are never read"))
            return
        elif found.kind == "type":
            yield Member((name,), Omitted(name, "named type: it describes others and has no values"))
        else:
            raise self._opening.source.damage(found.reason or "is of an unknown kind")
        if found.attributes:
            yield Member((b"%b.%b" % (name, ATTRIBUTES),), self._document(path))

    def _subgroup(self, found: Object, path: Path, above: tuple[Ancestor, ...]) -> Content:
        for number, ancestor in enumerate(above):
            if ancestor.address == found.address:
                return Link(path[-1], (b"..",) * (len(above) - 1 - number))
        is_shared = found.names > 1
        if len(above) > DEEPEST or (is_shared and sum(one.is_shared for one in above) >= MOST_SHARED):
            return Omitted(path[-1], "nested group: it is below too many others, or others with several names")
        return self._group(path, (*above, Ancestor(found.address, is_shared)))

    def _link(self, found: Object, path: Path) -> Member:
        """Return a symbolic link. Its target may not exist; the missing names stay in it."""
        parts = [part for part in found.target.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            return Member((path[-1],), Omitted(path[-1], "reserved link: its target contains .."))
        one = None if found.final is None else found.final.dataset
        inside = tuple(parts) if found.target.startswith(b"/") else (*path[:-1], *parts)
        suffix = b"" if one is None else dataset.suffix(self._opening.source, self.asked(inside), one)
        target = (*(b"..",) * (len(path) - 1), *parts) if found.target.startswith(b"/") else tuple(parts)
        if suffix and target:
            target = (*target[:-1], target[-1] + suffix)
        return Member((path[-1] + suffix,), Link(path[-1], target))

    def _document(self, path: Path) -> Document:
        return Document(ATTRIBUTES, partial(self.attributes, path), DOCUMENT_COST)


def _small(group: Path, found: list[Object]) -> Iterator[tuple[Path, int]]:
    """Yield the paths of datasets in a group that have few chunks, and how many these may be."""
    for one in found:
        if one.dataset is not None and one.dataset.layout == "chunked":
            count = prod(-(-length // step) for length, step in zip(one.dataset.shape, one.dataset.chunks, strict=True))
            if count <= MOST_CHUNKS:
                yield (*group, one.name), count

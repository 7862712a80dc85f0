"""Groups as contents: their links are described by the worker when a caller lists them (§7, §8). Any thread.

Hard links show the same contents under each name, soft links are symbolic ones. A group that contains itself ends with
a symbolic link to the first. External links are never followed: they are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from glassfs import work
from glassfs.content import Content, Document, Group, Link, Member, Omitted
from glassfs.content.allowance import held
from glassfs.errors import Damaged, GlassfsError, Passing
from glassfs.formats.hdf5 import dataset, description, frames
from glassfs.formats.hdf5.answers import Path, WorkerAnswers, as_text
from glassfs.formats.hdf5.description import Object
from glassfs.formats.hdf5.elements import DatasetRequests
from glassfs.formats.hdf5.frames import ContainerReader, FrameGroup
from glassfs.formats.registry import Opening
from glassfs.lru import LRU
from glassfs.sizes import PIECE

AT_ONCE = 1_000
"""Objects that are asked for together."""
MOST_SHARED = 4
"""Groups with several names on one path: more would multiply the paths to what is below."""
DEEPEST = 128
"""Groups on one path."""
ATTRIBUTES = b"attributes"


class Ancestor(NamedTuple):
    """A group on the path to another one. ``is_shared`` says that it has several names."""

    address: int
    is_shared: bool


class GroupListing:
    """Makes contents of the objects in one container."""

    def __init__(self, opening: Opening, answers: WorkerAnswers) -> None:
        self._opening = opening
        self._answers = answers
        self._recent: LRU[Path, list[Object]] = LRU(PIECE)
        """What was listed last. It belongs to the container, and is weighed and dropped with it."""
        self._attributes: LRU[Path, tuple[frozenset[str], dict[str, Any]]] = LRU(PIECE)
        """Attributes of groups that were asked for together: the names, and what was found."""

    def root(self, described: Object) -> Group:
        """Return the root group."""
        return self._group((), (Ancestor(described.address, False),), described.attributes)

    def asked(self, path: Path) -> DatasetRequests:
        opening = self._opening
        return DatasetRequests(self._answers, opening.cache, opening.allowance, opening.source.version, path)

    def objects(self, path: Path) -> Iterator[Object]:
        """Yield what is in a group. Raises Damaged."""
        known = self._recent.get(path)
        if known is not None:
            yield from known
            return
        # The worker describes as many objects as fit into an answer, and says how many there are in all.
        first, count = 0, 1
        while first < count:
            work.check()
            count, objects = self._some_objects(path, first, () if first else self._following(path))
            if not objects:
                return
            yield from objects
            first += len(objects)

    def prepare(self, paths: Sequence[Path], names: Sequence[str]) -> None:
        """List several groups at once, and ask for those of their attributes that have these names."""
        wanted = [path for path in paths if self._recent.peek(path) is None]
        with suppress(Damaged):  # as asking for one of them will show
            if wanted:
                self._some_objects(wanted[0], 0, wanted[1:])
            request = {"do": "some_attributes", "paths": list(map(as_text, paths)), "names": list(names)}
            found = self._answers.described(request) if names else None
            for path, facts in zip(paths, found if isinstance(found, list) else (), strict=False):
                if isinstance(facts, dict):
                    self._attributes.put(path, (frozenset(names), facts), held(facts))

    def _some_objects(self, path: Path, first: int, more: Iterable[Path]) -> tuple[int, list[Object]]:
        """Return the number of objects in a group and some of them, and remember those of small groups."""
        request = {"do": "list", "path": as_text(path), "first": first, "count": AT_ONCE}
        count, objects, inner = description.listed(self._answers.described(request, more=list(map(as_text, more))))
        for group, found in [*inner, (path, objects)] if len(objects) == count else inner:
            for one in found:
                if one.dataset is not None and one.dataset.layout == "chunked":
                    self._answers.note((*group, one.name), one.dataset.most_chunks)
            weight = held(found)
            if weight <= PIECE // 2:
                self._recent.put(group, found, weight)
        return count, objects

    def _following(self, path: Path) -> list[Path]:
        """Return groups to be asked for with this one: some that follow it, if the previous one was listed as well."""
        # A program that lists two groups in a row, such as ``find``, mostly lists those behind them as well.
        beside = self._recent.get(path[:-1]) if path else None
        names = [one.name for one in beside or () if one.kind == "group"]
        at = names.index(path[-1]) if path and path[-1] in names else 0
        if not at or self._recent.peek((*path[:-1], names[at - 1])) is None:
            return []
        following = [(*path[:-1], name) for name in names[at + 1 : at + 64]]
        return [one for one in following if self._recent.peek(one) is None]

    def attributes(self, path: Path) -> Any:
        """Return the attributes of an object, untrusted JSON. Raises Damaged."""
        request = {"do": "attributes", "path": as_text(path)}
        # Those of episodes are rows of tables, which are kept.
        return self._answers.ask(request)[0] if len(path) > 1 else self._answers.described(request)

    def _facts(self, path: Path, names: Sequence[str] | None) -> dict[str, Any]:
        """Return the attributes of a group that have these names, or all."""
        asked, found = self._attributes.get(path) or (frozenset(), {})
        if names is None or not asked.issuperset(names):
            answer = self.attributes(path)
            found = answer if isinstance(answer, dict) else {}
        return found if names is None else {name: found[name] for name in names if name in found}

    def contents(self, path: Path, above: tuple[Ancestor, ...]) -> Iterator[Member]:
        """Yield the contents of a group's objects."""
        for one in self.objects(path):
            try:
                yield from self._object(one, (*path, one.name), above)
            except Passing:
                raise
            except GlassfsError as error:
                yield Member((one.name,), Omitted(one.name, error.reason, is_damage=True))

    def _group(self, path: Path, above: tuple[Ancestor, ...], attributes: int = 0) -> Group:
        return Group(
            path[-1] if path else b"", partial(self._members, path, above, attributes), partial(self._tables, path),
            facts=partial(self._facts, path) if attributes else lambda names: {},
        )

    def _tables(self, path: Path) -> Iterator[Member]:
        """Yield the tables that groups in a group are."""
        for one in self.objects(path):
            if one.meaning:
                reader = ContainerReader(self._opening.source, self.asked, self.objects, self.attributes)
                try:
                    yield from frames.members(FrameGroup(reader, (*path, one.name)), one.meaning)
                except Passing:
                    raise
                except GlassfsError as error:
                    yield Member((one.name,), Omitted(one.name, f"table: {error.reason}", is_damage=True))

    def _members(self, path: Path, above: tuple[Ancestor, ...], attributes: int) -> Iterator[Member]:
        if not path and attributes:
            yield Member((b"meta", ATTRIBUTES), self._document(()))
        yield from self.contents(path, above)

    def _object(self, described: Object, path: Path, above: tuple[Ancestor, ...]) -> Iterator[Member]:
        """Yield the contents of an object. Raises Damaged if the library cannot describe it."""
        name = path[-1]
        if described.kind == "group":
            yield Member((name,), self._subgroup(described, path, above))
        elif described.dataset is not None:
            hidden = dataset.why_hidden(described.dataset)
            if hidden:
                yield Member((name,), Omitted(name, hidden))
            else:
                yield from dataset.members(self._opening.source, self.asked(path), described.dataset)
        elif described.kind == "soft":
            yield self._link(described, path)
        elif described.kind == "external":
            yield Member((name,), Omitted(name, "external link: other files are never read"))
            return
        elif described.kind == "type":
            yield Member((name,), Omitted(name, "named type: it describes others and has no values"))
        else:
            raise self._opening.source.damage(described.reason or "is of an unknown kind")
        if described.attributes:
            yield Member((b"%b.%b" % (name, ATTRIBUTES),), self._document(path))

    def _subgroup(self, described: Object, path: Path, above: tuple[Ancestor, ...]) -> Content:
        # A group may contain itself, also by way of others. The address of an object tells that two names are of one
        # group: a link to the first one ends the circle.
        for number, ancestor in enumerate(above):
            if ancestor.address == described.address:
                return Link(path[-1], (b"..",) * (len(above) - 1 - number))
        is_shared = described.names > 1
        if len(above) > DEEPEST or (is_shared and sum(one.is_shared for one in above) >= MOST_SHARED):
            return Omitted(path[-1], "nested group: it is below too many others, or others with several names")
        return self._group(path, (*above, Ancestor(described.address, is_shared)), described.attributes)

    def _link(self, described: Object, path: Path) -> Member:
        """Return a symbolic link. Its target may not exist; the missing names stay in it."""
        parts = [part for part in described.target.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            return Member((path[-1],), Omitted(path[-1], "reserved link: its target contains .."))
        inside = tuple(parts) if described.target.startswith(b"/") else (*path[:-1], *parts)
        # The target of the link is a name in HDF5, and the file that shows it has a suffix.
        final = described.final
        suffix = b"" if final is None else dataset.suffix(self._opening.source, self.asked(inside), final)
        target = (*(b"..",) * (len(path) - 1), *parts) if described.target.startswith(b"/") else tuple(parts)
        if suffix and target:
            target = (*target[:-1], target[-1] + suffix)
        return Member((path[-1] + suffix,), Link(path[-1], target))

    def _document(self, path: Path) -> Document:
        return Document(ATTRIBUTES, partial(self.attributes, path), 8 * PIECE)

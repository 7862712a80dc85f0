"""HDF5 (``.h5``, ``.hdf5``): groups and datasets.

h5py reads the metadata in a sandbox (``glassfs.sandbox``), which needs the extra ``hdf5``. ``elements`` has requests to
it, ``description`` checks its answers, ``dataset`` makes contents of datasets; ``chunks`` and ``filters`` read chunks
in this process.

This module makes contents of groups, whose links the worker describes when a caller lists them (§7, §8). Hard links
show the same contents under each name, soft links are symbolic ones, and so are cells of MATLAB. A group that contains
itself ends with a symbolic link to the first. External links show what they lead to, if it is in a file that the
container may use (``outside``).

Metadata that libhdf5 cannot read, or that make it crash, raise Damaged where they are needed. Any thread.

Facts: docs/formats/hdf5.md; § in this package cites its sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from glassfs import work
from glassfs.content import (
    Array,
    Blob,
    Container,
    Content,
    Data,
    Document,
    EncodedImage,
    Group,
    Link,
    Member,
    Null,
    Omitted,
    Records,
    Text,
)
from glassfs.content.allowance import OBJECT, held
from glassfs.errors import Damaged, GlassfsError, Passing, Refused
from glassfs.formats.hdf5 import compounds, dataset, description, frames
from glassfs.formats.hdf5.chunks import Shape
from glassfs.formats.hdf5.description import Dataset, Inner, Object, ValueType
from glassfs.formats.hdf5.elements import DatasetRequests, Path, WorkerAnswers, as_text
from glassfs.formats.hdf5.frames import FrameGroup
from glassfs.formats.hdf5.outside import OtherFiles, placed, put_together
from glassfs.formats.registry import BUILT_IN, HEAD, Format, Head, Opening
from glassfs.lru import LRU
from glassfs.names import escape, free_name
from glassfs.sizes import PIECE

MAGIC = b"\x89HDF\r\n\x1a\n"
NEAR, FAR = (0, 512, 1024, 2048), tuple(1 << bits for bits in range(12, 21))
"""Where the superblock may begin, behind a user block; in FAR only that of a file whose name says that it is HDF5."""
AT_ONCE = 1_000
"""Objects that are asked for together."""
MOST_SHARED = 4
"""Groups with several names on one path: more would multiply the paths to what is below."""
DEEPEST = 128
"""Groups on one path."""
ATTRIBUTES = b"attributes"
_SUFFIXES: dict[type[Content], bytes] = {
    Null: b".null", Array: b".npy", Text: b".txt", Document: b".json", Records: b".jsonl", Blob: b".bin",
}


def open_hdf5(opening: Opening) -> Container:
    """Ask the worker for the root group. Raises Refused if h5py is not installed, and Damaged."""
    source = opening.source
    if lacks := missing():
        raise Refused(f"is an HDF5 file, which {lacks}", source.name)
    head = Head.of(source, source.read(0, min(HEAD, source.size)))
    start = _start(head) or 0
    version = head.part(start + len(MAGIC), 1)
    if not version:
        raise Damaged("is cut short", source.name)
    if _is_written(head, start):
        reason = "is open for writing, or its writer was killed: close it there, or repair it with h5clear"
        raise Refused(reason, source.name)
    answers = WorkerAnswers(opening)
    answer = answers.described({"do": "open"})
    root = description.described(answer)
    others = OtherFiles(opening, description.files(answer))
    listing = GroupListing(opening, answers, others)
    facts = {"superblock": version[0], "user_block": start, "attributes": root.attributes}
    return Container(
        "hdf5", str(version[0]), listing.root(root), [source, *others.sources], facts, is_generic=True,
        prepare=listing.prepare, arrays=lambda: ArrayListing(opening, answers, others).root(root),
        held=lambda: listing.held,
    )


def is_slow(head: Head) -> bool:
    """Return whether opening a file takes a worker: others are refused at once, and never listed as directories."""
    start = _start(head)
    return is_installed() and start is not None and not _is_written(head, start)


def _is_written(head: Head, start: int) -> bool:
    """Return whether a writer has the file open, or had when it was killed: flags 1 and 4 of a superblock (§1)."""
    version, flags = head.part(start + len(MAGIC), 1), head.part(start + 11, 1)
    return bool(flags) and version[0] == 3 and bool(flags[0] & 5)


def _start(head: Head) -> int | None:
    near = next((offset for offset in NEAR if head.startswith(MAGIC, offset)), None)
    if near is not None or not head.name.lower().endswith(BUILT_IN["hdf5"]):
        return near
    return next((offset for offset in FAR if head.part(offset, len(MAGIC)) == MAGIC), None)


@lru_cache(1)
def is_installed() -> bool:
    """Return whether h5py is there."""
    return find_spec("h5py") is not None


def missing() -> str:
    return "" if is_installed() else "needs h5py: install glassfs[hdf5]"


class Ancestor(NamedTuple):
    """A group on the path to another one. ``is_shared`` says that it has several names."""

    address: int
    is_shared: bool


@dataclass
class GroupListing:
    """Makes contents of the objects in one container."""

    _opening: Opening
    _answers: WorkerAnswers
    _others: OtherFiles
    _top: Path = ()
    """The group, or dataset, below which all is that the caller shows."""
    remembered: InitVar[int] = PIECE

    def __post_init__(self, remembered: int) -> None:
        self._other_answers: dict[bytes, WorkerAnswers] = {}
        self._recent: LRU[Path, list[Object]] = LRU(remembered)
        """What was listed last. It belongs to the container, counts in its memory, and is dropped with it."""
        self._attributes: LRU[Path, tuple[frozenset[str] | None, dict[str, Any]]] = LRU(PIECE)
        """Attributes of groups: the names that were asked for, None for all, and what was found."""

    @property
    def held(self) -> int:
        """The bytes of what was listed last."""
        return self._recent.weight + self._attributes.weight

    def _described(self, request: dict[str, Any]) -> Any:
        """Return the answer to a request that describes objects."""
        return self._answers.described(request)

    def root(self, described: Object) -> Group:
        """Return the root group."""
        return self._group((), (Ancestor(described.address, False),), described.attributes)

    def asked(self, path: Path) -> DatasetRequests:
        opening = self._opening
        return DatasetRequests(self._answers, opening.cache, opening.allowance, opening.source, path)

    def _virtual(self, path: Path, described: Dataset) -> Data:
        """Return the elements of a virtual dataset. Raises Refused, and what prevents reading a source."""
        if described.kind.name != "number" or described.kind.stored is None:
            raise Refused(f"only plain numbers are put together, and not {described.kind.text}")
        answer = self._answers.described({"do": "mappings", "path": as_text(path)})
        kind, parts = described.kind, []
        sources: dict[tuple[bytes, bytes], tuple[Shape, Data]] = {}
        for one in description.virtual_parts(answer):
            named = one.file, one.target
            if named not in sources:
                listing = self if self._others.is_own(one.file) else self._listing(one.file)
                sources[named] = listing.numbers(one.target, kind)
            parts.append(placed(one, described.shape, *sources[named], described.item))
        convert, item = compounds.conversion(kind), described.item
        fill = convert(described.fill) if convert and described.fill else described.fill
        return put_together(parts, described.elements * item, fill or bytes(item))

    def _listing(self, file: bytes, top: Path = ()) -> GroupListing:
        """Return the contents of another file, from a path on. Raises Refused."""
        opening = self._others.opening(file)
        answers = self._other_answers.get(file)
        if answers is None:
            answers = self._other_answers[file] = WorkerAnswers(opening)
        # What these files name in turn is not followed, so that there is an end.
        return GroupListing(opening, answers, OtherFiles(opening), top, PIECE // 64)

    def numbers(self, target: bytes, kind: ValueType) -> tuple[Shape, Data]:
        """Return shape and elements of a dataset of numbers of one type. Raises Refused for others, and Damaged."""
        found = self.find(target).dataset
        if found is None or found.layout == "virtual" or dataset.why_hidden(found):
            raise Refused(f"{escape(target)} is no dataset that can be read, or a virtual one as well")
        if (found.kind.shown, found.kind.dims) != (kind.shown, kind.dims):
            raise Refused(f"{escape(target)} has values of another type")
        return found.shape, dataset.array_data(self.asked(_parts(target)), found)

    def find(self, target: bytes) -> Object:
        """Return the object at a path of hard links. Raises Damaged."""
        return description.described(self._answers.described({"do": "describe", "path": as_text(_parts(target))}))

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
            request = {"do": "list", "path": as_text(path), "first": first, "count": AT_ONCE}
            count, objects, inner = description.listed(self._described(request))
            self._remember([*inner, (path, objects)] if len(objects) == count else inner)
            if not objects:
                return
            yield from objects
            first += len(objects)

    def prepare(self, paths: Sequence[Path], names: Sequence[str], skipped: Sequence[str]) -> None:
        """List several groups and groups in them, unless these are called like one of ``skipped``, and ask for those of
        their attributes that have these names.
        """
        wanted = [as_text(path) for path in paths if None in (self._recent.peek(path), self._attributes.peek(path))]
        if not wanted:
            return
        request = {"do": "prepare", "paths": wanted, "names": list(names), "skipped": list(skipped)}
        with suppress(Damaged):  # as asking for one of them will show
            inner, attributes = description.prepared(self._answers.ask(request)[0])  # rows are kept, and not these
            self._remember(inner)
            for path, facts in attributes:
                self._attributes.put(path, (frozenset(names), facts), held(list(facts.items())))

    def _remember(self, groups: Iterable[Inner]) -> None:
        """Keep what is in groups, if these are small."""
        for path, objects in groups:
            weight = description.weight(objects)
            if weight <= PIECE // 2:
                self._recent.put(path, objects, weight)

    def attributes(self, path: Path) -> Any:
        """Return the attributes of an object, untrusted JSON. Raises Damaged."""
        request = {"do": "attributes", "path": as_text(path)}
        # Those of episodes are rows of tables, which are kept.
        return self._answers.ask(request)[0] if len(path) > 1 else self._answers.described(request)

    def _facts(self, path: Path, names: Sequence[str] | None) -> dict[str, Any]:
        """Return the attributes of a group that have these names, or all."""
        asked, found = self._attributes.get(path) or (frozenset(), {})
        if asked is not None and (names is None or not asked.issuperset(names)):
            answer = self.attributes(path)
            found = answer if isinstance(answer, dict) else {}
            self._attributes.put(path, (None, found), held(list(found.items())))
        return found if names is None else {name: found[name] for name in names if name in found}

    def _group(self, path: Path, above: tuple[Ancestor, ...], attributes: int = 0) -> Group:
        return Group(
            path[-1] if path else b"", partial(self._members, path, above, attributes), partial(self._tables, path),
            facts=partial(self._facts, path) if attributes else lambda names: {},
        )

    def _tables(self, path: Path) -> Iterator[Member]:
        """Yield the tables that groups in a group are."""
        for one in self.objects(path):
            if one.meaning:
                group = FrameGroup(self.asked, self.objects, self.attributes, (*path, one.name))
                yield from _shown(one.name, frames.members(group, one.meaning), "table: ")

    def _members(self, path: Path, above: tuple[Ancestor, ...], attributes: int) -> Iterator[Member]:
        if not path and attributes:
            yield Member((b"meta", ATTRIBUTES), self._document(()))
        for one in self.objects(path):
            yield from _shown(one.name, self._object(one, (*path, one.name), above))

    def _object(self, described: Object, path: Path, above: tuple[Ancestor, ...]) -> Iterator[Member]:
        """Yield the contents of an object. Raises Damaged if the library cannot describe it."""
        name = path[-1]
        if described.kind == "group":
            yield Member((name,), self._subgroup(described, path, above))
        elif described.dataset is not None:
            yield from self._dataset(described.dataset, path)
        elif described.kind == "soft":
            yield self._link(described, path)
        elif described.kind == "external":
            yield from self._linked(described, name)
        elif described.kind == "null":
            yield Member((name,), Null(name))
        elif described.kind == "type":
            yield Member((name,), Omitted(name, "named type: it describes others and has no values"))
        else:
            raise self._opening.source.damage(described.reason or "is of an unknown kind")
        values = described.dataset.kind.names if described.dataset else ()
        if described.attributes or values:
            yield Member((b"%b.%b" % (name, ATTRIBUTES),), self._document(path, values))

    def _dataset(self, described: Dataset, path: Path) -> Iterator[Member]:
        name, hidden, asked = path[-1], dataset.why_hidden(described), self.asked(path)
        if described.layout == "virtual" and not hidden:
            try:
                asked = asked._replace(virtual=self._virtual(path, described))
            except Passing:
                raise
            except GlassfsError as error:
                hidden = f"virtual dataset: {error.reason}"
        if hidden:
            yield Member((name,), Omitted(name, hidden))
        elif dataset.is_cells(described):
            yield Member((name,), Group(name, partial(self._cells, described, path)))
        else:
            yield from dataset.members(asked, described)

    def _cells(self, described: Dataset, path: Path) -> Iterator[Member]:
        """Yield links to what is in the cells of MATLAB, under their places."""
        first = 0
        while first < described.elements:
            request: dict[str, Any] = {"do": "cells", "path": as_text(path), "first": first}
            request["count"] = min(AT_ONCE, described.elements - first)
            found = description.cells(self._answers.described(request))
            for number, one in enumerate(found[: described.elements - first], first):
                name = dataset.cell_name(number, described.shape)
                yield from _shown(name, self._object(one, (*path, name), ()))
            if not found:
                raise Damaged("its worker process sends a wrong description")
            first += len(found)

    def _linked(self, described: Object, name: bytes) -> Iterator[Member]:
        """Yield what is at the end of an external link, under the name of the link."""
        parts = _parts(described.target)
        try:
            if self._others.is_own(described.file):
                raise Refused("it leads to the file itself")
            listing = self._listing(described.file, parts)
            found = listing.find(described.target)
        except Passing:
            raise
        except GlassfsError as error:
            yield Member((name,), Omitted(name, f"external link: {error.reason}"))
            return
        if not parts:
            yield Member((name,), listing.root(found))
            return
        for below, content in listing._object(found, parts, ()):
            # What an object is shown as begins with its name.
            yield Member((name + below[0][len(parts[-1]) :], *below[1:]), content)

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
        parts = _parts(described.target)
        if b".." in parts:
            return Member((path[-1],), Omitted(path[-1], "reserved link: its target contains .."))
        inside = parts if described.target.startswith(b"/") else (*path[:-1], *parts)
        if inside[: len(self._top)] != self._top:
            return Member((path[-1],), Omitted(path[-1], "soft link: its target is not below an external link's"))
        # The target of the link is a name in HDF5, and the file that shows it has a suffix.
        final = described.final
        suffix = self._suffix(inside, final) if final and inside else b""
        target = parts
        if described.target.startswith(b"/"):
            target = (*(b"..",) * (len(path) - len(self._top) - 1), *parts[len(self._top) :])
        if suffix and target:
            target = (*target[:-1], target[-1] + suffix)
        return Member((path[-1] + suffix,), Link(path[-1], target))

    def _suffix(self, path: Path, final: Dataset) -> bytes:
        """Return the suffix of the file that shows a dataset, empty if it is shown as a directory or not at all."""
        names, content = next(_shown(path[-1], self._dataset(final, path)))
        if isinstance(content, EncodedImage):
            return {"jpeg": b".jpg", "png": b".png"}[content.media]
        is_file = len(names) == 1
        return next((found for kind, found in _SUFFIXES.items() if is_file and isinstance(content, kind)), b"")

    def _document(self, path: Path, values: Sequence[tuple[str, int]] = ()) -> Document:
        """Return the attributes of an object, with the names of its values."""
        def document() -> Any:
            found = self.attributes(path)
            if values and isinstance(found, dict):
                found[free_name("enumeration", found.__contains__, "enumeration".__add__)] = dict(values)
            return found

        return Document(ATTRIBUTES, document, 8 * PIECE)


class ArrayListing(GroupListing):
    """The datasets of a container for the table of arrays: each once, with its stored size, and as no image.

    A listing is for one walk. Objects with several names have the first one; other links are not followed.
    """

    def __post_init__(self, remembered: int) -> None:
        super().__post_init__(remembered)
        self._seen: set[int] = set()
        """The addresses of objects with several names that were listed."""
        self._allowance = self._opening.allowance.part()

    def _described(self, request: dict[str, Any]) -> Any:
        # The catalogue keeps the rows, and has no space for the answers from which they are made.
        return self._answers.ask(request | ({"sizes": True} if request["do"] == "list" else {}))[0]

    def _object(self, described: Object, path: Path, above: tuple[Ancestor, ...]) -> Iterator[Member]:
        name, found = path[-1], described.dataset
        if described.names > 1:
            if described.address in self._seen:
                return
            self._allowance.take(OBJECT, "objects with several names")
            self._seen.add(described.address)
        if described.kind == "group":
            yield Member((name,), self._subgroup(described, path, above))
        elif found is not None and not found.is_null:
            hidden = dataset.why_hidden(found)
            yield Member((name,), dataset.plain(self.asked(path), found) if not hidden else Omitted(name, hidden))
        elif described.kind == "damaged":
            raise self._opening.source.damage(described.reason)


def _shown(name: bytes, members: Iterable[Member], what: str = "") -> Iterator[Member]:
    """Yield the contents of an object, at the first damage in its place the reason, which begins with ``what``."""
    try:
        yield from members
    except Passing:
        raise
    except GlassfsError as error:
        yield Member((name,), Omitted(name, f"{what}{error.reason}", is_damage=True))


def _parts(target: bytes) -> Path:
    return tuple(part for part in target.split(b"/") if part not in (b"", b"."))


FORMAT = Format("hdf5", lambda head: _start(head) is not None, open_hdf5, is_slow=is_slow, missing=missing)

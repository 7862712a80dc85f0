"""Descriptions of objects in a container, as the worker sends them, checked: it is as untrusted as the container."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any, NamedTuple, TypeAlias, TypeVar

from glassfs.content.allowance import OBJECT, held
from glassfs.errors import Damaged

_DESCR = re.compile(r"\|[iub]1|[<>](?:[iu][248]|f[248]|c(?:8|16))|\|[SV][0-9]{1,10}")
_LAYOUTS = ("contiguous", "chunked", "unlisted", "compact", "virtual", "external", "unknown")
_CLASSES = ("number", "text", "ragged", "bytes", "compound", "json", "unknown")

Value = TypeVar("Value")


class Field(NamedTuple):
    """A field of a compound, at ``offset`` of the stored element."""

    name: str
    offset: int
    kind: ValueType


class ValueType(NamedTuple):
    """A type. ``shown`` is the dtype of a value of a fixed size, but for a compound; ``stored`` is that in the file,
    None for a number that only the library decodes.

    ``dims`` are the dimensions of an array type. ``base`` is the type of the values in rows of variable length.
    ``size`` are the bytes of a stored compound. ``names`` are those of the values of an enumeration. ``padding`` is
    that of a string: ``end``, ``zeros`` or ``spaces``.
    """

    name: str
    text: str
    shown: str = ""
    stored: str | None = None
    dims: tuple[int, ...] = ()
    fields: tuple[Field, ...] = ()
    base: ValueType | None = None
    size: int = 0
    names: tuple[tuple[str, int], ...] = ()
    padding: str = ""

    @property
    def item(self) -> int:
        """Bytes of a value as it is shown, the array of ``dims`` that it may be; 0 if it has no fixed size."""
        one = sum(field.kind.item for field in self.fields) if self.fields else int(self.shown[2:] or 0)
        return one * prod(self.dims)

    @property
    def stored_size(self) -> int:
        """Bytes of a value in the file, 0 if they are unknown."""
        one = self.size if self.fields else int((self.stored or "")[2:] or 0)
        return one * prod(self.dims)


class VirtualPart(NamedTuple):
    """The elements ``to`` of a virtual dataset are the elements ``of`` the dataset at ``target`` in a file.

    They have a range on each axis; None stands for all elements.
    """

    file: bytes
    target: bytes
    to: tuple[range, ...] | None
    of: tuple[range, ...] | None


class Filter(NamedTuple):
    """A filter of the pipeline. ``is_available`` says that the library has it."""

    code: int
    values: tuple[int, ...]
    name: str
    is_available: bool


class Dataset(NamedTuple):
    """A dataset. ``size`` is that of a stored element in bytes, ``fill`` such an element, empty for zeros.

    ``stored`` are the bytes of a contiguous one, ``offset`` is where they are, None if nothing is allocated. Only the
    library finds the chunks of the layout ``unlisted``.
    ``matlab`` is the class that MATLAB gave it, ``empty`` the dimensions of the empty array for which it stands.
    """

    kind: ValueType
    shape: tuple[int, ...]
    size: int
    stored: int
    offset: int | None
    layout: str = "contiguous"
    is_null: bool = False
    chunks: tuple[int, ...] = ()
    filters: tuple[Filter, ...] = ()
    fill: bytes = b""
    is_image: bool = False
    matlab: str = ""
    empty: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def item(self) -> int:
        """Bytes of an element as it is shown."""
        return self.kind.item if self.kind.shown or self.kind.name == "compound" else self.size


class Object(NamedTuple):
    """A link and the object at its end. ``kind`` is ``group``, ``dataset``, ``soft`` and so on, as the worker says.

    ``address`` identifies the object, which has ``names`` names. ``final`` is the dataset at the end of a soft link,
    ``meaning`` what an attribute says that a group is, ``file`` that of an external link.
    """

    name: bytes
    kind: str
    address: int = 0
    names: int = 1
    attributes: int = 0
    dataset: Dataset | None = None
    target: bytes = b""
    reason: str = ""
    final: Dataset | None = None
    meaning: str = ""
    file: bytes = b""


Inner: TypeAlias = "tuple[tuple[bytes, ...], list[Object]]"
"""The path of a group, and what is in it."""


def _checking(make: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Have a function raise Damaged for an answer that is none."""
    @wraps(make)
    def checked(answer: Any) -> Value:
        try:
            return make(answer)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise Damaged("its worker process sends a wrong description") from error

    return checked


@_checking
def listed(answer: Any) -> tuple[int, list[Object], list[Inner]]:
    """Return the number of links of a group, some of them, and all those of some groups below."""
    types = list(map(_kind, answer["types"]))
    entries = [_object(entry, types) for entry in answer["entries"]]
    return _integer(answer["count"], 1 << 32), entries, _inner(answer, types)


@_checking
def prepared(answer: Any) -> tuple[list[Inner], list[tuple[tuple[bytes, ...], dict[str, Any]]]]:
    """Return what is in some groups, and attributes of some."""
    attributes = [(_path(path), dict(facts)) for path, facts in answer["attributes"]]
    return _inner(answer, list(map(_kind, answer["types"]))), attributes


def _inner(answer: Any, types: list[ValueType]) -> list[Inner]:
    return [(_path(path), [_object(entry, types) for entry in entries]) for path, entries in answer["inner"]]


def _path(names: Any) -> tuple[bytes, ...]:
    return tuple(map(_bytes, names))


@_checking
def cells(answer: Any) -> list[Object]:
    """Return the objects to which references lead."""
    return [_object(entry) for entry in answer]


@_checking
def virtual_parts(answer: Any) -> list[VirtualPart]:
    """Return the parts of a virtual dataset."""
    return [
        VirtualPart(_bytes(one["file"]), _bytes(one["target"]), _axes(one["to"]), _axes(one["of"])) for one in answer
    ]


@_checking
def files(answer: Any) -> list[bytes]:
    """Return the names of other files that a container names."""
    return list(map(_bytes, answer["files"]))


def weight(objects: Sequence[Object]) -> int:
    """Return about how many bytes objects hold, with each of the types that they share once."""
    datasets = [found for one in objects for found in (one.dataset, one.final) if found is not None]
    types = {id(one.kind): one.kind for one in datasets}
    texts = [one for one in objects if one.dataset is None]
    more = [one[6:] for one in datasets if any(one[6:])]
    return sum(6 * OBJECT + len(one.name) for one in objects) + held([*types.values(), *more, *texts])


def _axes(entry: Any) -> tuple[range, ...] | None:
    if entry is None:
        return None
    return tuple(range(start, start + step * count, step) for start, step, count in map(_integers, entry))


def _bytes(value: Any) -> bytes:
    return str(value).encode("latin-1")


def _object(entry: Any, types: Sequence[ValueType] = ()) -> Object:
    """Return an object. The types of datasets may be numbers of these."""
    kind, name = str(entry["kind"]), _bytes(entry.get("name", ""))
    dataset, final = _dataset(entry, types) if kind == "dataset" else None, entry.get("final")
    if dataset is not None and "names" not in entry:  # as of most
        return Object(name, kind, dataset=dataset)
    return Object(
        name, kind, _integer(entry.get("address", 0)), _integer(entry.get("names", 1)),
        _integer(entry.get("attributes", 0)), dataset, _bytes(entry.get("target", "")), str(entry.get("reason", "")),
        _dataset(final) if final and final["kind"] == "dataset" else None, str(entry.get("meaning", "")),
        _bytes(entry.get("file", "")),
    )


described = _checking(_object)
"""Returns an object as the worker described it."""


def _dataset(entry: Any, types: Sequence[ValueType] = ()) -> Dataset:
    kind, offset, matlab = entry["type"], entry.get("offset"), str(entry.get("matlab", ""))
    kind, chunks = types[kind] if isinstance(kind, int) else _kind(kind), _integers(entry.get("chunks", []))
    if matlab == "logical" and kind.shown == "|u1":
        kind = kind._replace(shown="|b1", text="|b1")
    dataset = Dataset(
        kind, _integers(entry["shape"]), _integer(entry["size"], 1 << 32), _integer(entry["stored"]),
        None if offset is None else _integer(offset), str(entry.get("layout", "contiguous")),
        bool(entry.get("null")), chunks,
        tuple(map(_filter, entry.get("filters", []))), b64decode(entry.get("fill", ""), validate=True),
        bool(entry.get("image")), matlab, _integers(entry.get("empty", [])),
    )
    has_chunks = dataset.layout in ("chunked", "unlisted")
    is_wrong = 0 in chunks or (has_chunks and not 0 < len(chunks) == len(dataset.shape))
    if is_wrong or dataset.layout not in _LAYOUTS or (dataset.fill and len(dataset.fill) != dataset.size):
        raise ValueError
    return dataset


def _kind(entry: Any) -> ValueType:
    name = entry["class"]
    if name not in _CLASSES:
        raise ValueError
    fields = tuple(map(_field, entry.get("fields", [])))
    shown = _descr(entry["shown"]) if "shown" in entry else ""
    stored: str | None = shown
    if name == "number":
        stored = None if entry["stored"] is None else _descr(entry["stored"])
    found = ValueType(
        name, str(entry.get("name", ""))[:100], shown, stored, _integers(entry.get("dims", [])), fields,
        _kind(entry["base"]) if name == "ragged" else None, _integer(entry.get("size", 0), 1 << 32),
        tuple((str(called), int(value)) for called, value in entry.get("names", {}).items()),
        str(entry.get("padding", "")),
    )
    measured = found.base or found
    if name in ("number", "compound", "ragged") and not measured.item:
        raise ValueError
    if name == "compound" and any(field.offset + field.kind.stored_size > found.size for field in fields):
        raise ValueError
    return found


def _field(entry: Any) -> Field:
    return Field(str(entry["name"]), _integer(entry["offset"], 1 << 32), _kind(entry))


def _filter(entry: Any) -> Filter:
    name = str(entry["name"]).partition(";")[0]
    return Filter(_integer(entry["code"], 1 << 32), _integers(entry["values"]), name, bool(entry["available"]))


def _descr(value: Any) -> str:
    if not isinstance(value, str) or not _DESCR.fullmatch(value):
        raise ValueError
    return value


def _integers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > 32:  # H5S_MAX_RANK
        raise ValueError
    return tuple(_integer(value) for value in values)


def _integer(value: Any, most: int = (1 << 64) - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError
    return value

"""Groups that are tables (§11): data frames of pandas and AnnData, dynamic tables of NWB.

Attributes say what a group is, and are as untrusted as all else in the file: what does not fit raises Damaged, and
costs that table only. Making a table reads attributes and descriptions; names and values are read when they are
needed. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any, TypeAlias

from glassfs.content import (
    Array,
    Column,
    Concatenated,
    Converted,
    Data,
    Gathered,
    Member,
    Omitted,
    Ragged,
    Table,
    Zeros,
)
from glassfs.content.allowance import OBJECT
from glassfs.content.rows import array_rows, coded, values
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import compounds, dataset, elements
from glassfs.formats.hdf5.description import Dataset, Object, ValueType
from glassfs.formats.hdf5.elements import DatasetRequests, Path
from glassfs.once import once
from glassfs.sizes import PIECE

NAN = "nan"
"""What pandas writes instead of a missing text, unless an attribute says something else."""
PERIODS = b".ordinal"
"""Behind the name of an index of periods, of which a file has the numbers since 1970: those of months, for example."""
_NONE = "N."
"""The pickle of None, as PyTables stores it."""
_TIME = re.compile(r"(datetime|timedelta)64(?:\[(ns|us|ms|s)(?:, .*)?\])?")
_ZONE = re.compile(r"[A-Za-z0-9_+:/-]{1,64}")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass
class FrameGroup:
    """A group that is a table, or a part of one; with what reads the objects at any path of its container."""

    requests: Callable[[Path], DatasetRequests]
    objects: Callable[[Path], Iterable[Object]]
    attributes_at: Callable[[Path], Any]
    path: Path

    def below(self, *names: bytes) -> FrameGroup:
        return replace(self, path=(*self.path, *names))

    @once
    def members(self) -> dict[bytes, Object]:
        return {one.name: one for one in self.objects(self.path)}

    def attributes(self, *names: bytes) -> dict[str, Any]:
        """Return the attributes of the group, or of a member."""
        return _dict(self.attributes_at((*self.path, *names)))

    def asked(self, name: bytes) -> DatasetRequests:
        return self.requests((*self.path, name))

    def dataset(self, name: bytes) -> Dataset:
        """Return a member. Raises Damaged if it is no dataset with rows."""
        found = self.members.get(name)
        if found is None or found.dataset is None or not found.dataset.shape:
            raise Damaged(f"has no dataset {_text(name)} with rows")
        return found.dataset

    def rows(self, name: bytes) -> int:
        return self.dataset(name).shape[0]

    def column(self, name: bytes, missing: bytes = b"") -> Column | None:
        """Return a dataset as a column, in which texts may be ``missing``; None if it cannot be one."""
        return dataset.column(self.asked(name), self.dataset(name), name, missing)

    def array(self, name: bytes) -> Array:
        """Return the numbers of a dataset. Raises Damaged if there are none."""
        found = self.column(name)
        if found is None or not isinstance(found.content, Array):
            raise Damaged(f"has no numbers in {_text(name)}")
        return found.content

    def structures(self, name: bytes) -> compounds.Structures:
        return dataset.structures(self.asked(name), self.dataset(name))

    def listed(self, column: Column | None, rows: int) -> list[Any]:
        """Return all values of a column of names or categories. Raises TooLarge if they are many."""
        self.asked(b"").allowance.part().take(OBJECT * rows, "names of columns or categories")
        return [] if column is None else list(values(column, rows, PIECE))

    def names(self, name: bytes) -> list[Any] | None:
        """Return the names of columns in a dataset; None if they are pickled, or in levels and labels."""
        column = self.column(name) if name in self.members else None
        return None if column is None else self.listed(column, self.rows(name))


Planned: TypeAlias = "tuple[int, int, Callable[[], list[Column]], Sequence[bytes]]"
"""A table: its rows, its width, what makes its columns, and the members of the group that cannot be columns."""


def members(group: FrameGroup, meaning: str) -> Iterator[Member]:
    """Yield the table that a group is, and what is no column of it; nothing for other groups. Raises Damaged."""
    planned = _PLANS.get(meaning)
    if planned is not None:
        name, (rows, width, columns, hidden) = group.path[-1], planned(group)
        yield Member((name,), Table(name, rows, columns, width=width))
        for one in hidden:
            yield Member((name, one), Omitted(one, f"column: values of this type are no column of {_text(name)}"))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _key(name: object) -> bytes:
    return str(name).encode("utf-8", "backslashreplace")


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _demand_rows(name: bytes, found: int, rows: int) -> None:
    if found != rows:
        raise Damaged(f"its column {_text(name)} has {found} rows, and the table {rows}")


# AnnData and NWB: each column is a member of the group.


def _members_table(index: str, order: str, group: FrameGroup) -> Planned:
    """Return a table of members whose names are in attributes, the index first."""
    facts = group.attributes()
    names = facts.get(order)
    first = _key(facts.get(index, index))
    if not isinstance(names, list):
        raise Damaged(f"has no list of names in its attribute {order}, or one of more than 1 MiB")
    found = {name: _of_member(group, name) for name in (first, *map(_key, names))}
    shown = {name: one for name, one in found.items() if one is not None}
    if first not in shown:
        raise Damaged(f"has no values for its index {_text(first)}")
    rows = shown[first][0]

    def columns() -> list[Column]:
        for name, (count, _) in shown.items():
            _demand_rows(name, count, rows)
        return [made() for _, made in shown.values()]

    return rows, len(shown), columns, [name for name in found if name not in shown]


def _of_member(group: FrameGroup, name: bytes) -> tuple[int, Callable[[], Column]] | None:
    """Return the rows of a column and what makes it; None for a member that cannot be one.

    It is a dataset, in NWB maybe with an index that says where rows end; or a group of codes and categories, or of
    values and a mask. Categories of older AnnData are in a group of their own.
    """
    found = group.members.get(name)
    if found is None:
        raise Damaged(f"has no column {_text(name)}")
    if found.kind == "group":
        below = group.below(name)
        if b"categories" in below.members:
            return below.rows(b"codes"), lambda: _categorical(name, below.array(b"codes"), below, b"categories")
        return (below.rows(b"values"), lambda: _masked(name, below)) if b"mask" in below.members else None
    if found.dataset is None or not found.dataset.shape:
        return None
    older = group.below(b"__categories")
    if b"__categories" in group.members and name in older.members:
        return group.rows(name), lambda: _categorical(name, group.array(name), older, name)
    ends = name + b"_index"
    made = group.column(name)
    if made is None:
        return None
    if ends in group.members:
        is_run = isinstance(made.content, Array) and len(made.content.resolved_shape) == 1
        return (group.rows(ends), lambda: _runs(name, group.array(name), group.array(ends))) if is_run else None
    return group.rows(name), lambda: made


def _categorical(key: bytes, codes: Array, group: FrameGroup, name: bytes) -> Column:
    """Return the categories in a dataset that codes are the numbers of."""
    return _coded(key, codes, group, group.column(name), group.rows(name))


def _coded(key: bytes, codes: Array, group: FrameGroup, named: Column | None, count: int) -> Column:
    """Return the values that codes are the numbers of, of ``count`` in a column of a group; the code -1 is missing."""
    if named is None or codes.dtype[1] not in "iu" or len(codes.resolved_shape) != 1:
        raise Damaged(f"has no categories for {_text(key)}")
    dtype = named.content.dtype if isinstance(named.content, Array) else ""
    listed = cache(partial(group.listed, named, count))

    def block(first: int, end: int) -> Sequence[Any]:
        found, categories = array_rows(codes, first, end), listed()
        if int(found.min()) < -1 or int(found.max()) >= len(categories):
            raise Damaged(f"has codes from {found.min()} to {found.max()}, and {len(categories)} categories")
        numbers, known = found.astype(int), [*categories, None]
        return list(map(known.__getitem__, numbers.tolist())) if dtype else coded(numbers, known)

    rows, size = codes.resolved_shape[0], int(codes.dtype[2:])
    return Column(key, elements.records(key, rows, size, 4 * OBJECT, block, dtype), zone=named.zone)


def _masked(key: bytes, group: FrameGroup) -> Column:
    """Return values, of which those are missing where the mask is true."""
    given, rows = group.dataset(b"values"), group.rows(b"values")
    _demand_rows(key, group.rows(b"mask"), rows)
    mask, asked = group.array(b"mask"), group.asked(b"values")
    array = None if given.kind.name == "text" else group.array(b"values")

    def block(first: int, end: int) -> Sequence[Any]:
        if array is None:
            found = elements.documents(asked, first, end - first)
        else:
            found = array_rows(array, first, end).tolist()
        missing = array_rows(mask, first, end).tolist()
        return [None if one else value for value, one in zip(found, missing, strict=True)]

    weight = elements.weight_of(given.kind)
    return Column(key, elements.records(key, rows, weight, weight, block, "" if array is None else array.dtype))


def _runs(key: bytes, given: Array, ends: Array) -> Column:
    rows, size = ends.resolved_shape[0], int(ends.dtype[2:])
    wide = Converted(ends.data, size, 8, 8 * rows, partial(compounds.converted, ends.dtype, "<i8"))
    return Column(key, Ragged(key, given.data, given.dtype, Concatenated([Zeros(8), wide]), "<i8", rows))


# pandas, format="table": a field of a compound is the index, a column, or all columns of one type.


def _table(group: FrameGroup) -> Planned:
    found = group.dataset(b"table")
    if not found.kind.fields or len(found.shape) != 1:
        raise Damaged("its dataset table has no fields")
    width = sum(prod(field.kind.dims) for field in found.kind.fields)
    return found.elements, width, partial(_table_columns, group), ()


def _table_columns(group: FrameGroup) -> list[Column]:
    """Return the columns in the order of the data frame, its index first."""
    rows, structures = group.rows(b"table"), group.structures(b"table")
    facts, about = group.attributes(b"table"), group.attributes()
    info, index, columns = _dict(unpickled(about.get("info"))), list[Column](), list[Column]()
    for field, offset, size in structures.fields():
        name, one = field.name, field.kind._replace(dims=())
        is_index, more = name == "index", _dict(info.get(name))
        names = [more.get("index_name")] if is_index else unpickled(facts.get(f"{name}_kind"))
        if field.kind.fields or not isinstance(names, list) or len(names) != prod(field.kind.dims):
            names, one = [name], field.kind
        what = facts.get(f"{name}_kind" if is_index else f"{name}_dtype")
        missing = facts.get(f"{name}_nan_rep", about.get("nan_rep"))
        for number, shown in enumerate(names):
            data = structures.field(offset, size)
            if one.item != size:
                data = Gathered(data, number * one.item, one.item, size, rows)
            key = _shown_key(shown, name)
            if is_index and what == "integer" and "freq" in more:
                key += PERIODS
            is_category = facts.get(f"{name}_meta") == "category"
            if is_category and b"meta" not in group.members:  # as all values are missing
                codes = Array(key, data, one.shown, (rows,))
                made = _coded(key, codes, group, Column(key, codes), 0)
            elif is_category:
                apart = group.below(b"meta", _key(name), b"meta")
                named = next((column for column in _table_columns(apart) if column.name == b"values"), None)
                made = _coded(key, Array(key, data, one.shown, (rows,)), apart, named, apart.rows(b"table"))
            else:
                made = _of_pandas(key, one, data, rows, what, more.get("tz"), missing)
            (index if is_index else columns).append(made)
    levels, axes = unpickled(about.get("levels")), unpickled(about.get("non_index_axes"))
    if isinstance(levels, list):  # the field of the index only counts rows, and the levels are columns
        index, columns = _taken(columns, levels)
    order = axes[0][1] if isinstance(axes, list) and axes and isinstance(axes[0], tuple) and len(axes[0]) == 2 else None
    chosen, others = _taken(columns, order if isinstance(order, list) else [])
    return [*index, *chosen, *others]


def _shown_key(name: Any, place: str = "") -> bytes:
    """Return a name of pandas, which is a text, a number, or a tuple of these, as a key; of another one ``place``."""
    parts = name if isinstance(name, tuple) else (name,)
    return _key(name if all(isinstance(one, (str, int, float)) for one in parts) else place)


def _taken(columns: list[Column], names: list[Any]) -> tuple[list[Column], list[Column]]:
    """Return the columns of these names, in their order, and the others."""
    places = {column.name: number for number, column in enumerate(columns)}
    chosen = [places[key] for key in dict.fromkeys(map(_shown_key, names)) if key in places]
    rest = sorted(set(range(len(columns))).difference(chosen))
    return [columns[number] for number in chosen], [columns[number] for number in rest]


def _of_pandas(
    key: bytes, kind: ValueType, data: Data, rows: int, what: Any, zone: Any, missing: Any = None,
) -> Column:
    """Return numbers, texts or times that pandas calls ``what``."""
    match = _TIME.fullmatch(what) if isinstance(what, str) else None
    if match is not None and kind.shown == "<i8" and not kind.dims:
        letter, unit = "M" if match[1] == "datetime" else "m", match[2] or "ns"
        is_known = isinstance(zone, str) and _ZONE.fullmatch(zone)
        named = "" if letter == "m" or not isinstance(zone, str) else zone if is_known else "UTC"
        return Column(key, Array(key, data, f"<{letter}8[{unit}]", (rows,)), zone=named)
    marker = missing if isinstance(missing, str) and missing != _NONE else NAN
    return compounds.column(key, kind, data, (rows, *kind.dims), marker.encode("utf-8", "replace"))


# pandas, format="fixed": arrays of all columns of one type, and of the index.


def _fixed(group: FrameGroup) -> Planned:
    """Return a data frame, or a series."""
    facts = group.attributes()
    is_frame = facts.get("pandas_type") == "frame"
    axis = "axis1" if is_frame else "index"
    count = facts.get(f"{axis}_nlevels")
    levels = range(min(count, len(group.members)) if isinstance(count, int) else 0)
    first = _key(f"{axis}_label0" if levels else axis)
    # No rows are written as one.
    rows = 0 if group.rows(first) == 1 and "shape" in group.attributes(first) else group.rows(first)
    blocks = [name for name in sorted(group.members) if name.endswith(b"_values" if is_frame else b"values")]
    # What has no type of its own is a pickle, also texts.
    hidden = [name for name in blocks if group.dataset(name).kind.name != "number"]

    def columns() -> list[Column]:
        index = [_index(group, _key(f"{axis}_level{number}"), rows) for number in levels]
        found = [
            column for name in blocks if name not in hidden
            for column in _block_columns(group, name, rows, facts.get("name"))
        ]
        chosen, others = _taken(found, (group.names(b"axis0") or []) if is_frame and found else [])
        index = index or [_index(group, _key(axis), rows)]
        return [*(one for one in index if one is not None), *chosen, *others]

    return rows, len(group.members), columns, hidden


def _index(group: FrameGroup, name: bytes, rows: int) -> Column | None:
    """Return an index, or a level of one, for ``rows`` rows; None if it is pickled."""
    facts, count = group.attributes(name), group.rows(name)
    called = facts.get("name")
    key = _key(called) if isinstance(called, str) and called != _NONE else b"index"
    if facts.get("index_class") == "period":
        key += PERIODS
    made = group.column(name, NAN.encode())
    if made is None:
        return None
    if name + b"_categories" in group.members:
        return _categorical(key, group.array(name), group, name + b"_categories")
    if isinstance(made.content, Array) or not rows:
        data, shown = (made.content.data, count) if isinstance(made.content, Array) and rows else (Zeros(0), 0)
        made = _of_pandas(key, group.dataset(name).kind, data, shown, facts.get("kind"), facts.get("tz"))
    made = made._replace(name=key)
    if b"_level" not in name:
        _demand_rows(key, min(rows, count), rows)
        return made
    labels = name.replace(b"_level", b"_label")
    _demand_rows(key, group.rows(labels), rows)
    return _coded(key, group.array(labels), group, made, count)


def _block_columns(group: FrameGroup, name: bytes, rows: int, called: Any) -> Iterator[Column]:
    """Yield the columns of one type, or that of a series, which is ``called`` so."""
    facts, array = group.attributes(name), group.array(name)
    items = name.replace(b"_values", b"_items")
    if items == name:
        names = [called if isinstance(called, str) and called != _NONE else "values"]
    else:
        width = array.resolved_shape[-1] if rows else 0
        names = group.names(items) or [f"{_text(name)}.{number}" for number in range(width)]
    if rows and array.resolved_shape not in ((rows, len(names)), (rows,) * len(names)):
        raise Damaged(f"has {_text(name)} of the shape {list(array.resolved_shape)} for {rows} rows")
    kind, size = group.dataset(name).kind, int(array.dtype[2:])
    for number, one in enumerate(names):
        data = Gathered(array.data, number * size, size, len(names) * size, rows) if rows else Zeros(0)
        yield _of_pandas(_key(one), kind, data, rows, facts.get("value_type"), facts.get("tz"))


_PLANS: dict[str, Callable[[FrameGroup], Planned]] = {
    "dataframe": partial(_members_table, "_index", "column-order"), "frame": _fixed, "frame_table": _table,
    "colnames": partial(_members_table, "id", "colnames"), "series": _fixed, "series_table": _table,
}


# Names that pandas has pickled. The library divides a pickle into its steps, of which these need no class.


def unpickled(attribute: Any) -> Any:
    """Return lists, tuples and dictionaries of text, numbers and None that an attribute has as a pickle.

    None for any other pickle, and for other attributes. No object is made, and nothing is called: instead of an object
    there is the text that it would be made of first, such as the name of a time zone, or "".
    """
    from pickletools import genops

    if not isinstance(attribute, str):
        return None
    # Bytes that are not UTF-8 are escapes in attributes; pickles write no backslash in another way than ``\\u005c``.
    raw = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), attribute.encode())
    levels: list[list[Any]] = [[]]  # the stack, on which each mark begins a list
    known: dict[Any, Any] = {}
    with suppress(LookupError, ValueError, TypeError, AttributeError):  # of a step that it cannot have
        for step, argument, _ in genops(raw):
            code, stack = step.code, levels[-1]
            if code == ".":
                return stack[0] if len(levels) == len(stack) == 1 else None
            if code in "VFI":
                stack.append(argument)
            elif code == "p":
                known[argument] = stack[-1]
            elif code == "g":
                # Whatever may be repeated multiplies: only names are, and no long ones.
                if known[argument] is not None and len(known[argument].encode()) > 1000:
                    return None
                stack.append(known[argument])
            elif code in "Nc":
                stack.append(None)
            elif code == "(" and len(levels) <= 100:  # Python ends with the hash of a tuple that is nested too deep
                levels.append([])
            elif code in "ldt":
                inner = levels.pop()
                pairs = zip(inner[::2], inner[1::2], strict=True) if code == "d" else ()
                levels[-1].append(dict(pairs) if code == "d" else tuple(inner) if code == "t" else inner)
            elif code == "R":
                stack[-1] = next((one for one in stack.pop()[:1] if isinstance(one, str)), "")
            elif code == "a":
                value = stack.pop()
                stack[-1].append(value)
            elif code == "s":
                value, key = stack.pop(), stack.pop()
                stack[-1][key] = value
            else:
                return None
    return None

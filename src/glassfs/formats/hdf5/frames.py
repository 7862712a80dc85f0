"""Groups that are tables (§11): data frames of pandas and AnnData, dynamic tables of NWB.

Attributes say what a group is, and are as untrusted as all else in the file: what does not fit raises Damaged, and
costs that table only. Making a table reads attributes and descriptions; names and values are read when they are
needed. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

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
from glassfs.content.rows import array_rows, values
from glassfs.content.texts import coded
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import compounds, dataset, elements
from glassfs.formats.hdf5.answers import Path
from glassfs.formats.hdf5.description import Dataset, Object, ValueType
from glassfs.formats.hdf5.elements import DatasetRequests
from glassfs.sizes import PIECE
from glassfs.source import Source

NAN = "nan"
"""What pandas writes instead of a missing text, unless an attribute says something else."""
_TIME = re.compile(r"(datetime|timedelta)64(?:\[(ns|us|ms|s)(?:, .*)?\])?")
_ZONE = re.compile(r"[A-Za-z0-9_+:/-]{1,64}")


class Place(NamedTuple):
    """A group or a dataset of a container, and what reads this one."""

    source: Source
    requests: Callable[[Path], DatasetRequests]
    objects: Callable[[Path], Iterable[Object]]
    facts: Callable[[Path], Any]
    path: Path

    def at(self, *names: bytes) -> Place:
        return self._replace(path=(*self.path, *names))

    @property
    def asked(self) -> DatasetRequests:
        return self.requests(self.path)

    def members(self) -> dict[bytes, Object]:
        return {one.name: one for one in self.objects(self.path)}

    def attributes(self) -> dict[str, Any]:
        found = self.facts(self.path)
        return found if isinstance(found, dict) else {}


class Values(NamedTuple):
    """A dataset with a value for each row."""

    place: Place
    described: Dataset

    @classmethod
    def of(cls, group: Place, members: dict[bytes, Object], name: bytes) -> Values:
        """Return a member of a group. Raises Damaged if it is no dataset with rows."""
        found = members.get(name)
        if found is None or found.dataset is None or not found.dataset.shape:
            raise Damaged(f"has no dataset {_text(name)} with rows")
        return cls(group.at(name), found.dataset)

    @property
    def rows(self) -> int:
        return self.described.shape[0]

    def column(self, key: bytes, missing: bytes = b"") -> Column | None:
        """Return the values as a column, in which texts may be ``missing``; None if they cannot be one."""
        return dataset.column(self.place.source, self.place.asked, self.described, key, missing)

    def array(self) -> Array:
        """Return the numbers. Raises Damaged if there are none."""
        found = self.column(self.place.path[-1])
        if found is None or not isinstance(found.content, Array):
            raise Damaged(f"has no numbers in {_text(self.place.path[-1])}")
        return found.content

    def listed(self) -> list[Any]:
        """Return all values, which are names or categories. Raises Damaged, and TooLarge if they are many."""
        found = self.column(self.place.path[-1])
        if found is None:
            raise Damaged(f"has no values in {_text(self.place.path[-1])}")
        self.place.asked.allowance.part().take(OBJECT * self.rows, "names of columns or categories")
        return list(values(found, self.rows, PIECE))


Made = Callable[[], Column]


class Plan(NamedTuple):
    """A table. ``hidden`` are the members of the group that cannot be columns."""

    rows: int
    width: int
    columns: Callable[[], list[Column]]
    hidden: Sequence[bytes] = ()


def members(group: Place, meaning: str) -> Iterator[Member]:
    """Yield the table that a group is, and what is no column of it; nothing for other groups. Raises Damaged."""
    planned = _PLANS.get(meaning)
    if planned is not None:
        name = group.path[-1]
        plan = planned(group)
        yield Member((name,), Table(name, plan.rows, plan.columns, width=plan.width))
        for hidden in plan.hidden:
            reason = f"column: values of this type are no column of {_text(name)}"
            yield Member((name, hidden), Omitted(hidden, reason))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _key(name: object) -> bytes:
    return str(name).encode("utf-8", "backslashreplace")


# AnnData and NWB: each column is a member of the group.


def _anndata(group: Place) -> Plan:
    facts = group.attributes()
    order = facts.get("column-order")
    index = _key(facts.get("_index"))
    return _of_members(group, [index, *map(_key, order if isinstance(order, list) else ())])


def _dynamic(group: Place) -> Plan:
    order = group.attributes().get("colnames")
    return _of_members(group, [b"id", *map(_key, order if isinstance(order, list) else ())])


def _of_members(group: Place, names: Sequence[bytes]) -> Plan:
    members = group.members()
    found = {name: _of_member(group, members, name) for name in names}
    shown = {name: one for name, one in found.items() if one is not None}
    if names[0] not in shown:
        raise Damaged(f"has no values for its index {_text(names[0])}")
    rows = shown[names[0]][0]

    def columns() -> list[Column]:
        for name, (count, _) in shown.items():
            _demand_rows(name, count, rows)
        return [made() for _, made in shown.values()]

    return Plan(rows, len(shown), columns, [name for name in found if name not in shown])


def _demand_rows(name: bytes, found: int, rows: int) -> None:
    if found != rows:
        raise Damaged(f"its column {_text(name)} has {found} rows, and the table {rows}")


def _of_member(group: Place, members: dict[bytes, Object], name: bytes) -> tuple[int, Made] | None:
    """Return the rows of a column and what makes it; None for a member that cannot be one.

    It is a dataset, in NWB maybe with an index that says where rows end; or a group of codes and categories, or of
    values and a mask. Categories of older AnnData are in a group of their own.
    """
    found = members.get(name)
    if found is None:
        raise Damaged(f"has no column {_text(name)}")
    if found.kind == "group":
        below = group.at(name)
        parts = below.members()
        if b"categories" in parts:
            codes, categories = (Values.of(below, parts, part) for part in (b"codes", b"categories"))
            return codes.rows, lambda: _categorical(name, codes.array(), categories.column(name), categories.listed)
        if b"mask" in parts:
            given, mask = (Values.of(below, parts, part) for part in (b"values", b"mask"))
            return given.rows, lambda: _masked(name, given, mask)
        return None
    if found.dataset is None or not found.dataset.shape:
        return None
    plain = Values.of(group, members, name)
    older = group.at(b"__categories")
    if b"__categories" in members and name in (kept := older.members()):
        categories = Values.of(older, kept, name)
        return plain.rows, lambda: _categorical(name, plain.array(), categories.column(name), categories.listed)
    if name + b"_index" in members:
        ends = Values.of(group, members, name + b"_index")
        is_run = plain.described.kind.name == "number" and len(plain.described.shape + plain.described.kind.dims) == 1
        return (ends.rows, lambda: _runs(name, plain.array(), ends.array())) if is_run else None
    made = plain.column(name)
    return None if made is None else (plain.rows, lambda: made)


def _categorical(key: bytes, codes: Array, categories: Column | None, listed: Callable[[], list[Any]]) -> Column:
    """Return the categories that codes are the numbers of; the code -1 is a missing value."""
    if categories is None or codes.dtype[1] not in "iu" or len(codes.resolved_shape) != 1:
        raise Damaged(f"has no categories for {_text(key)}")
    dtype = categories.content.dtype if isinstance(categories.content, Array) else ""
    once_listed = cache(listed)

    def block(first: int, end: int) -> Sequence[Any]:
        found, named = array_rows(codes, first, end), once_listed()
        if int(found.min()) < -1 or int(found.max()) >= len(named):
            raise Damaged(f"has codes from {found.min()} to {found.max()}, and {len(named)} categories")
        numbers = found.astype(int)
        return list(map([*named, None].__getitem__, numbers.tolist())) if dtype else coded(numbers, [*named, None])

    made = compounds.records(key, codes.resolved_shape[0], int(codes.dtype[2:]), 4 * OBJECT, block, dtype)
    return Column(key, made, zone=categories.zone)


def _masked(key: bytes, given: Values, mask: Values) -> Column:
    """Return values, of which those are missing where the mask is true."""
    _demand_rows(key, mask.rows, given.rows)
    is_missing, kind = mask.array(), given.described.kind
    array = None if kind.name == "text" else given.array()

    def block(first: int, end: int) -> Sequence[Any]:
        if array is None:
            found: list[Any] = elements.texts(given.place.asked, first, end - first)
        else:
            found = array_rows(array, first, end).tolist()
        missing = array_rows(is_missing, first, end).tolist()
        return [None if one else value for value, one in zip(found, missing, strict=True)]

    weight = elements.weight_of(kind)
    return Column(key, compounds.records(key, given.rows, weight, weight, block, "" if array is None else array.dtype))


def _runs(key: bytes, given: Array, ends: Array) -> Column:
    rows, size = ends.resolved_shape[0], int(ends.dtype[2:])
    wide = Converted(ends.data, size, 8, 8 * rows, partial(compounds.converted, ends.dtype, "<i8"))
    return Column(key, Ragged(key, given.data, given.dtype, Concatenated([Zeros(8), wide]), "<i8", rows))


# pandas, format="table": a field of a compound is the index, a column, or all columns of one type.


def _table(group: Place) -> Plan:
    found = Values.of(group, group.members(), b"table")
    kind = found.described.kind
    if not kind.fields or len(found.described.shape) != 1:
        raise Damaged("its dataset table has no fields")
    width = sum(prod(field.kind.dims) for field in kind.fields)
    return Plan(found.rows, width, lambda: _table_columns(group, found))


def _table_columns(group: Place, found: Values) -> list[Column]:
    """Return the columns in the order of the data frame, its index first."""
    asked, kind, rows = found.place.asked, found.described.kind, found.rows
    facts, about = found.place.attributes(), group.attributes()
    structures = dataset.structures(group.source, asked, found.described)
    info = _dict(unpickled(about.get("info")))
    index, columns = list[Column](), list[Column]()
    for field, offset, size in structures.fields(kind):
        name, count = field.name, prod(field.kind.dims)
        is_index, one = name == "index", field.kind._replace(dims=())
        names = [_dict(info.get(name)).get("index_name")] if is_index else unpickled(facts.get(f"{name}_kind"))
        if field.kind.fields or not isinstance(names, list) or len(names) != count:
            names, one, count = [name], field.kind, 1
        what = facts.get(f"{name}_kind" if is_index else f"{name}_dtype")
        for number, shown in enumerate(names):
            data = structures.values(offset, size, one, number)
            key = _key(shown if isinstance(shown, (str, int)) else name)
            if facts.get(f"{name}_meta") == "category":
                array = Array(key, data, one.shown, (rows,))
                made = _categorical(key, array, *_listed_apart(group.at(b"meta", _key(name), b"meta")))
            else:
                zone = _dict(info.get(name)).get("tz")
                made = _of_pandas(key, one, data, (rows, *one.dims), what, zone, facts.get(f"{name}_nan_rep"))
            (index if is_index else columns).append(made)
    levels, axes = unpickled(about.get("levels")), unpickled(about.get("non_index_axes"))
    if isinstance(levels, list):  # the field of the index only counts rows, and the levels are columns
        index, columns = _taken(columns, levels)
    order = axes[0][1] if isinstance(axes, list) and axes and isinstance(axes[0], tuple) and len(axes[0]) == 2 else None
    chosen, others = _taken(columns, order if isinstance(order, list) else [])
    return [*index, *chosen, *others]


def _listed_apart(group: Place) -> tuple[Column | None, Callable[[], list[Any]]]:
    """Return the categories that a table of their own has."""
    plan = _table(group)
    column = next((one for one in plan.columns() if one.name == b"values"), None)
    group.asked.allowance.part().take(OBJECT * plan.rows, "categories")
    return column, lambda: list(values(column, plan.rows, PIECE)) if column else []


def _taken(columns: list[Column], names: list[Any]) -> tuple[list[Column], list[Column]]:
    """Return the columns of these names, in their order, and the others."""
    places = {column.name: number for number, column in enumerate(columns)}
    chosen = [places[key] for key in dict.fromkeys(map(_key, names)) if key in places]
    rest = sorted(set(range(len(columns))).difference(chosen))
    return [columns[number] for number in chosen], [columns[number] for number in rest]


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _of_pandas(
    key: bytes, kind: ValueType, data: Data, shape: tuple[int, ...], what: Any, zone: Any, missing: Any = None,
) -> Column:
    """Return numbers, texts or times that pandas calls ``what``."""
    match = _TIME.fullmatch(what) if isinstance(what, str) else None
    if match is not None and kind.shown == "<i8":
        letter, unit = "M" if match[1] == "datetime" else "m", match[2] or "ns"
        is_known = isinstance(zone, str) and _ZONE.fullmatch(zone)
        named = "" if letter == "m" or not isinstance(zone, str) else zone if is_known else "UTC"
        return Column(key, Array(key, data, f"<{letter}8[{unit}]", shape), zone=named)
    marker = missing if isinstance(missing, str) else NAN
    return compounds.column(key, kind, data, shape, marker.encode("utf-8", "replace"))


# pandas, format="fixed": arrays of all columns of one type, and of the index.


def _fixed(group: Place) -> Plan:
    """Return a data frame, or a series."""
    members, facts = group.members(), group.attributes()
    is_frame = facts.get("pandas_type") == "frame"
    axis = b"axis1" if is_frame else b"index"
    nlevels = facts.get(f"{_text(axis)}_nlevels")
    levels = min(nlevels, len(members)) if isinstance(nlevels, int) else 0
    first = Values.of(group, members, axis + b"_label0" if levels else axis)
    is_empty = first.rows == 1 and "shape" in first.place.attributes()  # no rows are written as one
    rows = 0 if is_empty else first.rows
    blocks = [name for name in sorted(members) if name.endswith(b"_values") or (name == b"values" and not is_frame)]
    described = {name: members[name].dataset for name in blocks}
    # What has no type of its own is a pickle, also texts.
    hidden = [name for name, one in described.items() if one is None or one.kind.name != "number"]
    shown = [name for name in blocks if name not in hidden]

    def columns() -> list[Column]:
        index = [_index(group, members, b"%b_level%d" % (axis, number), rows) for number in range(levels)]
        if not levels:
            index = [_index(group, members, axis, rows)]
        found = [column for name in shown for column in _block_columns(group, members, name, rows, facts.get("name"))]
        order = Values.of(group, members, b"axis0").listed() if is_frame and shown else []
        chosen, others = _taken(found, order)
        return [*(one for one in index if one is not None), *chosen, *others]

    return Plan(rows, len(members), columns, hidden)


def _index(group: Place, members: dict[bytes, Object], name: bytes, rows: int) -> Column | None:
    """Return an index, or a level of one, for ``rows`` rows; None if it is pickled."""
    found = Values.of(group, members, name)
    facts = found.place.attributes()
    called = facts.get("name")
    key = _key(called) if isinstance(called, str) and called != "N." else b"index"  # the pickle of None
    made = found.column(key, NAN.encode())
    if made is None:
        return None
    if isinstance(made.content, Array) or not rows:
        data, count = (made.content.data, found.rows) if isinstance(made.content, Array) and rows else (Zeros(0), 0)
        made = _of_pandas(key, found.described.kind, data, (count,), facts.get("kind"), facts.get("tz"))
    if b"_level" not in name:
        _demand_rows(key, min(rows, found.rows), rows)
        return made
    labels = Values.of(group, members, name.replace(b"_level", b"_label"))
    _demand_rows(key, labels.rows, rows)
    level = made
    return _categorical(key, labels.array(), level, lambda: list(values(level, found.rows, PIECE)))


def _block_columns(
    group: Place, members: dict[bytes, Object], name: bytes, rows: int, called: Any,
) -> Iterator[Column]:
    """Yield the columns of one type, or that of a series."""
    found = Values.of(group, members, name)
    facts, array = found.place.attributes(), found.array()
    if name == b"values":
        names = [called if isinstance(called, str) and called != "N." else "values"]
    else:
        names = Values.of(group, members, name.replace(b"_values", b"_items")).listed()
    if rows and array.resolved_shape not in ((rows, len(names)), (rows,) * len(names)):
        raise Damaged(f"has {_text(name)} of the shape {list(array.resolved_shape)} for {rows} rows")
    size = int(array.dtype[2:])
    for number, one in enumerate(names):
        data = Gathered(array.data, number * size, size, len(names) * size, rows) if rows else Zeros(0)
        yield _of_pandas(_key(one), found.described.kind, data, (rows,), facts.get("value_type"), facts.get("tz"))


_PLANS: dict[str, Callable[[Place], Plan]] = {
    "dataframe": _anndata, "colnames": _dynamic, "frame_table": _table, "series_table": _table, "frame": _fixed,
    "series": _fixed,
}


# Names that pandas has pickled: protocol 0 is lines of text, of which these need no class.

_LINE = re.compile(rb"([pgVI])([^\n]*)\n|([(ldtNas.])")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_MARK = object()


def unpickled(attribute: Any) -> Any:
    """Return lists, tuples and dictionaries of text, whole numbers and None that an attribute has as a pickle.

    None for any other pickle, and for other attributes: no object is made, and nothing is called.
    """
    if not isinstance(attribute, str):
        return None
    # Bytes that are not UTF-8 are escapes in attributes; pickles write no backslash in another way than ``\\u005c``.
    raw = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), attribute.encode())
    stack: list[Any] = []
    known: dict[bytes, Any] = {}
    at = 0
    try:
        while at < len(raw):
            line = _LINE.match(raw, at)
            if line is None:
                return None
            at = line.end()
            code, text = (line[1] or line[3]).decode(), line[2]
            if code == ".":
                return stack[0] if len(stack) == 1 else None
            _step(stack, known, code, text)
    except (LookupError, ValueError, TypeError, AttributeError):
        pass
    return None


def _step(stack: list[Any], known: dict[bytes, Any], code: str, text: bytes) -> None:
    """Do one step of a pickle. Raises LookupError, ValueError, TypeError or AttributeError if it cannot be one."""
    if code == "V":
        stack.append(text.decode("raw-unicode-escape"))
    elif code == "I":
        stack.append({b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text))
    elif code == "p":
        known[text] = stack[-1]
    elif code in "gN(":
        stack.append(known[text] if code == "g" else _MARK if code == "(" else None)
    elif code in "ldt":
        mark = len(stack) - 1 - stack[::-1].index(_MARK)
        inner = stack[mark + 1 :]
        pairs = zip(inner[::2], inner[1::2], strict=True) if code == "d" else ()
        stack[mark:] = [dict(pairs) if code == "d" else tuple(inner) if code == "t" else inner]
    elif code == "a":
        value = stack.pop()
        stack[-1].append(value)
    else:
        value, key = stack.pop(), stack.pop()
        stack[-1][key] = value

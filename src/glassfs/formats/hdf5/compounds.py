"""Compounds (§6): structures of NumPy, and the columns of tables, whose names are joined by dots where compounds nest.

Fields that a structure cannot have are columns that the worker is asked for, one field at a time. Making columns reads
nothing; data that cannot be read raise Damaged. Any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

from glassfs.content import Array, Column, Data, Gathered, Zeros, dtypes
from glassfs.content.allowance import OBJECT
from glassfs.content.rows import TextRows, coded, padded
from glassfs.content.table import ColumnBlocks
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import elements
from glassfs.formats.hdf5.description import Field, ValueType
from glassfs.formats.hdf5.elements import DatasetRequests
from glassfs.lazy import np
from glassfs.names import raw

Convert = Callable[[bytes], bytes]


def shown_dtype(kind: ValueType) -> Any:
    """Return the type of a value as it is shown, for NumPy: of a compound, a list of its fields without gaps."""
    if not kind.fields:
        return kind.shown
    return [
        (field.name, shown_dtype(field.kind), *([field.kind.dims] if field.kind.dims else [])) for field in kind.fields
    ]


def structure_dtype(kind: ValueType) -> str:
    """Return the description of structures. Raises Damaged for names that NumPy does not know."""
    described = repr(shown_dtype(kind))
    is_named = all(field.name for field in kind.fields)
    if not is_named or dtypes.parsed(described).itemsize * prod(kind.dims) != kind.item:
        raise Damaged("has fields that NumPy does not know")
    return described


def is_by_library(kind: ValueType) -> bool:
    """Return whether only the library converts some values of a type."""
    return kind.stored is None or any(is_by_library(field.kind) for field in kind.fields)


def conversion(kind: ValueType) -> Convert | None:
    """Return what makes values as they are shown of stored ones; None if these are the same."""
    stored, shown = _stored_dtype(kind), shown_dtype(kind)
    if kind.fields:
        stored, shown = np.dtype(stored), np.dtype(shown)
    return None if stored == shown else partial(converted, stored, shown)


def _stored_dtype(kind: ValueType) -> Any:
    if not kind.fields:
        return kind.stored or kind.shown
    return {
        "names": [field.name for field in kind.fields], "offsets": [field.offset for field in kind.fields],
        "formats": [(_stored_dtype(field.kind), field.kind.dims) for field in kind.fields], "itemsize": kind.size,
    }


def converted(stored: Any, shown: Any, raw: bytes) -> bytes:
    """Convert elements of one type of NumPy to another one, such as to another byte order.

    Of booleans, every byte but 0 becomes 1.
    """
    return np.frombuffer(raw, np.dtype(stored)).astype(np.dtype(shown)).tobytes()


def fixed(kind: ValueType) -> ValueType:
    """Return a compound with those of its fields that a structure can have, maybe none."""
    found = []
    for field in kind.fields:
        inner = fixed(field.kind) if field.kind.fields else field.kind
        if inner.shown or inner.fields:
            found.append(field._replace(kind=inner))
    return kind._replace(name="compound", fields=tuple(found))


def width(kind: ValueType) -> int:
    """Return the number of columns of a compound."""
    return sum(width(field.kind) for field in kind.fields) if kind.fields else 1


class Structures:
    """``rows`` structures in ``data``, with the fields of ``kind`` that a structure can have.

    Those of a dataset that is ``asked`` for are in blocks of the cache, so that they are read once for all columns.
    """

    def __init__(self, kind: ValueType, data: Data, rows: int, asked: DatasetRequests | None = None) -> None:
        self._kind, self._data, self._rows = fixed(kind), data, rows
        sizes = [size for _, _, size in self.fields()]
        self._stride, self._blocks = sum(sizes), None
        if asked is not None:
            transposed = partial(_transposed, data, sizes)
            self._blocks = ColumnBlocks(rows, self._stride, transposed, asked.cache, asked.key("columns"))

    def fields(self) -> Iterator[tuple[Field, int, int]]:
        """Yield each field, its offset and its size."""
        end = 0
        for field in self._kind.fields:
            yield field, end, field.kind.item
            end += field.kind.item

    def field(self, offset: int, size: int) -> Data:
        """Return a field of all rows."""
        if self._blocks is not None:
            return self._blocks.column(offset, size)
        return Gathered(self._data, offset, size, self._stride, self._rows)

    def columns(
        self, asked: DatasetRequests, rows: int, kind: ValueType, prefix: str = "", dims: tuple[int, ...] = (),
        members: tuple[int, ...] = (),
    ) -> Iterator[Column]:
        """Yield the columns of compounds in a table of ``rows`` rows, each of which has an array ``dims`` of them.

        ``members`` are the numbers of the fields that lead from the elements of the dataset to the compounds.
        """
        known = {one.name: (offset, size) for one, offset, size in self.fields()}
        for number, field in enumerate(kind.fields):
            name, inner, path = prefix + field.name, field.kind, (*members, number)
            found = self.field(*known[field.name]) if field.name in known else Zeros(0)
            if inner.fields:
                below = Structures(inner, found, self._rows * prod(inner.dims))
                yield from below.columns(asked, rows, inner, f"{name}.", dims + inner.dims, path)
            elif inner.shown:
                yield column(raw(name), inner, found, (rows, *dims, *inner.dims))
            else:
                yield _asked_column(raw(name), asked, rows, inner, path)


def _transposed(data: Data, sizes: list[int], first: int, count: int) -> bytes:
    """Return some structures whose fields have these sizes, one field after another."""
    stride = sum(sizes)
    raw, offsets = data.read(first * stride, count * stride), accumulate(sizes, initial=0)
    fields = zip(sizes, offsets, strict=False)
    return b"".join([np.ndarray((count,), f"V{size}", raw, offset, stride).tobytes() for size, offset in fields])


def column(key: bytes, kind: ValueType, data: Data, shape: tuple[int, ...], missing: bytes = b"") -> Column:
    """Return the column of values of a fixed size: texts as texts, None where they are ``missing``; of an enumeration
    the names.
    """
    if kind.name == "text":
        size = int(kind.shown[2:])
        made = partial(padded, width=size, padding=kind.padding, missing=missing)
        return _text_column(key, data, shape, size, made)
    if kind.names:
        names = {value: name for name, value in kind.names}
        return _text_column(key, data, shape, int(kind.shown[2:]), partial(_named, names, kind.shown))
    return Column(key, Array(key, data, kind.shown, shape))


def _named(names: dict[int, str], dtype: str, raw: bytes) -> TextRows:
    """Return the names of values of an enumeration; a value without a name is its digits."""
    numbers, places = np.unique(np.frombuffer(raw, dtype), return_inverse=True)
    return coded(places, [names.get(number, str(number)) for number in numbers.tolist()])


def _text_column(
    key: bytes, data: Data, shape: tuple[int, ...], size: int, made: Callable[[bytes], TextRows],
) -> Column:
    """Return a column of texts, or of lists of them, that are made of values of ``size`` bytes."""
    rows, count = shape[0], prod(shape[1:])

    def block(first: int, end: int) -> Sequence[Any]:
        found = made(data.read(first * count * size, (end - first) * count * size))
        if count == 1:
            return found
        plain = list(found)
        return [plain[at : at + count] for at in range(0, len(plain), count)]

    weight = count * (2 * OBJECT + 4 * size)
    return Column(key, elements.records(key, rows, max(1, count * size), weight, block), is_list=count != 1)


def _asked_column(key: bytes, asked: DatasetRequests, rows: int, kind: ValueType, members: tuple[int, ...]) -> Column:
    """Return the column of a field that only the worker reads: text, lists of text or numbers, or JSON as text."""
    is_text = kind.name == "text" and len(kind.dims) < 2
    dtype = kind.base.shown if kind.base is not None and not kind.base.dims and kind.base.shown[1] != "c" else ""

    def block(first: int, end: int) -> Sequence[Any]:
        found = elements.documents(asked, first, end - first, members)
        if is_text or dtype:
            return found
        return [one if one is None or isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in found]

    made = elements.records(key, rows, elements.ASKED_SIZE, elements.weight_of(kind), block, dtype)
    return Column(key, made, is_list=bool(dtype or (is_text and kind.dims)))

"""Compounds (§6): structures of NumPy, and the columns of tables, whose names are joined by dots where compounds nest.

Fields that a structure cannot have are columns that the worker is asked for, one field at a time. Making columns reads
nothing; data that cannot be read raise Damaged. Any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

from glassfs.content import Array, Column, Converted, Data, Gathered, Records, dtypes, texts
from glassfs.content.allowance import OBJECT
from glassfs.content.columns import ColumnBlocks
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import elements
from glassfs.formats.hdf5.description import Field, ValueType
from glassfs.formats.hdf5.elements import DatasetRequests
from glassfs.sizes import PIECE

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
    return any(is_by_library(field.kind) for field in kind.fields) or (kind.name == "number" and kind.stored is None)


def conversion(kind: ValueType) -> Convert | None:
    """Return what makes values as they are shown of stored ones; None if these are the same."""
    return None if _is_same(kind) else partial(converted, _stored_dtype(kind), shown_dtype(kind))


def _is_same(kind: ValueType) -> bool:
    if not kind.fields:
        return kind.name != "number" or kind.stored == kind.shown
    ends = [0]
    for field in kind.fields:
        ends.append(ends[-1] + field.kind.item)
    is_packed = [*(field.offset for field in kind.fields), kind.size] == ends
    return is_packed and all(_is_same(field.kind) for field in kind.fields)


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
    import numpy as np

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
    """``rows`` compounds in ``data``, ``stride`` bytes each: as they are stored, or as they are shown.

    ``blocks`` has them in blocks of the cache, so that they are read once for all columns.
    """

    def __init__(self, data: Data, stride: int, rows: int, is_stored: bool, blocks: ColumnBlocks | None = None) -> None:
        self._data, self._stride, self._rows, self.is_stored, self._blocks = data, stride, rows, is_stored, blocks

    @classmethod
    def cached(
        cls, asked: DatasetRequests, kind: ValueType, data: Data, stride: int, rows: int, is_stored: bool,
    ) -> Structures:
        """Return the compounds of a dataset."""
        alone = cls(data, stride, rows, is_stored)
        spans = sorted((offset, offset + size) for _, offset, size in alone.fields(kind))
        if any(end > start for (_, end), (start, _) in pairwise(spans)):
            return alone  # no writer has fields that overlap
        blocks = ColumnBlocks(rows, stride, partial(alone._transposed, kind), asked.cache, asked.key("columns"))
        return cls(data, stride, rows, is_stored, blocks)

    def _transposed(self, kind: ValueType, first: int, count: int) -> bytes:
        """Return some rows, one field after another, each at ``count`` times the offset that it has in a row."""
        import numpy as np

        raw = self._data.read(first * self._stride, count * self._stride)
        made = np.zeros(len(raw), np.uint8)
        for _, offset, size in self.fields(kind):
            field = np.ndarray((count, size), np.uint8, raw, offset, (self._stride, 1))
            made[count * offset : count * (offset + size)].reshape(count, size)[...] = field
        return made.tobytes()

    def fields(self, kind: ValueType) -> Iterator[tuple[Field, int, int]]:
        """Yield each field that a structure can have, its offset and its size."""
        end = 0
        for field in fixed(kind).fields:
            size = field.kind.stored_size if self.is_stored else field.kind.item
            yield field, field.offset if self.is_stored else end, size
            end += size

    def field(self, offset: int, size: int) -> Data:
        """Return a field of all rows."""
        if self._blocks is not None:
            return self._blocks.column(offset, size)
        return Gathered(self._data, offset, size, self._stride, self._rows)

    def values(self, offset: int, size: int, kind: ValueType, number: int = 0) -> Data:
        """Return a field of all rows as values of the type ``kind`` are shown; of several such values the one with this
        number.
        """
        found = self.field(offset, size)
        item = kind.stored_size if self.is_stored else kind.item
        if item != size:
            found = Gathered(found, number * item, item, size, self._rows)
        convert = conversion(kind) if self.is_stored else None
        if convert is None:
            return found
        count = prod(kind.dims)
        return Converted(found, item // count, kind.item // count, self._rows * kind.item, convert)

    def columns(
        self, asked: DatasetRequests, rows: int, kind: ValueType, prefix: str = "", dims: tuple[int, ...] = (),
        members: tuple[int, ...] = (),
    ) -> Iterator[Column]:
        """Yield the columns of compounds in a table of ``rows`` rows, each of which has an array ``dims`` of them.

        ``members`` are the numbers of the fields that lead from the elements of the dataset to the compounds.
        """
        known = {one.name: (offset, size) for one, offset, size in self.fields(kind)}
        for number, field in enumerate(kind.fields):
            name, inner, path = prefix + field.name, field.kind, (*members, number)
            offset, size = known.get(field.name, (0, 0))
            if inner.fields:
                count = prod(inner.dims)
                below = Structures(self.field(offset, size), size // count, self._rows * count, self.is_stored)
                yield from below.columns(asked, rows, inner, f"{name}.", dims + inner.dims, path)
            elif inner.shown:
                shape = (rows, *dims, *inner.dims)
                yield column(_key(name), inner, self.values(offset, size, inner), shape)
            else:
                yield _asked_column(_key(name), asked, rows, inner, path)


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def column(key: bytes, kind: ValueType, data: Data, shape: tuple[int, ...], missing: bytes = b"") -> Column:
    """Return the column of values of a fixed size: texts as texts, None where they are ``missing``; of an enumeration
    the names.
    """
    if kind.name == "text":
        size = int(kind.shown[2:])
        made = partial(texts.padded, width=size, padding=kind.padding, missing=missing)
        return _text_column(key, data, shape, size, made)
    if kind.names:
        names = {value: name for name, value in kind.names}
        return _text_column(key, data, shape, int(kind.shown[2:]), partial(_named, names, kind.shown))
    return Column(key, Array(key, data, kind.shown, shape))


def _named(names: dict[int, str], dtype: str, raw: bytes) -> texts.TextRows:
    """Return the names of values of an enumeration; a value without a name is its digits."""
    import numpy as np

    numbers, places = np.unique(np.frombuffer(raw, dtype), return_inverse=True)
    return texts.coded(places, [names.get(number, str(number)) for number in numbers.tolist()])


def _text_column(
    key: bytes, data: Data, shape: tuple[int, ...], size: int, made: Callable[[bytes], texts.TextRows],
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
    return Column(key, records(key, rows, max(1, count * size), weight, block), is_list=count != 1)


def records(
    key: bytes, rows: int, size: int, weight: int, block: Callable[[int, int], Sequence[Any]], dtype: str = "",
) -> Records:
    """Return records of which ``block`` makes the rows ``[first, end)``: of ``size`` bytes, in memory ``weight``."""
    step = max(1, PIECE // max(128, size))  # rows of few bytes take many times as much

    def made(number: int) -> Sequence[Any]:
        return block(number * step, min((number + 1) * step, rows))

    blocks, cost = -(-rows // step), step * weight
    if dtype:
        return Records(key, blocks, made, "", lambda number: cost, dtype)
    return Records(key, blocks, made, "string", lambda number: cost)


def _asked_column(key: bytes, asked: DatasetRequests, rows: int, kind: ValueType, members: tuple[int, ...]) -> Column:
    """Return the column of a field that only the worker reads: text, lists of text or numbers, or JSON as text."""
    read = partial(elements.documents, members=members)
    is_text = kind.name == "text" and len(kind.dims) < 2
    base = kind.base
    is_list = bool(is_text and kind.dims)
    dtype = ""
    if base is not None and not base.dims and base.shown[1] != "c":
        is_list, dtype = True, base.shown

    def block(first: int, end: int) -> Sequence[Any]:
        found = read(asked, first, end - first)
        return found if is_text or dtype else list(map(_as_text, found))

    made = records(key, rows, PIECE // elements.ROWS, elements.weight_of(kind), block, dtype)
    return Column(key, made, is_list)


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

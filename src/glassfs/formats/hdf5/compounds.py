"""Compounds: arrays of structures, and tables of their fields (§6). Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, TypeAlias

from glassfs.content import Array, Column, Data, Gathered, Member, Table, dtypes
from glassfs.errors import Damaged
from glassfs.formats.hdf5.description import Dataset, Field

Convert: TypeAlias = "Callable[[bytes], bytes]"


def shown(dataset: Dataset) -> str:
    """Return the description of the structures: fields without gaps, little-endian. Raises Damaged for bad names."""
    described = repr([_shown(field) for field in dataset.kind.fields])
    if dtypes.parsed(described).itemsize != dataset.item:
        raise Damaged("has fields that NumPy does not know")
    return described


def conversion(dataset: Dataset) -> Convert | None:
    """Return what makes the structures of the stored ones. Raises Damaged if these do not fit."""
    end = 0
    is_same = True
    for field in dataset.kind.fields:
        size = int(field.shown[2:]) * prod(field.dims)
        is_same = is_same and field.offset == end and field.stored == field.shown
        end += size
        stored = 0 if field.stored is None else int(field.stored[2:]) * prod(field.dims)
        if stored != size or field.offset + size > dataset.size:
            raise Damaged("has fields beyond its end")
    if is_same and end == dataset.size:
        return None
    fields = dataset.kind.fields
    stored_type = {
        "names": [field.name for field in fields], "itemsize": dataset.size,
        "formats": [(field.stored, field.dims) for field in fields], "offsets": [field.offset for field in fields],
    }
    return partial(converted, stored_type, list(map(_shown, fields)))


def table(name: bytes, dataset: Dataset, data: Data) -> Iterator[Member]:
    """Yield the table of a dataset with one axis."""
    if len(dataset.shape) == 1:
        columns = partial(_columns, dataset, data)
        yield Member((name,), Table(name, dataset.elements, columns, width=len(dataset.kind.fields)))


def _columns(dataset: Dataset, data: Data) -> list[Column]:
    found, offset, rows = [], 0, dataset.elements
    for field in dataset.kind.fields:
        width = int(field.shown[2:]) * prod(field.dims)
        key = field.name.encode("utf-8", "surrogateescape")
        values = Gathered(data, offset, width, dataset.item, rows)
        found.append(Column(key, Array(key, values, field.shown, (rows, *field.dims))))
        offset += width
    return found


def _shown(field: Field) -> tuple[Any, ...]:
    return (field.name, field.shown, field.dims) if field.dims else (field.name, field.shown)


def converted(stored: Any, shown: Any, raw: bytes) -> bytes:
    """Convert elements of one type of NumPy to another one, such as to another byte order.

    Of booleans, every byte but 0 becomes 1.
    """
    import numpy as np

    return np.frombuffer(raw, np.dtype(stored)).astype(np.dtype(shown)).tobytes()

"""Datasets as contents (§4 to §6). Making one reads nothing; data that cannot be read raise Damaged. Any thread."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

from glassfs.content import (
    Array,
    Blob,
    Content,
    Converted,
    Data,
    Document,
    Extent,
    Member,
    Null,
    Rendered,
    Text,
    Unreadable,
    Zeros,
)
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import chunks, compounds, elements, filters, images
from glassfs.formats.hdf5.answers import MOST_INDEX
from glassfs.formats.hdf5.chunks import Chunked, Filled
from glassfs.formats.hdf5.description import LARGEST, Dataset
from glassfs.formats.hdf5.elements import Asked
from glassfs.formats.hdf5.stored import RECORD, ChunkIndex, Coding, Convert, checked_index
from glassfs.source import Source

LEAST_RECORD = 8
"""Bytes that a stored chunk takes in an index of the file, at least."""
MOST_TEXTS = 100_000
"""Strings of a dataset with several axes, which are shown as one document."""
BOOLEAN = "|b1"
_OMITTED = {
    "virtual": "virtual dataset: other files are never read",
    "external": "external values: other files are never read",
    "unknown": "unknown layout: its values cannot be found",
}


@dataclass(slots=True)
class Values(Array):
    """An array of a dataset, with what its attributes say in addition."""

    facts: dict[str, str] = field(default_factory=dict)

    def attributes(self) -> dict[str, str]:
        return Array.attributes(self) | self.facts


def why_hidden(dataset: Dataset) -> str | None:
    """Return why a dataset is omitted, beginning with the kind (see ``Omitted``), or None."""
    if dataset.layout in _OMITTED:
        return _OMITTED[dataset.layout]
    if dataset.kind.name == "unknown":
        return f"{dataset.kind.text}: this type is not shown"
    sizes = (*dataset.shape, dataset.item or 1)
    if prod(length or 1 for length in sizes) > LARGEST:
        return "too large: its shape has 2**60 bytes or more"
    return None


def members(source: Source, asked: Asked, dataset: Dataset) -> Iterator[Member]:
    """Yield the contents of a dataset that is not hidden, under its name."""
    name = asked.path[-1]
    kind = dataset.kind
    if dataset.is_null:
        yield Member((name,), Null(name))
    elif kind.name == "number":
        array = _array(source, asked, dataset)
        yield Member((name,), array)
        yield from images.of_array(array)
    elif kind.name == "compound":
        array = _structures(source, asked, dataset)
        yield Member((name,), array)
        yield from compounds.table(name, dataset, array.data)
    elif kind.name == "text":
        yield Member((name,), _text(asked, dataset))
    elif kind.name == "bytes":
        data = _stored_data(source, asked, dataset, None, dataset.size)
        yield Member((name,), Blob(name, data))
    elif kind.base is not None:
        runs = elements.Runs(asked, dataset.elements, kind.base.shown)
        dtype = kind.base.shown
        yield Member((name, b"values"), Array(b"values", runs.values(), dtype, lambda: (runs.count(),)))
        yield Member((name, b"offsets"), Array(b"offsets", runs.offsets(), "<i8", (dataset.elements + 1,)))


def _structures(source: Source, asked: Asked, dataset: Dataset) -> Array:
    dtype = compounds.shown(dataset)
    data = _stored_data(source, asked, dataset, compounds.conversion(dataset), dataset.item)
    return Array(asked.path[-1], data, dtype, dataset.shape, "compound")


def _array(source: Source, asked: Asked, dataset: Dataset) -> Array:
    kind = dataset.kind
    shape = dataset.shape + kind.dims
    facts = {"layout": dataset.layout}
    if dataset.chunks:
        facts["chunks"] = str(list(dataset.chunks))
    if dataset.filters:
        facts["filters"] = ", ".join(one.name or str(one.code) for one in dataset.filters)
    missing = _missing_filter(dataset)
    if missing:
        facts["readable"] = "false"
    modality = "rgb" if dataset.is_image else None
    data = array_data(source, asked, dataset)
    return Values(asked.path[-1], data, kind.shown, shape, kind.text, modality, facts=facts)


def array_data(source: Source, asked: Asked, dataset: Dataset) -> Data:
    """Return the elements of a dataset of numbers as they are shown."""
    kind = dataset.kind
    size = dataset.elements * dataset.item
    missing = _missing_filter(dataset)
    if missing:
        return Unreadable(size, Damaged(missing, source.name))
    if kind.stored is None or int(kind.stored[2:]) * prod(kind.dims) != dataset.size:
        return _decoded_by_library(asked, dataset, size)
    return _stored_data(source, asked, dataset, _conversion(kind.stored, kind.shown), dataset.item)


def _stored_data(source: Source, asked: Asked, dataset: Dataset, convert: Convert | None, item: int) -> Data:
    """Return elements of ``item`` bytes of which the file has the bytes, or ``convert`` makes them of these."""
    size = dataset.elements * item
    if not size:
        return Zeros(0)
    if dataset.layout == "compact" or not filters.are_known(dataset.filters):
        return _decoded_by_library(asked, dataset, size)
    if dataset.layout == "contiguous":
        if dataset.offset is None:
            return Filled(dataset.fill, dataset.elements) if dataset.fill else Zeros(size)
        if dataset.stored != dataset.elements * dataset.size:
            reason = f"has {dataset.stored} stored bytes, but its shape needs {dataset.elements * dataset.size}"
            return Unreadable(size, source.damage(reason))
        extent = Extent(source, dataset.offset, dataset.stored)
        if convert is None:
            return extent
        return Converted(extent, dataset.size, item, size, lambda raw: bytes(convert(raw)))
    hindrance = chunks.why_unreadable(prod(dataset.chunks) * max(dataset.size, item), dataset.filters)
    if hindrance:
        return Unreadable(size, source.damage(hindrance))
    grid = (-(-length // step) for length, step in zip(dataset.shape, dataset.chunks, strict=True))
    index = ChunkIndex(Rendered(
        asked.cache, asked.key("chunks"), lambda: checked_index(asked.answers.chunks(asked.path)),
        cost=2 * RECORD * min(prod(grid), source.size // LEAST_RECORD, MOST_INDEX // RECORD),
    ))
    coding = Coding(dataset.filters, dataset.size, item, convert)
    return Chunked(
        source, asked.cache, index, dataset.shape, dataset.chunks, coding, dataset.fill, asked.key("data"),
    )


def _decoded_by_library(asked: Asked, dataset: Dataset, size: int) -> Data:
    if dataset.kind.name == "compound":
        dtype = [list(one) for one in ast.literal_eval(compounds.shown(dataset))]
        return elements.numbers(asked, dataset.shape, dataset.item, dtype)
    if dataset.kind.name != "number":
        return Unreadable(size, Damaged("has values that only the library decodes, and is not read through it"))
    return elements.numbers(asked, dataset.shape, dataset.item, dataset.kind.shown) if size else Zeros(0)


def _missing_filter(dataset: Dataset) -> str:
    """Return why a dataset cannot be read, or "": neither glassfs nor the library has a filter."""
    for one in () if filters.are_known(dataset.filters) else dataset.filters:
        if not one.is_available:
            return f"needs the filter {one.name or 'without a name'} ({one.code}): install hdf5plugin"
    return ""


def _conversion(stored: str, shown: str) -> Convert | None:
    if shown == BOOLEAN:
        return _truths
    return None if stored == shown else partial(_swapped, stored, shown)


_TRUTH = bytes([0]) + bytes([1]) * 255


def _truths(raw: bytes | bytearray) -> bytes | bytearray:
    """Convert bytes to booleans of NumPy: every byte but 0 becomes 1."""
    return raw.translate(_TRUTH)


def _swapped(stored: str, shown: str, raw: bytes | bytearray) -> bytes:
    """Convert numbers to another byte order."""
    import numpy as np

    found: bytes = np.frombuffer(raw, stored).astype(shown).tobytes()
    return found


def _text(asked: Asked, dataset: Dataset) -> Content:
    name, shape, count = asked.path[-1], dataset.shape, dataset.elements
    if not shape:
        def text() -> bytes:
            return elements.texts(asked, 0, 1)[0].encode("utf-8", "replace")

        return Text(name, Rendered(asked.cache, asked.key("text"), text))
    if len(shape) == 1 or count > MOST_TEXTS:
        return elements.lines(name, asked, count, dataset.size)
    return Document(name, lambda: _nested(elements.texts(asked, 0, count), list(shape)) if count else [])


def _nested(values: list[Any], shape: list[int]) -> list[Any]:
    """Return values as lists in lists."""
    while len(shape) > 1:
        length = shape.pop()
        values = [values[start : start + length] for start in range(0, len(values), length)]
    return values

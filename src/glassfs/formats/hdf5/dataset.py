"""Datasets as contents (§4 to §6). Making one reads nothing; data that cannot be read raise Damaged. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, TypeAlias

from glassfs.content import (
    Array,
    Blob,
    Column,
    Content,
    Converted,
    Data,
    Document,
    EncodedImage,
    Extent,
    Gathered,
    Member,
    Null,
    Rendered,
    Table,
    Text,
    Unreadable,
    Zeros,
    booleans,
    dtypes,
)
from glassfs.errors import Damaged, NotInstalled, TooLarge
from glassfs.formats.hdf5 import elements, filters, images, matlab
from glassfs.formats.hdf5.chunks import RECORD, Chunked, ChunkIndex, Filled, checked_index, in_slabs
from glassfs.formats.hdf5.description import Dataset, Field
from glassfs.formats.hdf5.elements import DatasetRequests, LibraryGrid
from glassfs.source import Source

Convert: TypeAlias = "Callable[[bytes], bytes]"

LARGEST_BY_LIBRARY = 160 << 20
"""Bytes of a chunk that a worker decodes: it has 192 MiB for these, the stored ones and what it reads at once."""
MOST_TEXTS = 100_000
"""Strings of a dataset with several axes, which are shown as one document."""


@dataclass(slots=True)
class RawValues(Blob):
    """Values of a type that no array has, with what is known of them."""

    facts: dict[str, str] = field(default_factory=dict)

    def attributes(self) -> dict[str, str]:
        return Blob.attributes(self) | self.facts


@dataclass(slots=True)
class Values(Array):
    """An array of a dataset, with what its attributes say in addition."""

    facts: dict[str, str] = field(default_factory=dict)

    def attributes(self) -> dict[str, str]:
        return Array.attributes(self) | self.facts


def why_hidden(dataset: Dataset) -> str | None:
    """Return the kind of a dataset that is not shown and why, or None."""
    if dataset.layout == "external":
        return "external storage: its values are in files of raw bytes, which are not read"
    if dataset.layout == "unknown":
        return "unknown layout: only a later release may read it"
    if dataset.kind.name == "unknown":
        return f"{dataset.kind.text}: datasets of this type are not shown"
    sizes = (*dataset.shape, *dataset.kind.dims, dataset.item or 1)
    if prod(length or 1 for length in sizes) > 1 << 60:  # file sizes have 63 bits
        return "huge dataset: it has more than 1024 PiB"
    return None


def members(source: Source, asked: DatasetRequests, dataset: Dataset) -> Iterator[Member]:
    """Yield the contents of a dataset that is not hidden, under its name."""
    name = asked.path[-1]
    kind = dataset.kind
    found = matlab.content(asked, dataset, lambda: array_data(source, asked, dataset))
    if dataset.is_null:
        yield Member((name,), Null(name))
    elif found is not None:
        yield Member((name,), found)
    elif kind.name == "number":
        yield from _frames(source, asked, dataset) or [Member((name,), _array(source, asked, dataset))]
    elif kind.name == "compound":
        array = _structures(source, asked, dataset)
        yield Member((name,), array)
        yield from _structure_table(name, dataset, array.data)
    elif kind.name == "text":
        yield from _frames(source, asked, dataset) or [Member((name,), _text(asked, dataset))]
    elif kind.name == "bytes":
        if kind.text == "reference":
            yield Member((name,), _text(asked._replace(has_paths=True), dataset))
        facts = {"dtype": kind.text, "shape": str([*dataset.shape, *kind.dims])}
        if kind.text not in ("opaque", "reference"):
            facts["reason"] = "NumPy has no type that holds these values exactly on every machine"
        blob = RawValues(name, _stored_data(source, asked, dataset, None, dataset.item), facts)
        yield from _frames(source, asked, dataset) or [Member((name,), blob)]
    elif kind.base is not None:
        frames = _frames(source, asked, dataset)
        yield from frames
        if frames:
            return
        runs = _runs(asked, dataset)
        dtype, dims = kind.base.shown, kind.base.dims
        yield Member((name, b"values"), Array(b"values", runs.values(), dtype, lambda: (runs.count(), *dims)))
        yield Member((name, b"offsets"), Array(b"offsets", runs.offsets(), "<i8", (dataset.elements + 1,)))


def _structures(source: Source, asked: DatasetRequests, dataset: Dataset) -> Array:
    dtype = _structure_dtype(dataset)
    if any(field.stored is None for field in dataset.kind.fields):
        data = _decoded_by_library(source, asked, dataset, dataset.elements * dataset.item)
    else:
        data = _stored_data(source, asked, dataset, _structure_conversion(dataset), dataset.item)
    return Array(asked.path[-1], data, dtype, dataset.shape, "compound")


def _array(source: Source, asked: DatasetRequests, dataset: Dataset) -> Array:
    kind = dataset.kind
    shape = dataset.shape + kind.dims
    facts = {"layout": dataset.layout}
    if dataset.chunks:
        facts["chunks"] = str(list(dataset.chunks))
    if dataset.filters:
        facts["filters"] = ", ".join(one.name or str(one.code) for one in dataset.filters)
    if _missing_filter(asked, dataset):
        facts["readable"] = "false"
    modality = "rgb" if dataset.is_image else None
    data = array_data(source, asked, dataset)
    return Values(asked.path[-1], data, kind.shown, shape, kind.text, modality, facts=facts)


def array_data(source: Source, asked: DatasetRequests, dataset: Dataset) -> Data:
    """Return the elements of a dataset of numbers as they are shown."""
    kind = dataset.kind
    if asked.virtual is not None:
        return asked.virtual
    size = dataset.elements * dataset.item
    if kind.shown == "|b1" and kind.stored == "|u1":  # which the library would not read as booleans
        return booleans(array_data(source, asked, dataset._replace(kind=kind._replace(shown="|u1"))), size)
    missing = _missing_filter(asked, dataset)
    if missing:
        return Unreadable(size, NotInstalled(missing, source.name))
    # Only the library converts unusual numbers, and elements that have more bytes than their values.
    if kind.stored is None or int(kind.stored[2:]) * prod(kind.dims) != dataset.size:
        return _decoded_by_library(source, asked, dataset, size)
    convert = None if kind.stored == kind.shown else partial(converted, kind.stored, kind.shown)
    return _stored_data(source, asked, dataset, convert, dataset.item)


def _stored_data(source: Source, asked: DatasetRequests, dataset: Dataset, convert: Convert | None, item: int) -> Data:
    """Return elements of ``item`` bytes of which the file has the bytes, or ``convert`` makes them of these."""
    size = dataset.elements * item
    if not size:
        return Zeros(0)
    if dataset.layout == "compact" or not _is_decoded_here(asked, dataset):
        return _decoded_by_library(source, asked, dataset, size)
    stored = _raw_data(source, asked, dataset)
    return stored if convert is None else Converted(stored, dataset.size, item, size, convert)


def _raw_data(source: Source, asked: DatasetRequests, dataset: Dataset) -> Data:
    """Return the elements as they are in the file, in C order."""
    size = dataset.elements * dataset.size
    if dataset.layout == "contiguous":
        if dataset.offset is None:
            return Filled(dataset.fill, dataset.elements) if dataset.fill else Zeros(size)
        # The library does not compare these and would read what lies behind the values.
        if dataset.stored != size:
            reason = f"has {dataset.stored} stored bytes, but its shape needs {size}"
            return Unreadable(size, source.damage(reason))
        return Extent(source, dataset.offset, dataset.stored)
    # A stored chunk takes eight bytes or more in the index of the file.
    most = min(dataset.most_chunks, source.size // 8) * RECORD.size
    index = ChunkIndex(Rendered(
        asked.cache, asked.key("chunks"), lambda: checked_index(asked.answers.chunks(asked.path)),
        cost=2 * min(most, asked.allowance.size),
    ))
    chunked = Chunked(
        source, asked.cache, index, dataset.shape, dataset.chunks, dataset.size, dataset.filters, dataset.fill,
    )
    return in_slabs(asked.cache, chunked, asked.key("slab"))


def _decoded_by_library(source: Source, asked: DatasetRequests, dataset: Dataset, size: int) -> Data:
    if not size:
        return Zeros(0)
    if dataset.kind.name == "compound":
        dtype: object = list(map(_shown_field, dataset.kind.fields))
    else:
        dtype = dataset.kind.shown or None
    chunks = dataset.chunks or (1,) * len(dataset.shape)
    # The library has the output of a filter beside its input, and deflate doubles its buffer until it suffices.
    is_known = filters.are_known(dataset.filters)
    largest = LARGEST_BY_LIBRARY // 3 if dataset.filters and is_known else LARGEST_BY_LIBRARY
    if prod(chunks) * max(dataset.size, dataset.item) > largest:
        why = ": a larger cache_size allows more" if is_known else " that only the library decodes"
        reason = f"has chunks of more than {largest >> 20} MiB{why}"
        return Unreadable(size, TooLarge(reason, source.name))
    return LibraryGrid(asked, dataset.shape, chunks, dataset.item, dtype)


def _is_decoded_here(asked: DatasetRequests, dataset: Dataset) -> bool:
    """Return whether chunks are decoded here: their filters are known, and the cache has room for several of them."""
    size = prod(dataset.chunks) * dataset.size
    return not dataset.filters or (filters.are_known(dataset.filters) and size <= asked.cache.budget // 8)


def _missing_filter(asked: DatasetRequests, dataset: Dataset) -> str:
    """Return why a dataset cannot be read, or "": neither glassfs nor the library has a filter."""
    for one in () if _is_decoded_here(asked, dataset) else dataset.filters:
        if not one.is_available:
            name = f" ({one.name})" if one.name else ""
            return f"needs filter {one.code}{name}: install hdf5plugin, or set HDF5_PLUGIN_PATH to its folder"
    return ""


def _structure_dtype(dataset: Dataset) -> str:
    """Return the description of the structures: fields without gaps, little-endian. Raises Damaged for bad names."""
    described = repr([_shown_field(one) for one in dataset.kind.fields])
    if dtypes.parsed(described).itemsize != dataset.item:
        raise Damaged("has fields that NumPy does not know")
    return described


def _structure_conversion(dataset: Dataset) -> Convert | None:
    """Return what makes the structures of the stored ones. Raises Damaged if these do not fit."""
    end = 0
    is_same = True
    for one in dataset.kind.fields:
        size = int(one.shown[2:]) * prod(one.dims)
        is_same = is_same and one.offset == end and one.stored == one.shown
        end += size
        stored = 0 if one.stored is None else int(one.stored[2:]) * prod(one.dims)
        if stored != size or one.offset + size > dataset.size:
            raise Damaged("has fields beyond its end")
    if is_same and end == dataset.size:
        return None
    fields = dataset.kind.fields
    stored_type = {
        "names": [one.name for one in fields], "itemsize": dataset.size,
        "formats": [(one.stored, one.dims) for one in fields], "offsets": [one.offset for one in fields],
    }
    return partial(converted, stored_type, list(map(_shown_field, fields)))


def _structure_table(name: bytes, dataset: Dataset, data: Data) -> Iterator[Member]:
    """Yield the table of a dataset with one axis."""
    if len(dataset.shape) == 1:
        columns = partial(_structure_columns, dataset, data)
        yield Member((name,), Table(name, dataset.elements, columns, width=len(dataset.kind.fields)))


def _structure_columns(dataset: Dataset, data: Data) -> list[Column]:
    found, offset, rows = [], 0, dataset.elements
    for one in dataset.kind.fields:
        width = int(one.shown[2:]) * prod(one.dims)
        key = one.name.encode("utf-8", "surrogateescape")
        values = Gathered(data, offset, width, dataset.item, rows)
        found.append(Column(key, Array(key, values, one.shown, (rows, *one.dims))))
        offset += width
    return found


def _shown_field(one: Field) -> tuple[Any, ...]:
    return (one.name, one.shown, one.dims) if one.dims else (one.name, one.shown)


def converted(stored: Any, shown: Any, raw: bytes) -> bytes:
    """Convert elements of one type of NumPy to another one, such as to another byte order.

    Of booleans, every byte but 0 becomes 1.
    """
    import numpy as np

    return np.frombuffer(raw, np.dtype(stored)).astype(np.dtype(shown)).tobytes()


def suffix(source: Source, asked: DatasetRequests, dataset: Dataset) -> bytes:
    """Return the suffix of a dataset's file, empty if it has none."""
    if why_hidden(dataset):
        return b""
    for _, content in _frames(source, asked, dataset):
        return {"jpeg": b".jpg", "png": b".png"}[content.media] if isinstance(content, EncodedImage) else b""
    if dataset.is_null:
        return b".null"
    found = matlab.suffix(dataset)
    if found is not None:
        return found
    if dataset.kind.name == "text" or dataset.kind.text == "reference":
        is_text = dataset.kind.name == "text"
        return (b".txt" if is_text else b".json", b".jsonl", b".json")[min(2, len(dataset.shape))]
    return {"number": b".npy", "compound": b".npy", "bytes": b".bin"}.get(dataset.kind.name, b"")


def _frames(source: Source, asked: DatasetRequests, dataset: Dataset) -> list[Member]:
    """Return the image, or frames and video, if a dataset of bytes in any form has images."""
    kind, shape = dataset.kind, dataset.shape
    if kind.name == "number":
        return list(images.of_array(_array(source, asked, dataset)))
    if dataset.is_null or not dataset.elements or len(shape) > 1:
        return []
    if kind.base is not None:
        is_bytes = kind.base.shown == "|u1" and not kind.base.dims and shape
        rows = Array(asked.path[-1], Zeros(0), "|u1", ())
        return list(images.of_rows(rows, dataset.elements, _runs(asked, dataset).row)) if is_bytes else []
    is_fixed = kind.name in ("text", "bytes") and dataset.size >= images.SHORTEST
    if not is_fixed or not filters.are_known(dataset.filters):
        return []
    data = _stored_data(source, asked, dataset, None, dataset.size)
    return list(images.of_array(Array(asked.path[-1], data, "|u1", (*shape, dataset.size))))


def _runs(asked: DatasetRequests, dataset: Dataset) -> elements.VariableRows:
    base = dataset.kind.base
    assert base is not None
    return elements.VariableRows(asked, dataset.elements, base.shown, int(base.shown[2:]) * prod(base.dims))


def _text(asked: DatasetRequests, dataset: Dataset) -> Content:
    name, shape = asked.path[-1], dataset.shape + dataset.kind.dims
    count = prod(shape)
    if not shape and not asked.has_paths:
        def text() -> bytes:
            return (elements.texts(asked, 0, 1)[0] or "").encode("utf-8", "replace")

        return Text(name, Rendered(asked.cache, asked.key("text"), text))
    if len(shape) == 1 or count > MOST_TEXTS:
        return elements.lines(name, asked, count, dataset.size)
    return Document(name, lambda: _nested(elements.texts(asked, 0, count), list(shape)) if count else [])


def _nested(values: list[Any], shape: list[int]) -> Any:
    """Return values as lists in lists, that of no axis as itself."""
    while len(shape) > 1:
        length = shape.pop()
        values = [values[start : start + length] for start in range(0, len(values), length)]
    return values if shape else values[0]

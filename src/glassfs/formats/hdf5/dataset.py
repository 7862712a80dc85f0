"""Datasets as contents (§4 to §6, §9). Making one reads nothing; data that cannot be read raise Damaged. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

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
    Member,
    Null,
    Rendered,
    Series,
    Slice,
    Table,
    Text,
    Unreadable,
    Video,
    Zeros,
    booleans,
    images,
)
from glassfs.errors import LASTING, Damaged, GlassfsError, LeftOut, NotInstalled, Passing, TooLarge
from glassfs.formats.hdf5 import compounds, elements, filters
from glassfs.formats.hdf5.chunks import RECORD, Chunked, ChunkIndex, filled, in_slabs, place_of
from glassfs.formats.hdf5.compounds import Convert, Structures
from glassfs.formats.hdf5.description import Dataset
from glassfs.formats.hdf5.elements import MOST_TEXTS, DatasetRequests, LibraryGrid
from glassfs.lazy import np
from glassfs.once import once
from glassfs.sizes import PIECE

LARGEST_BY_LIBRARY = 160 << 20
"""Bytes of a chunk that a worker decodes: it has 192 MiB for these, the stored ones and what it reads at once."""
_CHARACTERS = {"|u1": "utf-8", "<u2": "utf-16-le", "<u4": "utf-32-le"}
"""Encodings of characters of MATLAB, and of the package hdf5storage."""
_TYPES = {
    "double": "<f8", "single": "<f4", "logical": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2",
    "int32": "<i4", "uint32": "<u4", "int64": "<i8", "uint64": "<u8",
}
"""Types of arrays by their classes, for empty ones."""



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


def members(asked: DatasetRequests, dataset: Dataset) -> Iterator[Member]:
    """Yield the contents of a dataset that is not hidden, under its name."""
    name = asked.path[-1]
    kind = dataset.kind
    found = _of_matlab(asked, dataset)
    frames = [Member((name,), found)] if found is not None else _frames(asked, dataset)
    if dataset.is_null:
        yield Member((name,), Null(name))
    elif frames:
        yield from frames
    elif kind.name == "compound":
        yield Member((name,), _structures(asked, dataset))
    elif kind.name in ("text", "json"):
        yield Member((name,), _text(asked, dataset))
    elif kind.name == "bytes":
        if kind.text == "reference":
            yield Member((name,), _text(asked, dataset))
        facts = {"dtype": kind.text, "shape": str([*dataset.shape, *kind.dims])}
        yield Member((name,), Blob(name, _stored_data(asked, dataset, None, dataset.item), facts=facts))
    elif kind.base is not None:
        runs = _runs(asked, dataset)
        dtype, dims = kind.base.shown, kind.base.dims
        yield Member((name, b"values"), Array(b"values", runs.values(), dtype, lambda: (runs.count(), *dims)))
        yield Member((name, b"offsets"), Array(b"offsets", runs.offsets(), "<i8", (dataset.elements + 1,)))
    if kind.fields and len(dataset.shape) == 1 and not kind.dims:
        def columns() -> list[Column]:
            return list(structures(asked, dataset).columns(asked, dataset.elements, kind))

        yield Member((name,), Table(name, dataset.elements, columns, width=compounds.width(kind)))


def plain(asked: DatasetRequests, dataset: Dataset) -> Content:
    """Return a dataset that is not hidden as an array, or as bytes of a type; whether it has images is not examined.

    Its stored size must be known. Bytes that are in other files or datasets, or of variable length, raise LeftOut.
    """
    kind, is_virtual, stored = dataset.kind, dataset.layout == "virtual", {"stored_bytes": str(dataset.stored)}
    if kind.name == "number" and not is_virtual:
        array = _array(asked, dataset)
        array.type_name = kind.stored if kind.stored and ">" in kind.stored else kind.text
        array.facts = {**(array.facts or {}), **stored}
        return array
    if not is_virtual and (kind.name == "bytes" or (kind.name in ("text", "compound") and kind.item)):
        data = _stored_data(asked, dataset, None, dataset.size)
    else:
        reason = "omitted: its values are of variable length or in other datasets"
        data = Unreadable(max(1, dataset.stored), LeftOut(reason, asked.source.name))
    return Blob(asked.path[-1], data, facts={"dtype": kind.text, "shape": str([*dataset.shape, *kind.dims])} | stored)


def _structures(asked: DatasetRequests, dataset: Dataset) -> Array:
    """Return a dataset of compounds all of whose fields a structure can have. Raises Damaged."""
    kind = dataset.kind
    dtype = compounds.structure_dtype(kind)
    if compounds.is_by_library(kind):
        data = _decoded_by_library(asked, dataset, dataset.elements * dataset.item)
    else:
        data = _stored_data(asked, dataset, compounds.conversion(kind), dataset.item)
    return Array(asked.path[-1], data, dtype, dataset.shape + kind.dims, "compound")


def structures(asked: DatasetRequests, dataset: Dataset) -> Structures:
    """Return the elements of a dataset of compounds, with those fields that a structure can have."""
    kind = compounds.fixed(dataset.kind)
    data: Data = Zeros(0)
    if kind == dataset.kind:
        data = _structures(asked, dataset).data
    elif kind.fields:  # the library finds some of the fields by their names
        compounds.structure_dtype(kind)
        data = _decoded_by_library(asked, dataset._replace(kind=kind), dataset.elements * kind.item)
    return Structures(kind, data, dataset.elements, asked)


def column(
    asked: DatasetRequests, dataset: Dataset, key: bytes, missing: bytes = b"",
) -> Column | None:
    """Return a dataset as a column of a table; None if it is no numbers and no text, or has no rows."""
    kind, shape = dataset.kind, dataset.shape + dataset.kind.dims
    if why_hidden(dataset) or dataset.is_null or not shape:
        return None
    if kind.name == "number":
        return compounds.column(key, kind, array_data(asked, dataset), shape)
    if kind.name != "text":
        return None
    if kind.shown and not _missing_filter(asked, dataset):
        return compounds.column(key, kind, _stored_data(asked, dataset, None, dataset.item), shape, missing)
    return Column(key, elements.lines(key, asked, prod(shape), kind)) if len(shape) == 1 else None


def _array(asked: DatasetRequests, dataset: Dataset) -> Array:
    kind = dataset.kind
    shape = dataset.shape + kind.dims
    facts = {"readable": "false"} if _missing_filter(asked, dataset) else None
    modality = "rgb" if dataset.is_image else None
    return Array(asked.path[-1], array_data(asked, dataset), kind.shown, shape, kind.text, modality, facts=facts)


def array_data(asked: DatasetRequests, dataset: Dataset) -> Data:
    """Return the elements of a dataset of numbers as they are shown."""
    kind = dataset.kind
    if asked.virtual is not None:
        return asked.virtual
    size = dataset.elements * dataset.item
    if kind.shown == "|b1" and kind.stored == "|u1":  # which the library would not read as booleans
        return booleans(array_data(asked, dataset._replace(kind=kind._replace(shown="|u1"))), size)
    missing = _missing_filter(asked, dataset)
    if missing:
        return Unreadable(size, NotInstalled(missing, asked.source.name))
    # Only the library converts unusual numbers, and elements that have more bytes than their values.
    if kind.stored is None or int(kind.stored[2:]) * prod(kind.dims) != dataset.size:
        return _decoded_by_library(asked, dataset, size)
    return _stored_data(asked, dataset, compounds.conversion(kind), dataset.item)


def _stored_data(asked: DatasetRequests, dataset: Dataset, convert: Convert | None, item: int) -> Data:
    """Return elements of ``item`` bytes of which the file has the bytes, or ``convert`` makes them of these."""
    size = dataset.elements * item
    if not size:
        return Zeros(0)
    if dataset.layout in ("virtual", "external"):
        return Unreadable(size, asked.source.damage("has its values in other datasets or files"))
    if not _is_decoded_here(asked, dataset):
        return _decoded_by_library(asked, dataset, size)
    stored = _raw_data(asked, dataset)
    return stored if convert is None else Converted(stored, dataset.size, item, size, convert)


def _raw_data(asked: DatasetRequests, dataset: Dataset) -> Data:
    """Return the elements as they are in the file, in C order."""
    size = dataset.elements * dataset.size
    if dataset.layout == "contiguous":
        if dataset.offset is None:
            return filled(dataset.fill, size) if dataset.fill else Zeros(size)
        # The library does not compare these and would read what lies behind the values.
        if dataset.stored != size:
            reason = f"has {dataset.stored} stored bytes, but its shape needs {size}"
            return Unreadable(size, asked.source.damage(reason))
        return Extent(asked.source, dataset.offset, dataset.stored)
    # A stored chunk takes eight bytes or more in the index of the file.
    chunks = prod(-(-length // step) for length, step in zip(dataset.shape, dataset.chunks, strict=True))
    most = min(chunks, asked.source.size // 8) * RECORD.size
    index = ChunkIndex(Rendered(
        asked.cache, asked.key("chunks"), lambda: asked.answers.chunks(asked.path),
        cost=2 * min(most, asked.allowance.size),
    ))
    return in_slabs(asked.cache, Chunked(asked.source, asked.cache, index, dataset), asked.key("slab"))


def _decoded_by_library(asked: DatasetRequests, dataset: Dataset, size: int) -> Data:
    if not size:
        return Zeros(0)
    dtype = compounds.shown_dtype(dataset.kind) or None
    chunks = dataset.chunks or (1,) * len(dataset.shape)
    # The library has the output of a filter beside its input, and deflate doubles its buffer until it suffices.
    is_known = filters.are_known(dataset.filters)
    largest = LARGEST_BY_LIBRARY // 3 if dataset.filters and is_known else LARGEST_BY_LIBRARY
    if prod(chunks) * max(dataset.size, dataset.item) > largest:
        why = ": a larger cache_size allows more" if is_known else " that only the library decodes"
        return Unreadable(size, TooLarge(f"has chunks of more than {largest >> 20} MiB{why}", asked.source.name))
    return LibraryGrid(asked, dataset.shape, chunks, dataset.item, dtype)


def _is_decoded_here(asked: DatasetRequests, dataset: Dataset) -> bool:
    """Return whether elements are read here: where they are and their filters are known, and the cache has room for
    several of their chunks.
    """
    if dataset.layout in ("compact", "unlisted"):
        return False
    size = prod(dataset.chunks) * dataset.size
    return not dataset.filters or (filters.are_known(dataset.filters) and size <= asked.cache.budget // 8)


def _missing_filter(asked: DatasetRequests, dataset: Dataset) -> str:
    """Return why a dataset cannot be read, or "": neither glassfs nor the library has a filter."""
    for one in () if _is_decoded_here(asked, dataset) else dataset.filters:
        if not one.is_available:
            name = f" ({one.name})" if one.name else ""
            return f"needs filter {one.code}{name}: install hdf5plugin, or set HDF5_PLUGIN_PATH to its folder"
    return ""


def _frames(asked: DatasetRequests, dataset: Dataset) -> list[Member]:
    """Return the image, or frames and video, if a dataset of bytes in any form has images; the array of other numbers.
    """
    kind, shape = dataset.kind, dataset.shape
    if dataset.is_null:
        return []
    if kind.name == "number":
        array = _array(asked, dataset)
        return list(of_array(array)) or [Member((array.key,), array)]
    if not dataset.elements or len(shape) > 1:
        return []
    if kind.base is not None:
        is_bytes = kind.base.shown == "|u1" and not kind.base.dims and shape
        rows = Array(asked.path[-1], Zeros(0), "|u1", ())
        return list(of_rows(rows, dataset.elements, _runs(asked, dataset).row)) if is_bytes else []
    is_fixed = kind.name in ("text", "bytes") and dataset.size >= SHORTEST
    if not is_fixed or not filters.are_known(dataset.filters):
        return []
    data = _stored_data(asked, dataset, None, dataset.size)
    return list(of_array(Array(asked.path[-1], data, "|u1", (*shape, dataset.size))))


def _runs(asked: DatasetRequests, dataset: Dataset) -> elements.VariableRows:
    base = dataset.kind.base
    assert base is not None
    return elements.VariableRows(asked, dataset.elements, base.shown, int(base.shown[2:]) * prod(base.dims))


def _text(asked: DatasetRequests, dataset: Dataset) -> Content:
    """Return the strings of a dataset, or its values as JSON."""
    kind = dataset.kind
    name, shape, count = asked.path[-1], dataset.shape, dataset.elements
    if not shape and not kind.dims and kind.name == "text":
        def text() -> bytes:
            return str(elements.documents(asked, 0, 1)[0]).encode("utf-8", "replace")

        return Text(name, Rendered(asked.cache, asked.key("text"), text))
    if (len(shape) == 1 and not kind.dims) or count > MOST_TEXTS:
        return elements.lines(name, asked, count, kind)

    def nested() -> Any:  # lists in lists, that of no axis as itself
        return np.fromiter(elements.documents(asked, 0, count), object, count).reshape(shape).tolist()

    return Document(name, nested if count else list)


# Rows of bytes, and single values, that are JPEG or PNG images, maybe with zeros behind them (§9).

SHORTEST = 64
"""Bytes of a row that may be an image."""
LONGEST = images.MOST_BYTES
_SIGNATURES = ((b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"))
_BEGINNING = max(len(signature) for signature, _ in _SIGNATURES)


class _Trimmed(Data):
    """A row without the zeros at its end. The first use of its size reads it."""

    def __init__(self, row: Data) -> None:
        self._row = row

    @property
    def is_sized(self) -> bool:
        return "size" in self.__dict__

    @once
    def size(self) -> int:
        return len(self._row.whole().rstrip(b"\0"))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._row.read_into(buffer, offset)


def of_array(array: Array) -> Iterator[Member]:
    """Yield the image that an array of bytes is, or frames and video if its rows are images; nothing for others."""
    shape = array.known_shape
    if array.dtype != "|u1" or not shape or len(shape) > 2 or 0 in shape or not SHORTEST <= shape[-1] <= LONGEST:
        return
    if len(shape) == 1:
        found = _described(array.data)
        if found is not None:
            yield Member((array.key,), EncodedImage(array.key, _Trimmed(array.data), found[0]))
        return
    length = shape[1]
    yield from of_rows(array, shape[0], lambda number: Slice(array.data, number * length, length), _Trimmed)


def of_rows(
    array: Array, count: int, row: Callable[[int], Data], image: Callable[[Data], Data] = lambda data: data,
) -> Iterator[Member]:
    """Yield frames and video if the rows of an array are images, nothing for others; ``image`` makes one of a row.

    Empty rows and rows of zeros are frames that the camera missed; the first other row decides, which is read if it
    begins like an image.
    """
    is_missing = partial(_is_missing, row)
    # The first frames may be missing. One row among the first ones has to be an image for the array to be a video.
    first = next((number for number in range(min(count, 16)) if not is_missing(number)), 0)
    try:
        found = _described(row(first))
    except LASTING:
        return
    if found is None:
        return
    media, width, height = found

    def frame(number: int) -> EncodedImage:
        return EncodedImage(array.key, image(row(number)), media)

    yield Member((array.key,), Series(array.key, range(count), frame, 6))
    yield Member((array.key,), Video(array.key, count, array.fps, width, height, frame, is_missing=is_missing))


def _described(data: Data) -> tuple[str, int, int] | None:
    """Return media, width and height of an image, None if the bytes are none or cannot be read."""
    try:
        beginning = data.read(0, _BEGINNING) if SHORTEST <= data.size <= LONGEST else b""
        for signature, media in _SIGNATURES:
            if beginning.startswith(signature):
                return (media, *images.opened(bytes(data.whole()).rstrip(b"\0"), media).size)
        return None
    except Passing:
        raise
    except GlassfsError:
        return None


def _is_missing(row: Callable[[int], Data], number: int) -> bool:
    """Return whether a row begins with zeros, as no image does. One that cannot be read is not missing."""
    try:
        data = row(number)
        return not any(data.read(0, min(_BEGINNING, data.size)))
    except Damaged:
        return False


# Variables of MATLAB, whose attributes say what they are (§13).


def is_cells(dataset: Dataset) -> bool:
    """Return whether a dataset is an array of cells that is shown as links to what is in them."""
    is_few = dataset.elements <= MOST_TEXTS and not dataset.kind.dims
    return dataset.matlab == "cell" and dataset.kind.text == "reference" and is_few


def cell_name(number: int, shape: tuple[int, ...]) -> bytes:
    """Return the name of a cell: its place, of which that in a vector is one number."""
    place = place_of(number, shape)
    longer = [index for index, length in zip(place, shape, strict=True) if length > 1]
    return b"_".join(b"%d" % index for index in (place if len(longer) > 1 else longer or place[:1])) or b"0"


def _of_matlab(asked: DatasetRequests, dataset: Dataset) -> Content | None:
    """Return a text, or the empty value for which a dataset stands; None for others."""
    name = asked.path[-1]
    if not dataset.empty:
        size = dataset.elements * dataset.item
        is_text = dataset.matlab == "char" and dataset.kind.shown in _CHARACTERS and len(dataset.shape) == 2
        if not is_text or size > 8 * PIECE:
            return None
        return Text(name, Rendered(asked.cache, asked.key("text"), lambda: _lines(asked, dataset), cost=8 * size))
    if dataset.matlab == "char":
        return Text(name, Zeros(0))
    dtype = _TYPES.get(dataset.matlab)
    # MATLAB has the axes in the other order than the file.
    return Array(name, Zeros(0), dtype, dataset.empty[::-1]) if dtype else Document(name, list)


def _lines(asked: DatasetRequests, dataset: Dataset) -> bytes:
    """Return the text of an array of characters: its rows, which are the columns of the array as it is stored."""
    characters = np.frombuffer(array_data(asked, dataset).whole(), dataset.kind.shown).reshape(dataset.shape)
    code = _CHARACTERS[dataset.kind.shown]
    lines = [row.tobytes().decode(code, "backslashreplace") for row in characters.T]
    return (lines[0] if len(lines) == 1 else "".join(f"{line}\n" for line in lines)).encode()

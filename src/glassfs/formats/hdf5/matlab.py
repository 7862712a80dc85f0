"""Variables of MATLAB, which are datasets with attributes that say what they are (§13). Any thread."""

from __future__ import annotations

from collections.abc import Callable

from glassfs.content import Array, Content, Data, Document, Rendered, Text, Zeros
from glassfs.formats.hdf5.chunks import place_of
from glassfs.formats.hdf5.description import Dataset
from glassfs.formats.hdf5.elements import MOST_TEXTS, DatasetRequests
from glassfs.lazy import np
from glassfs.sizes import PIECE

_CHARACTERS = {"|u1": "utf-8", "<u2": "utf-16-le", "<u4": "utf-32-le"}
"""Encodings of characters of MATLAB, and of the package hdf5storage."""
_TYPES = {
    "double": "<f8", "single": "<f4", "logical": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2",
    "int32": "<i4", "uint32": "<u4", "int64": "<i8", "uint64": "<u8",
}
"""Types of arrays by their classes, for empty ones."""


def is_cells(dataset: Dataset) -> bool:
    """Return whether a dataset is an array of cells that is shown as links to what is in them."""
    is_few = dataset.elements <= MOST_TEXTS and not dataset.kind.dims
    return dataset.matlab == "cell" and dataset.kind.text == "reference" and is_few


def cell_name(number: int, shape: tuple[int, ...]) -> bytes:
    """Return the name of a cell: its place, of which that in a vector is one number."""
    place = place_of(number, shape)
    longer = [index for index, length in zip(place, shape, strict=True) if length > 1]
    return b"_".join(b"%d" % index for index in (place if len(longer) > 1 else longer or place[:1])) or b"0"


def content(asked: DatasetRequests, dataset: Dataset, data: Callable[[], Data]) -> Content | None:
    """Return a text, or the empty value for which a dataset stands; None for others. ``data`` returns its elements."""
    name = asked.path[-1]
    if not dataset.empty:
        if not _is_text(dataset):
            return None
        cost = 8 * dataset.elements * dataset.item
        return Text(name, Rendered(asked.cache, asked.key("text"), lambda: _text(dataset, data()), cost=cost))
    if dataset.matlab == "char":
        return Text(name, Zeros(0))
    dtype = _TYPES.get(dataset.matlab)
    # MATLAB has the axes in the other order than the file.
    return Array(name, Zeros(0), dtype, dataset.empty[::-1]) if dtype else Document(name, list)


def _is_text(dataset: Dataset) -> bool:
    is_text = dataset.matlab == "char" and dataset.kind.shown in _CHARACTERS and len(dataset.shape) == 2
    return is_text and dataset.elements * dataset.item <= 8 * PIECE


def _text(dataset: Dataset, data: Data) -> bytes:
    """Return the text of an array of characters: its rows, which are the columns of the array as it is stored."""
    characters = np.frombuffer(data.whole(), dataset.kind.shown).reshape(dataset.shape)
    code = _CHARACTERS[dataset.kind.shown]
    lines = [row.tobytes().decode(code, "backslashreplace") for row in characters.T]
    return (lines[0] if len(lines) == 1 else "".join(f"{line}\n" for line in lines)).encode()

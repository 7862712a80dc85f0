"""Arrays as Zarr: ``zarr.json``, and chunks whose bytes are the array's own. The arrays of a directory form a group.

Zarr v3 core specification: "Array metadata", "Default chunk keys", "Bytes codec". A chunk is one frame of a video,
otherwise rows of about 1 MiB, or more if there would be very many chunks. The last chunk is as large as the others,
padded with zeros. The dimension of a recording's steps is called ``time``, others are named by their lengths. A group
has the metadata of its arrays consolidated, as zarr writes them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import (
    TIME,
    Array,
    Beside,
    Concatenated,
    Data,
    Group,
    Member,
    Memory,
    Part,
    Rendered,
    Series,
    Slice,
    Zeros,
    video,
)
from glassfs.content.allowance import OBJECT
from glassfs.content.model import Name
from glassfs.errors import TooLarge
from glassfs.names import component
from glassfs.sizes import PIECE
from glassfs.view.contract import Key, Shown, View

LARGEST_CHUNK = 1 << 30
MOST_CHUNKS = 1 << 14
"""Limit of chunks of an array: each is a directory to walk, and untrusted lengths may be false. Of a video 8 times."""
MOST_CONSOLIDATED = 4096
"""Limit of arrays in a group with consolidated metadata, which readers take into memory as a whole."""
GROUP = b"arrays.zarr"
METADATA = b"zarr.json"
_NUMBERS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_LARGEST = {"f": 8, "c": 16}
_TIMES = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}
_DTYPE = re.compile(r"[<|]([a-zA-Z])(\d+)(?:\[(\d*)([a-zA-Z]+)\])?")
_NamedArrays = Sequence[tuple[Name, Array]]


class _ZarrArray(NamedTuple):
    """An array in terms of Zarr: its data type, the bytes of an item, its shape and that of a chunk.

    ``axis`` names the first dimension; if it is empty, its length does.
    """

    data_type: Any
    item: int
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    axis: str = ""

    @property
    def size(self) -> int:
        """Bytes of a chunk."""
        return self.item * math.prod(self.chunk)


def show(content: Array | Beside, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the array or the group. Raises TooLarge for an array whose rows are too large to be chunks."""
    if isinstance(content, Array):
        layout = _layout(content)
        if layout is not None:
            if layout.size > LARGEST_CHUNK:
                raise TooLarge(f"{content.data.size} bytes or their rows are too large for chunks of Zarr")
            yield Shown(_directory(content, layout), ".zarr")
        return
    arrays = [(name, one) for name, one in content.members if isinstance(one, Array)]

    def directories() -> Iterator[Member]:
        return (Member(name, _directory(array, layout)) for name, array, layout in _laid_out(arrays))

    if next(directories(), None) is not None:
        cost = 64 * OBJECT * min(len(arrays), MOST_CONSOLIDATED)
        metadata = Part(METADATA, Rendered(cache, (*key, METADATA), partial(_group_metadata, arrays), cost=cost))
        yield Shown(Group(b"", lambda: chain([Member((METADATA,), metadata)], directories())), name=GROUP)


def _group_metadata(arrays: _NamedArrays) -> bytes:
    """Return the group's metadata, with those of all arrays unless they are too many.

    Zarr takes a backslash for a slash, so arrays with one in their names are left out.
    """
    described: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    layouts = list(islice(_laid_out(arrays), MOST_CONSOLIDATED + 1))
    if len(layouts) <= MOST_CONSOLIDATED:
        found: dict[str, Any] = {}
        for name, _, layout in layouts:
            if b"\\" not in name[-1]:
                found.setdefault(component(name[-1]), _described(layout))
        described["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": found}
    return _encoded(described)


def _laid_out(arrays: _NamedArrays) -> Iterator[tuple[Name, Array, _ZarrArray]]:
    """Yield the arrays that Zarr can have; none with the name of the group's metadata.

    Layouts are made when they are needed: there may be very many.
    """
    # Readers such as xarray demand that a dimension has one length in all arrays of a group.
    steps = _steps(arrays)
    for name, array in arrays:
        layout = _layout(array) if name[-1] != METADATA else None
        if layout is not None and layout.size <= LARGEST_CHUNK:
            is_named = steps is not None and layout.shape[:1] == (steps,)
            yield name, array, layout if is_named else layout._replace(axis="")


def _steps(arrays: _NamedArrays) -> int | None:
    """Return the length of the dimension ``time``, which must be one for all arrays of a group.

    None if there is none, or if xarray would take an array of that name for its coordinates and fail.
    """
    shapes = [(name[-1], array.axis, array.known_shape) for name, array in arrays if array.known_shape is not None]
    if any(name == TIME.encode() and len(shape) != 1 for name, _, shape in shapes):
        return None
    return next((shape[0] for _, axis, shape in shapes if axis == TIME), None)


def _layout(array: Array) -> _ZarrArray | None:
    """Return the layout, or None if Zarr has no such type or finding the shape would take a pass."""
    found, shape = _DTYPE.fullmatch(array.dtype), array.known_shape
    if found is None or shape is None:
        return None
    data_type, item = _type(*found.groups()), int(found.group(2))
    if data_type is None:
        return None
    if not shape:
        return _ZarrArray(data_type, item, (), ())
    row = item * math.prod(shape[1:])
    is_video = video.frames(array) is not None
    rows, most = (1, 8 * MOST_CHUNKS) if is_video else (max(1, PIECE // max(row, 1)), MOST_CHUNKS)
    # A length that a container declares is no reason to list millions of chunks: then chunks are larger.
    rows = max(rows, -(-shape[0] // most))
    chunk = min(rows, max(1, shape[0])), *(max(1, length) for length in shape[1:])
    return _ZarrArray(data_type, item, shape, chunk, array.axis)


def _type(kind: str, size: str, scale: str | None, unit: str | None) -> Any:
    """Return Zarr's name for a NumPy type, or None if it has none."""
    if kind in _TIMES:
        return {"name": _TIMES[kind], "configuration": {"unit": unit or "generic", "scale_factor": int(scale or 1)}}
    if kind not in _NUMBERS or unit or int(size) > _LARGEST.get(kind, 8):
        return None
    return "bool" if kind == "b" else f"{_NUMBERS[kind]}{8 * int(size)}"


def _directory(array: Array, layout: _ZarrArray) -> Group:
    def members() -> Iterator[Member]:
        yield Member((METADATA,), Part(METADATA, Memory(_encoded(_described(layout)))))
        if not layout.shape:
            yield Member((b"c",), Part(b"c", array.data))
        elif 0 not in layout.shape:
            yield Member((b"c",), _chunks(array.data, layout.size, len(layout.shape) - 1))

    return Group(array.key, members)


def _described(layout: _ZarrArray) -> dict[str, Any]:
    seen: Counter[int] = Counter()
    names = [layout.axis] if layout.axis else []
    for length in layout.shape[len(names):]:
        seen[length] += 1
        names.append(f"n{length}" + (f"_{seen[length]}" if seen[length] > 1 else ""))
    kind = str(layout.data_type)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": layout.shape,
        "data_type": layout.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": layout.chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if kind == "bool" else [0.0, 0.0] if kind.startswith("complex") else 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "dimension_names": names,
    }


def _encoded(described: dict[str, Any]) -> bytes:
    return json.dumps(described, indent=2).encode() + b"\n"


def _chunks(data: Data, size: int, inner: int) -> Series:
    """Return chunks of ``size`` bytes by their numbers along the first axis; each of ``inner`` others has one."""
    count = -(-data.size // size)

    def chunk(number: int) -> Part:
        start = number * size
        # Zarr has no shorter last chunk: all have one shape, and readers ignore what is beyond the array.
        rest = min(size, data.size - start)
        part: Data = Slice(data, start, rest)
        return Part(b"", part if rest == size else Concatenated([part, Zeros(size - rest)]))

    if not inner:
        return Series(b"c", range(count), chunk, is_uniform=True)
    return Series(
        b"c", range(count), lambda number: Group(b"", lambda: [Member((b"0",) * inner, chunk(number))]),
        has_groups=True,
    )


VIEW = View("zarr", "arrays, for zarr, xarray, dask and napari", (Array, Beside), show)

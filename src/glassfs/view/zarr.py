"""Arrays as Zarr: ``zarr.json``, and chunks whose bytes are the array's own. The arrays of a directory form a group.

Zarr v3 core specification: "Array metadata", "Default chunk keys", "Bytes codec". A chunk is one frame of a video,
otherwise rows of about 1 MiB, or more if there would be very many chunks. The last chunk is as large as the others,
padded with zeros. Dimensions have the same name if they have the same length.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Array, Beside, Concatenated, Data, Group, Member, Memory, Part, Series, Slice, Zeros
from glassfs.errors import TooLarge
from glassfs.view import video
from glassfs.view.contract import Key, Shown, View

CHUNK = 1 << 20
LARGEST_CHUNK = 1 << 30
MOST_CHUNKS, MOST_FRAMES = 1 << 14, 1 << 17
"""Limits of chunks of an array, and of a video: each is a directory to walk, and untrusted lengths may be false."""
GROUP = b"arrays.zarr"
METADATA = b"zarr.json"
_NUMBERS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_TIMES = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}
_DTYPE = re.compile(r"[<|]([a-zA-Z])(\d+)(?:\[(\d*)([a-zA-Z]+)\])?")


class _Layout(NamedTuple):
    """An array in terms of Zarr: its data type, the bytes of an item, its shape and that of a chunk."""

    data_type: Any
    item: int
    shape: tuple[int, ...]
    chunk: tuple[int, ...]

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
    arrays = [member for member in content.members if isinstance(member.content, Array)]
    if next(_directories(arrays), None) is not None:
        metadata = _file(METADATA, {"zarr_format": 3, "node_type": "group", "attributes": {}})
        yield Shown(Group(b"", lambda: chain([metadata], _directories(arrays))), name=GROUP)


def _directories(arrays: Iterable[Member]) -> Iterator[Member]:
    """Yield the arrays of a group when it is listed: there may be very many. None has the name of its metadata."""
    for name, array in arrays:
        layout = _layout(array) if isinstance(array, Array) and name[-1] != METADATA else None
        if isinstance(array, Array) and layout is not None and layout.size <= LARGEST_CHUNK:
            yield Member(name, _directory(array, layout))


def _layout(array: Array) -> _Layout | None:
    """Return the layout, or None if Zarr has no such type or finding the shape would take a pass."""
    found, shape = _DTYPE.fullmatch(array.dtype), array.shape
    if found is None or not isinstance(shape, tuple):
        return None
    data_type, item = _type(*found.groups()), int(found.group(2))
    if data_type is None:
        return None
    if not shape:
        return _Layout(data_type, item, (), ())
    row = item * math.prod(shape[1:])
    rows, most = (1, MOST_FRAMES) if video.frames(array) is not None else (max(1, CHUNK // max(row, 1)), MOST_CHUNKS)
    rows = max(rows, -(-shape[0] // most))
    return _Layout(data_type, item, shape, (min(rows, max(1, shape[0])), *(max(1, length) for length in shape[1:])))


def _type(kind: str, size: str, scale: str | None, unit: str | None) -> Any:
    """Return Zarr's name for a NumPy type, or None if it has none."""
    if kind in _TIMES:
        return {"name": _TIMES[kind], "configuration": {"unit": unit or "generic", "scale_factor": int(scale or 1)}}
    if kind not in _NUMBERS or unit:
        return None
    return "bool" if kind == "b" else f"{_NUMBERS[kind]}{8 * int(size)}"


def _directory(array: Array, layout: _Layout) -> Group:
    """Return the directory of one array."""

    def members() -> Iterator[Member]:
        yield _file(METADATA, _described(layout))
        if not layout.shape:
            yield Member((b"c",), Part(b"c", array.data))
        elif 0 not in layout.shape:
            yield Member((b"c",), _chunks(array.data, layout.size, len(layout.shape) - 1))

    return Group(array.key, members)


def _described(layout: _Layout) -> dict[str, Any]:
    seen: Counter[int] = Counter()
    names = []
    for length in layout.shape:
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


def _file(name: bytes, described: Any) -> Member:
    return Member((name,), Part(name, Memory(json.dumps(described, indent=2).encode() + b"\n")))


def _chunks(data: Data, size: int, inner: int) -> Series:
    """Return chunks of ``size`` bytes by their numbers along the first axis; each of ``inner`` others has one."""
    count = -(-data.size // size)

    def chunk(number: int) -> Part:
        start = number * size
        rest = min(size, data.size - start)
        part: Data = Slice(data, start, rest)
        return Part(b"", part if rest == size else Concatenated([part, Zeros(size - rest)]))

    if not inner:
        return Series(b"c", count, chunk, is_uniform=True)
    return Series(
        b"c", count, lambda number: Group(b"", lambda: [Member((b"0",) * inner, chunk(number))]), has_groups=True,
    )


VIEW = View("zarr", "arrays, for zarr, xarray, dask and napari", (Array, Beside), show)

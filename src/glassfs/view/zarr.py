"""Arrays as Zarr: ``zarr.json``, and chunks whose bytes are the array's own. All arrays of a directory are a group.

Zarr v3 core specification: "Array metadata", "Default chunk keys", "Bytes codec". A chunk is one frame of a film, else
rows of about 1 MiB; the last one is as large as the others, and filled up with zeros. Dimensions have the same name
where they have the same length.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Array, Beside, Concatenated, Data, Group, Member, Memory, Part, Series, Slice
from glassfs.view import film
from glassfs.view.contract import Key, Shown, View

CHUNK = 1 << 20
LARGEST_CHUNK = 1 << 31
GROUP = "arrays.zarr"
METADATA = b"zarr.json"
_NUMBERS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_TIMES = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}
_DTYPE = re.compile(r"[<|]([a-zA-Z])(\d+)(?:\[(\d*)([a-zA-Z]+)\])?")


def show(content: Array | Beside, cache: BlockCache, key: Key) -> Iterator[Shown]:
    if isinstance(content, Array):
        if _type(content.dtype) is not None and isinstance(content.shape, tuple):
            yield Shown(_directory(content, content.shape), ".zarr")
        return
    found = [
        Member(member.name, _directory(member.content, member.content.shape)) for member in content.members
        if isinstance(member.content, Array) and isinstance(member.content.shape, tuple)
        and _type(member.content.dtype) is not None
    ]
    if found:
        yield Shown(Group(b"", lambda: [_file(METADATA, _group()), *found]), name=GROUP.encode())


def _file(name: bytes, described: Any) -> Member:
    return Member((name,), Part(name, Memory(json.dumps(described, indent=2).encode() + b"\n")))


def _group() -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": {}}


def _type(dtype: str) -> Any:
    """The data type as Zarr calls it, or None where it has none."""
    found = _DTYPE.fullmatch(dtype)
    if found is None:
        return None
    kind, size, scale, unit = found.groups()
    if kind in _TIMES:
        return {"name": _TIMES[kind], "configuration": {"unit": unit or "generic", "scale_factor": int(scale or 1)}}
    if kind not in _NUMBERS or unit:
        return None
    return "bool" if kind == "b" else f"{_NUMBERS[kind]}{8 * int(size)}"


def _directory(array: Array, shape: tuple[int, ...]) -> Group:
    """One array."""
    size = int(_DTYPE.fullmatch(array.dtype).group(2))  # type: ignore[union-attr]
    row = size * math.prod(shape[1:])
    rows = 1 if film.frames(array) is not None else max(1, CHUNK // max(row, 1))
    chunk = (min(rows, max(1, shape[0])), *(max(1, length) for length in shape[1:])) if shape else ()

    def members() -> Iterator[Member]:
        yield _file(METADATA, _described(array.dtype, shape, chunk))
        if not shape:
            yield Member((b"c",), Part(b"c", array.data))
        elif 0 not in shape and size * math.prod(chunk) <= LARGEST_CHUNK:
            yield Member((b"c",), _chunks(array.data, size * math.prod(chunk), len(shape) - 1))

    return Group(array.key, members)


def _described(dtype: str, shape: Sequence[int], chunk: Sequence[int]) -> dict[str, Any]:
    kind = _type(dtype)
    seen: Counter[int] = Counter()
    names = []
    for length in shape:
        seen[length] += 1
        names.append(f"n{length}" + (f"_{seen[length]}" if seen[length] > 1 else ""))
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if kind == "bool" else [0.0, 0.0] if str(kind).startswith("complex") else 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "dimension_names": names,
    }


def _chunks(data: Data, size: int, inner: int) -> Series:
    """Chunks of ``size`` bytes by their numbers along the first axis; there is one along each of ``inner`` others."""
    count = -(-data.size // size)

    def chunk(number: int) -> Part:
        start = number * size
        rest = min(size, data.size - start)
        part: Data = Slice(data, start, rest)
        return Part(b"", part if rest == size else Concatenated([part, Memory(bytes(size - rest))]))

    if not inner:
        return Series(b"c", count, chunk, is_uniform=True)
    return Series(
        b"c", count, lambda number: Group(b"", lambda: [Member((b"0",) * inner, chunk(number))]), has_groups=True,
    )


VIEW = View("zarr", "arrays, for zarr, xarray, dask and napari", (Array, Beside), show)

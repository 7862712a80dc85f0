"""How two contents differ: arrays by items, documents by keys, all others by bytes. Any thread.

A difference is a dict of values of JSON; its key ``difference`` is its kind (docs/manual/commands.md, "diff"). Both
sides are read in pieces, so data of any size take two buffers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from typing import Any, TypeAlias

from glassfs.content import dtypes
from glassfs.content.data import Data
from glassfs.content.model import Array, Image, Undecoded
from glassfs.errors import TooLarge
from glassfs.lazy import NDArray, np

Difference: TypeAlias = dict[str, Any]
COMPARED = 256 << 10
"""Bytes that are compared at a time: those of both sides stay in the cache of a core."""
LARGEST_ITEM = 16 << 20
"""Bytes of an item of an array that is compared."""


def of_bytes(x: Data, y: Data) -> Iterator[Difference]:
    """Yield at most one difference."""
    shorter = min(x.size, y.size)
    first = next((
        start + next(number for number, (p, q) in enumerate(zip(a, b, strict=True)) if p != q)
        for start, a, b in _unequal(x, y, shorter)
    ), shorter)
    if first < max(x.size, y.size):
        yield {"difference": "bytes", "bytes_a": x.size, "bytes_b": y.size, "first": first}


def of_documents(x: bytes, y: bytes) -> Iterator[Difference]:
    """Yield a difference for each key whose values differ. Raises ValueError and RecursionError for invalid JSON."""
    sides = {side: dict(_leaves(json.loads(raw))) for side, raw in (("a", x), ("b", y))}
    for key in {**sides["a"], **sides["b"]}:
        values = {side: leaves[key] for side, leaves in sides.items() if key in leaves}
        # As texts, true is not 1, and NaN equals NaN.
        if len(values) < 2 or repr(values["a"]) != repr(values["b"]):
            yield {"difference": "key", "key": key, **values}


def _leaves(value: Any, key: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield all values in a value of JSON that have none in them, with the keys that lead to them."""
    if not isinstance(value, (dict, list)) or not value:
        yield key, value
        return
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, (*key, name))


def of_types(a: Undecoded, b: Undecoded) -> Iterator[Difference]:
    """Yield at most one difference, of types and shapes."""
    described = [{"dtype": one.type_name, "shape": list(one.shape)} for one in (a, b)]
    if described[0] != described[1]:
        yield {"difference": "array", "a": described[0], "b": described[1]}


def pixels(image: Image) -> Array:
    """Return the pixels of an image as an array."""
    return Array(image.key, image.data, "|u1" if image.bits == 8 else "<u2", image.shape)


def of_arrays(a: Array, b: Array, is_one_format: bool) -> Iterator[Difference]:
    """Yield at most one difference. NaN equals NaN. Only arrays of one type and shape are compared by items.

    Those of ``is_one_format`` also differ if types have other names in the container, as bfloat16 and float32 have.
    """
    # A name that is NumPy's gives the order of bytes, which belongs to how an array is stored.
    described = [
        {"dtype": one.type_name if is_one_format and one.type_name[:1] not in "<>|[" else one.dtype,
         "shape": list(one.resolved_shape)}
        for one in (a, b)
    ]
    is_comparable = described[0] == described[1] and a.dtype == b.dtype
    found = _of_items(a, b) if is_comparable else {}
    if not is_comparable or found.get("differing"):
        yield {"difference": "array", "a": described[0], "b": described[1], **found}


def _unequal(x: Data, y: Data, count: int, width: int = 1) -> Iterator[tuple[int, bytearray, bytearray]]:
    """Yield the first ``count`` items of ``width`` bytes in pieces, without those of equal bytes.

    A piece is the number of its first item, and the bytes of both sides.
    """
    step = max(1, COMPARED // (width or 1))
    for position in range(0, count, step):
        size = min(step, count - position) * width
        a, b = bytearray(size), bytearray(size)
        x.read_into(memoryview(a), position * width)
        y.read_into(memoryview(b), position * width)
        if a != b:
            yield position, a, b


def _of_items(a: Array, b: Array) -> Difference:
    """Return how many items of arrays of one type and shape differ, and by how much."""
    shape = a.resolved_shape
    found: Difference = {"items": prod(shape), "differing": 0}
    width = a.data.size // (prod(shape) or 1)
    if width > LARGEST_ITEM:
        raise TooLarge(f"its items have more than {LARGEST_ITEM >> 20} MiB")
    for start, *raw in _unequal(a.data, b.data, prod(shape) if width else 0, width):
        x, y = (np.frombuffer(one, dtypes.parsed(a.dtype)) for one in raw)
        with np.errstate(all="ignore"):
            places = np.flatnonzero(_differing(x, y))
            if not len(places):
                continue
            x, y = x[places], y[places]
            if not found["differing"]:
                index = [int(one) for one in np.unravel_index(start + places[0], shape)] if shape else []
                found |= {"first": index, "first_a": _value(x[0]), "first_b": _value(y[0])}
            found["differing"] += len(places)
            if x.dtype.kind in "iufc":
                _measure(found, x, y)
    return found


def _measure(found: Difference, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Add by how much numbers differ that do."""
    for side, values in (("nan_a", x), ("nan_b", y)):
        missing = np.count_nonzero(values != values)
        if missing:
            found[side] = found.get(side, 0) + missing
    # Differences of integers are exact modulo 2 ** 64, of negative ones as well.
    wide = "u8" if x.dtype.kind in "iu" else np.promote_types(x.dtype, "f8")
    gaps = np.abs(np.maximum(x, y).astype(wide) - np.minimum(x, y).astype(wide))
    gaps = gaps[gaps == gaps]
    if len(gaps):
        found["max_abs"] = max(found.get("max_abs", 0), gaps.max().item())


def _differing(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which items of two arrays of one type and shape differ."""
    differing: NDArray[np.bool_] = np.zeros(x.shape, bool)
    if x.dtype.names is not None:
        for name in x.dtype.names:
            inner = _differing(x[name], y[name])
            differing |= inner.any(axis=tuple(range(x.ndim, inner.ndim)))
    elif x.dtype.itemsize:
        differing = (x != y) & ((x == x) | (y == y))  # NaN and NaT differ from themselves
    return differing


def _value(value: Any) -> Any:
    """Return an item as a value of JSON; bytes are a text."""
    kind = value.dtype.kind
    if kind in "biu":
        return value.item()
    if kind == "f":
        return float(str(value))  # of float32, the fewest digits that identify it
    return value if kind in "SU" else str(value)

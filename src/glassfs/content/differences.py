"""How two contents differ: arrays by items, documents by keys, texts by lines, all others by bytes. Any thread.

A difference is a dict of values of JSON; its key ``difference`` is its kind (docs/manual/commands.md, "diff"). Both
sides are read in pieces, so data of any size take two buffers. Parts whose stored bytes are equal are not decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from glassfs.codec.compression import NONE
from glassfs.content import dtypes
from glassfs.content.data import Data, Extent
from glassfs.content.model import Array, Image, Undecoded
from glassfs.errors import TooLarge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Difference: TypeAlias = dict[str, Any]
COMPARED = 256 << 10
"""Bytes that are compared at a time: those of both sides stay in the cache of a core."""
LARGEST_ITEM = 16 << 20
"""Bytes of an item of an array that is compared."""
Tolerance: TypeAlias = tuple[float, float]
"""``rtol`` and ``atol`` as in ``numpy.allclose``: numbers a and b are equal if |a - b| <= atol + rtol * |b|."""


def of_bytes(x: Data, y: Data) -> Iterator[Difference]:
    """Yield at most one difference."""
    shorter = min(x.size, y.size)
    first = next((
        start + next(number for number, (p, q) in enumerate(zip(a, b, strict=True)) if p != q)
        for start, a, b in _unequal(x, y, shorter)
    ), shorter)
    if first < max(x.size, y.size):
        yield {"difference": "bytes", "bytes_a": x.size, "bytes_b": y.size, "first": first}


def of_lines(x: Iterable[bytes], y: Iterable[bytes]) -> Iterator[Difference]:
    """Yield at most one difference, given all lines: those of the same number are compared."""
    found: Difference = {"difference": "lines", "lines_a": 0, "lines_b": 0, "differing": 0}
    for number, (a, b) in enumerate(zip_longest(x, y), 1):
        found["lines_a"] += a is not None
        found["lines_b"] += b is not None
        if a != b:
            if not found["differing"]:
                found |= {"first": number, "first_a": a, "first_b": b}
            found["differing"] += 1
    if found["differing"]:
        yield found


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
    shape = image.height, image.width, image.channels
    if image.is_planar:
        shape = image.channels, image.height, image.width
    return Array(image.key, image.data, "|u1" if image.bits == 8 else "<u2", shape)


def of_arrays(
    a: Array, b: Array, tolerance: Tolerance, is_one_format: bool = False, is_brief: bool = False,
) -> Iterator[Difference]:
    """Yield at most one difference. NaN equals NaN. Arrays of different lengths are compared where both have rows.

    If it ``is_brief``, what is after the first items that differ is not read, and not counted. Those of
    ``is_one_format`` also differ if types have other names in the container, as bfloat16 and float32 have.
    """
    shapes = a.resolved_shape, b.resolved_shape
    # A name that is NumPy's gives the order of bytes, which belongs to how an array is stored.
    types = [one.type_name if is_one_format and one.type_name[:1] not in "<>|[" else one.dtype for one in (a, b)]
    described = [{"dtype": name, "shape": list(shape)} for name, shape in zip(types, shapes, strict=True)]
    is_comparable = shapes[0] == shapes[1] or (all(shapes) and shapes[0][1:] == shapes[1][1:])
    common = a.dtype if a.dtype == b.dtype else _common_dtype(a.dtype, b.dtype)
    found: Difference = {}
    if is_comparable and common and not (described[0] == described[1] and _are_stored_alike(a, b)):
        found = _of_items(a, b, min(shapes), common, tolerance, is_brief)
    if described[0] != described[1] or found.get("differing"):
        yield {"difference": "array", "a": described[0], "b": described[1], **found}


def _are_stored_alike(a: Array, b: Array) -> bool:
    """Return whether arrays of one type and shape are equal because they are stored in the same way, in equal bytes."""
    p, q = ((one.file or one.data).location() for one in (a, b))
    if p is None or q is None or p.source is None or q.source is None:
        return False
    ways = [(one.type_name, one.stored[1:3], one.file is None, at.codec, at.checksum) for one, at in ((a, p), (b, q))]
    # What is read as it is stored would be compared twice.
    is_plain = a.as_stored is None and p.codec == NONE and not p.checksum and p.stored == a.data.size
    return ways[0] == ways[1] and not is_plain and are_equal(
        Extent(p.source, p.offset, p.stored), Extent(q.source, q.offset, q.stored)
    )


def are_equal(x: Data, y: Data) -> bool:
    """Return whether data have equal bytes."""
    return x.size == y.size and next(_unequal(x, y, x.size), None) is None


def _unequal(
    x: Data, y: Data, count: int, widths: Sequence[int] = (1, 1), is_one_type: bool = True,
) -> Iterator[tuple[int, bytearray, bytearray]]:
    """Yield the first ``count`` items in pieces, without those of equal bytes if all are of one type.

    A piece is the number of its first item, and the bytes of both sides. Items of the sides have ``widths`` bytes.
    """
    position, width = 0, max(widths)
    a = b = bytearray()
    while position < count:
        end = count
        p, q = (x.encoded(position * width), y.encoded(position * width)) if is_one_type else (None, None)
        if p is not None and q is not None and (p.end, p.how) == (q.end, q.how):
            end = min(count, p.end // width)  # the next item may have bytes of the next part
            if end > position and are_equal(p.data, q.data):
                position = end
                continue
            end = max(end, position + 1)
        while position < end:
            taken = min(end - position, max(1, COMPARED // width))
            if len(a) != taken * widths[0]:
                a, b = (bytearray(taken * one) for one in widths)
            x.read_into(memoryview(a), position * widths[0])
            y.read_into(memoryview(b), position * widths[1])
            if a != b or not is_one_type:
                yield position, a, b
            position += taken


def _common_dtype(a: str, b: str) -> str | None:
    """Return a type that has all values of two types exactly, or None."""
    import numpy as np

    x, y = dtypes.parsed(a), dtypes.parsed(b)
    return np.promote_types(x, y).str if x.kind == y.kind and x.kind in "iufcSU" else None


def _of_items(
    a: Array, b: Array, shape: tuple[int, ...], common: str, tolerance: Tolerance, is_brief: bool,
) -> Difference:
    """Return how many of the items in ``shape`` differ, and by how much, compared as the type ``common``."""
    found: Difference = {"items": prod(shape), "differing": 0}
    widths = [one.data.size // (prod(one.resolved_shape) or 1) for one in (a, b)]
    if max(widths) > LARGEST_ITEM:
        raise TooLarge(f"its items have more than {LARGEST_ITEM >> 20} MiB")
    count = prod(shape) if all(widths) else 0
    for start, *raw in _unequal(a.data, b.data, count, widths, a.dtype == b.dtype):
        import numpy as np

        x, y = (
            np.frombuffer(one, dtypes.parsed(array.dtype)).astype(common, copy=False)
            for one, array in zip(raw, (a, b), strict=True)
        )
        with np.errstate(all="ignore"):
            places = np.flatnonzero(_differing(x, y, tolerance))
            if not len(places):
                continue
            if not found["differing"]:
                place = int(places[0])
                index = [int(one) for one in np.unravel_index(start + place, shape)] if shape else []
                found |= {"first": index, "first_a": _value(x[place]), "first_b": _value(y[place])}
            found["differing"] += len(places)
            if x.dtype.kind in "iufc":
                _measure(found, *((x, y) if len(places) == len(x) else (x[places], y[places])))
            if is_brief:
                break
    return found


def _measure(found: Difference, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Add by how much numbers differ that do."""

    p, q = x == x, y == y
    if not (p.all() and q.all()):
        for side, missing in (("nan_a", q & ~p), ("nan_b", p & ~q)):
            if missing.any():
                found[side] = found.get(side, 0) + int(missing.sum())
        x, y = x[p & q], y[p & q]
    gaps, sizes = _gaps(x, y)
    ratios = gaps / sizes
    for name, values in (("max_abs", gaps), ("max_rel", ratios if sizes.all() else ratios[sizes > 0])):
        values = values[values == values]  # infinity is no number of times another one
        if len(values):
            found[name] = max(found.get(name, 0), values.max().item())


def _differing(x: NDArray[Any], y: NDArray[Any], tolerance: Tolerance) -> NDArray[np.bool_]:
    """Return which items of two arrays of one type and shape differ."""
    import numpy as np

    differing: NDArray[np.bool_] = np.zeros(x.shape, bool)
    if x.dtype.names is not None:
        for name in x.dtype.names:
            inner = _differing(x[name], y[name], tolerance)
            differing |= inner.any(axis=tuple(range(x.ndim, inner.ndim)))
    elif x.dtype.itemsize:
        differing = x != y
        if x.dtype.kind in "fcmM":
            differing &= (x == x) | (y == y)  # NaN and NaT differ from themselves
        if any(tolerance) and x.dtype.kind in "iufc":
            gaps, sizes = _gaps(x[differing], y[differing])
            differing[differing] = ~((gaps <= tolerance[1] + tolerance[0] * sizes) & np.isfinite(sizes))
    return differing


def _gaps(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return |x - y|, of integers exactly as uint64, and |y|, both with at least 64 bits."""
    import numpy as np

    wide = np.promote_types(x.dtype, "f8")
    if x.dtype.kind in "iu":  # modulo 2 ** 64, which is right for negative numbers as well
        gaps = np.maximum(x, y).astype("u8") - np.minimum(x, y).astype("u8")
    else:
        gaps = np.abs(x.astype(wide) - y.astype(wide))
    return gaps, np.abs(y.astype(wide))


def _value(value: Any) -> Any:
    """Return an item as a value of JSON; bytes are a text."""
    kind = value.dtype.kind
    if kind in "biu":
        return value.item()
    if kind == "f":
        return float(str(value))  # of float32, the fewest digits that identify it
    return value if kind in "SU" else str(value)

"""Types of array items, as NumPy's descriptions: ``<f4``, ``|b1``, ``<M8[100ns]``. Any thread.

A structured type is the text of NumPy's list: ``[('x', '<f4'), ('y', '<f4')]``. Views of numbers and times do not match
such a text, and so leave arrays of structures out.

Floats of 8 and 16 bits that NumPy lacks are widened to float32, which holds each of their values exactly. They are
called by the names that ``ml_dtypes`` gives them.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from glassfs.content.data import Data
from glassfs.content.parts import Converted
from glassfs.errors import Damaged
from glassfs.lru import cached_if_short

if TYPE_CHECKING:
    import numpy as np

STRUCTURED = "["
"""The first character of a structured type's description."""
NOT_A_TYPE = (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError)
"""What NumPy and the parser of Python raise for descriptions that they do not accept."""


@cached_if_short(64)
def parsed(description: str) -> np.dtype[Any]:
    """Return the dtype that a description stands for. Raises Damaged if there is none."""
    import numpy as np

    try:
        literal: Any = ast.literal_eval(description) if description.startswith(STRUCTURED) else description
        return np.lib.format.descr_to_dtype(literal)
    except NOT_A_TYPE as error:
        raise Damaged(f"its items have a type that NumPy does not know: {description:.80}") from error


def description_of(dtype: np.dtype[Any]) -> str:
    """Return the description of a dtype. Raises ValueError for one whose fields overlap."""
    return dtype.str if dtype.names is None else repr(dtype.descr)


@cached_if_short(256)
def little_endian(description: str) -> str:
    """Return the description of the same type with all its numbers little-endian. Raises Damaged."""
    if ">" not in description:
        return description
    return description_of(parsed(description).newbyteorder("<"))


WIDE = "<f4"
BFLOAT16 = "bfloat16"


class _Float8(NamedTuple):
    """A float of a sign bit, unless there is no mantissa, and of exponent and mantissa bits.

    ``infinity`` is the byte of the positive infinity, after which only NaNs follow, or None. ``nans`` are the other
    bytes that are NaN.
    """

    mantissa_bits: int
    bias: int
    infinity: int | None = None
    nans: tuple[int, ...] = ()


_FLOAT8 = {
    "float8_e4m3fn": _Float8(3, 7, nans=(0x7F, 0xFF)),
    "float8_e4m3fnuz": _Float8(3, 8, nans=(0x80,)),
    "float8_e5m2": _Float8(2, 15, infinity=0x7C),
    "float8_e5m2fnuz": _Float8(2, 16, nans=(0x80,)),
    "float8_e8m0fnu": _Float8(0, 127, nans=(0xFF,)),
}
NARROW: Mapping[str, int] = {BFLOAT16: 2, **dict.fromkeys(_FLOAT8, 1)}
"""The kinds, and the bytes of a stored item."""


def widened(data: Data, kind: str) -> Data:
    """Return little-endian items of a kind as float32, ``WIDE``. A last, incomplete item is left out."""
    stored = NARROW[kind]
    count = data.size // stored
    convert = _from_bfloat16 if kind == BFLOAT16 else partial(_from_float8, kind)
    return Converted(data, stored, 4, 4 * count, convert)


def _from_bfloat16(raw: bytes) -> memoryview:
    """Convert bfloat16 to float32: the stored halves are the upper ones."""
    import numpy as np

    halves = np.zeros((len(raw) // 2, 2), "<u2")
    halves[:, 1] = np.frombuffer(raw, "<u2", len(raw) // 2)
    return halves.reshape(-1).view(np.uint8).data


def _from_float8(kind: str, raw: bytes) -> memoryview:
    """Convert bytes by a table of their values."""
    import numpy as np

    table = np.frombuffer(_table(kind), "<u4")
    return table[np.frombuffer(raw, np.uint8)].view(np.uint8).data


@lru_cache
def _table(kind: str) -> bytes:
    """Return the float32 of each byte."""
    layout = _FLOAT8[kind]
    return b"".join(struct.pack("<I", _bits(layout, byte)) for byte in range(256))


def _bits(layout: _Float8, byte: int) -> int:
    """Return the bits of a byte's float32."""
    is_signed = layout.mantissa_bits > 0
    magnitude = byte & 0x7F if is_signed else byte
    sign = 1 << 31 if is_signed and byte & 0x80 else 0
    if byte in layout.nans or (layout.infinity is not None and magnitude > layout.infinity):
        return sign | 0x7FC00000  # NaN
    if magnitude == layout.infinity:
        return sign | 0x7F800000  # infinity
    # All finite values of 8 bits are exact in float32, so the bits come from Python's own arithmetic.
    exponent, mantissa = divmod(magnitude, 1 << layout.mantissa_bits)
    fraction = mantissa / (1 << layout.mantissa_bits)
    if is_signed and not exponent:
        value = fraction * 2.0 ** (1 - layout.bias)
    else:
        value = (1 + fraction) * 2.0 ** (exponent - layout.bias)
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return sign | int(bits)

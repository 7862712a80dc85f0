"""Types of array items, as NumPy's descriptions: ``<f4``, ``|b1``, ``<M8[100ns]``. Any thread.

A structured type is the text of NumPy's list: ``[('x', '<f4'), ('y', '<f4')]``; views of numbers do not match it.
Floats of 8 and 16 bits that NumPy lacks are widened to float32, which holds each of their values exactly. Their names
are those of ``ml_dtypes``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from glassfs.content.data import Converted, Data
from glassfs.errors import Damaged
from glassfs.lazy import NDArray, np
from glassfs.lru import cached_if_short

STRUCTURED = "["
"""The first character of a structured type's description."""
NOT_A_TYPE = (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError)
"""What NumPy and the parser of Python raise for descriptions that they do not accept."""


@cached_if_short(64)
def parsed(description: str) -> np.dtype[Any]:
    """Return the dtype that a description stands for. Raises Damaged if there is none."""
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

_FLOAT8 = {
    "float8_e4m3fn": (3, 7, 0x100, (0x7F, 0xFF)),
    "float8_e4m3fnuz": (3, 8, 0x100, (0x80,)),
    "float8_e5m2": (2, 15, 0x7C, ()),
    "float8_e5m2fnuz": (2, 16, 0x100, (0x80,)),
    "float8_e8m0fnu": (0, 127, 0x100, (0xFF,)),
}
"""Floats of a sign bit, unless there is no mantissa, and of exponent and mantissa bits: the bits of the mantissa; the
bias; the byte of the positive infinity, if there is one, after which only NaNs follow; the other bytes that are NaN."""
NARROW: Mapping[str, int] = {BFLOAT16: 2, **dict.fromkeys(_FLOAT8, 1)}
"""The kinds, and the bytes of a stored item."""


class Widened(Converted):
    """Items that were stored as narrower ones."""



def widened(data: Data, kind: str) -> Data:
    """Return little-endian items of a kind as float32, ``WIDE``. A last, incomplete item is left out."""
    stored = NARROW[kind]
    count = data.size // stored
    convert = _from_bfloat16 if kind == BFLOAT16 else partial(_from_float8, kind)
    return Widened(data, stored, 4, 4 * count, convert)


def _from_bfloat16(raw: bytes) -> memoryview:
    """Convert bfloat16 to float32: the stored halves are the upper ones."""
    halves = np.zeros((len(raw) // 2, 2), "<u2")
    halves[:, 1] = np.frombuffer(raw, "<u2", len(raw) // 2)
    return halves.reshape(-1).view(np.uint8).data


def _from_float8(kind: str, raw: bytes) -> memoryview:
    """Convert bytes by a table of their values."""
    return _values(kind)[np.frombuffer(raw, np.uint8)].view(np.uint8).data


@lru_cache
def _values(kind: str) -> NDArray[Any]:
    """Return the float32 of each byte."""
    bits, bias, infinity, nans = _FLOAT8[kind]
    byte = np.arange(256)
    magnitude = byte & 0x7F if bits else byte
    exponent, mantissa = np.divmod(magnitude, 1 << bits)
    is_normal = (exponent > 0) | (not bits)
    values: NDArray[Any] = np.ldexp(mantissa / (1 << bits) + is_normal, np.where(is_normal, exponent, 1) - bias)
    values[magnitude > infinity] = np.nan
    values[magnitude == infinity] = np.inf
    values[list(nans)] = np.nan
    found: NDArray[Any] = np.copysign(values, 0.5 - (byte != magnitude)).astype(WIDE)
    return found

"""Arrays as NPY files: the container's own file if it stores one, else byte for byte what ``numpy.save`` writes.

The format is NumPy's own, ``numpy/lib/format.py``. NumPy itself is not needed: any range is header or array bytes.
"""

from __future__ import annotations

from glassfs.content import Array, Data, Location, dtypes
from glassfs.lru import cached_if_short

MAGIC = b"\x93NUMPY"
LONGEST = (1 << 16) - 12
"""Bytes of text in a header of version 1, whose length has 16 bits, as NumPy aligns it."""


class Npy(Data):
    """Header and items of an array."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._known = b"" if callable(array.shape) else header(array.dtype, array.shape)
        """The header, empty if finding the shape takes a pass over the data."""

    @property
    def is_sized(self) -> bool:
        return bool(self._known) and self._array.data.is_sized

    @property
    def size(self) -> int:
        return len(self._known or self._header()) + self._array.data.size

    def location(self) -> Location | None:
        return self._array.data.location()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        header = self._header()
        if offset < len(header):
            taken = min(len(buffer), len(header) - offset)
            buffer[:taken] = header[offset : offset + taken]
            buffer, offset = buffer[taken:], offset + taken
        if buffer:
            self._array.data.read_into(buffer, offset - len(header))

    def _header(self) -> bytes:
        return self._known or header(self._array.dtype, self._array.resolved_shape)


@cached_if_short(4096)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header that ``numpy.save`` writes for an array in C order; ``dtype`` is its description."""
    literal = dtype if dtype.startswith(dtypes.STRUCTURED) else repr(dtype)
    text = f"{{'descr': {literal}, 'fortran_order': False, 'shape': {shape!r}, }}"
    if shape:
        text += " " * (21 - len(repr(shape[0])))  # NumPy leaves space for the first axis to grow to this many digits
    version, length_size = 1, 2
    try:
        encoded = text.encode("latin1")
    except UnicodeEncodeError:  # a name of a field
        encoded, version, length_size = text.encode(), 3, 4
    if version == 1 and len(encoded) > LONGEST:
        version, length_size = 2, 4
    # Spaces and a newline align the array to 64 bytes.
    length = len(encoded) + 65 - (len(MAGIC) + 2 + length_size + len(encoded) + 1) % 64
    return MAGIC + bytes((version, 0)) + length.to_bytes(length_size, "little") + encoded.ljust(length - 1) + b"\n"

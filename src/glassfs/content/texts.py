"""Strings by row as bytes, from which views of many rows are written without an object for each. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, overload

from glassfs.lazy import NDArray, np


@dataclass(eq=False)
class TextRows(Sequence["str | None"]):
    """Rows of text, or None: row i has ``lengths[i]`` of the bytes ``raw``, those of all rows one after another.

    ``present`` says which rows are not None; if it is None, all are present. Bytes that are not UTF-8 are backslash
    escapes in the text.
    """

    raw: bytes
    lengths: NDArray[Any]
    present: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> TextRows: ...
    def __getitem__(self, index: int | slice) -> str | TextRows | None:
        if not isinstance(index, slice):
            return next(iter(self[index : index + 1]))
        first, end, _ = index.indices(len(self))
        begin = int(self.lengths[:first].sum())
        lengths = self.lengths[first:end]
        raw = self.raw[begin : begin + int(lengths.sum())]
        return TextRows(raw, lengths, None if self.present is None else self.present[first:end])

    def __iter__(self) -> Iterator[str | None]:
        ends = [0, *self.lengths.cumsum().tolist()]
        present = [True] * len(self) if self.present is None else self.present.tolist()
        for is_present, (start, end) in zip(present, pairwise(ends), strict=True):
            yield self.raw[start:end].decode("utf-8", "backslashreplace") if is_present else None

    def with_lengths(self) -> bytes:
        """Return the rows that are present, each as UTF-8 after its length, which is a 32-bit integer."""
        lengths = self.lengths if self.present is None else self.lengths[self.present]
        if self.raw.isascii() or self._is_utf8():
            return with_lengths(self.raw, lengths)
        rows = [row.encode() for row in self if row is not None]
        return b"".join([len(row).to_bytes(4, "little") + row for row in rows])

    def _is_utf8(self) -> bool:
        """Return whether each row is UTF-8: all together are, and no row begins inside a character."""
        try:
            self.raw.decode()
        except UnicodeDecodeError:
            return False
        starts = self.lengths.cumsum() - self.lengths
        firsts = np.frombuffer(self.raw, np.uint8)[starts[self.lengths > 0]]
        return not ((firsts & 0xC0) == 0x80).any()


def with_lengths(raw: bytes, lengths: NDArray[Any]) -> bytes:
    """Return rows of bytes, that have these lengths and stand one after another, each after its length."""
    # Lengths and bytes are put in place by a mask, as a loop over short rows in Python takes longer.
    made = np.empty(4 * len(lengths) + len(raw), np.uint8)
    is_raw = np.ones(len(made), bool)
    places = lengths.cumsum() - lengths + 4 * np.arange(len(lengths))
    for array, heads in ((is_raw, 0), (made, lengths)):
        np.ndarray((max(0, len(made) - 3),), "<u4", array.data, 0, (1,))[places] = heads
    made[is_raw] = np.frombuffer(raw, np.uint8)
    return made.tobytes()


def padded(raw: bytes, width: int, padding: str, missing: bytes = b"") -> TextRows:
    """Return the rows of strings of ``width`` bytes that end at the first zero (``end``), or before the last ``zeros``
    or ``spaces``. Rows that are ``missing`` are None, unless that is empty.
    """
    # Rows are short and many. A step over one byte of all rows is several times as fast as one over all bytes of a row.
    matrix = np.frombuffer(raw, np.uint8).reshape(-1, width)
    turned = np.ascontiguousarray(matrix.T)
    counted = np.arange(1, width + 1, dtype=np.int32)[:, np.newaxis]
    if padding == "end":
        lengths = width - ((turned == 0) * counted[::-1]).max(0)
    else:
        is_space = turned == (ord(" ") if padding == "spaces" else 0)
        lengths = (((turned != 0) & ~is_space) * counted).max(0)
    lengths = lengths.astype(np.int64)
    present = None
    if 0 < len(missing) <= width:
        is_equal = (turned[: len(missing)] == np.frombuffer(missing, np.uint8)[:, np.newaxis]).all(0)
        present = ~(is_equal & (lengths == len(missing)))
        lengths *= present
    return TextRows(matrix[np.arange(width) < lengths[:, np.newaxis]].tobytes(), lengths, present)


def coded(numbers: NDArray[Any], texts: Sequence[str | None]) -> TextRows:
    """Return the text of each number, which is its index in ``texts``. Raises IndexError for another number."""
    rows = [b"" if one is None else one.encode("utf-8", "backslashreplace") for one in texts]
    lengths = np.array([len(row) for row in rows], np.int64)[numbers]
    present = np.array([one is not None for one in texts], bool)[numbers]
    raw = b"".join([rows[number] for number in numbers.tolist()])
    return TextRows(raw, lengths, None if present.all() else present)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python reads but JSON does not have (``json.loads(parse_constant=…)``)."""
    raise ValueError(f"{name} is not a JSON number")

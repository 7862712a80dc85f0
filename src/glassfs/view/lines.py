"""Rows as lines: records as JSON lines, ragged text as plain lines.

Sizes take one pass when they are first needed, over the text of plain lines or over the blocks of JSON lines, with one
block in memory at a time.
"""

from __future__ import annotations

import json as standard_json
import struct
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Blocked, Data, RaggedText, Records, Slice
from glassfs.errors import Damaged, TooLarge
from glassfs.view import json
from glassfs.view.contract import Key

ROWS_AT_ONCE = 4096
READ_AT_ONCE = 4 << 20
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
ROW_COST = 64  # bytes of memory for one byte of a JSON row: its values, the row and the line


def records(content: Records, cache: BlockCache, key: Key) -> tuple[str, Data]:
    def lines(block: int) -> Iterator[bytes | bytearray]:
        for value in content.block(block):
            yield _ended(json.line(value))

    return ".jsonl", _in_blocks(cache, lambda: content.blocks, lines, content.cost, key)


def ragged_text(content: RaggedText, cache: BlockCache, key: Key) -> tuple[str, Data]:
    if content.is_json:
        return documents(content, cache, key)
    return ".txt", PlainLines(_Rows(content), cache, key)


def documents(content: RaggedText, cache: BlockCache, key: Key, empty: bytes = b"") -> tuple[str, Data]:
    """Return each row as JSON, or as a string if it is not JSON; ``empty`` replaces an empty row."""
    rows = _Rows(content)

    def lines(block: int) -> Iterator[bytes | bytearray]:
        for start, end in rows.spans(block):
            if end - start > json.LIMIT:
                raise TooLarge(f"a row is longer than {json.LIMIT >> 20} MiB", part=rows.name)
            yield _ended(_json_line(content.text.read(start, end - start) or empty))

    def cost(block: int) -> int:
        return ROW_COST * min(json.LIMIT, max(end - start for start, end in rows.spans(block)))

    return ".jsonl", _in_blocks(cache, lambda: rows.blocks, lines, cost, key)


class PlainLines(Blocked):
    """The rows of ragged text, each followed by a newline. Their line breaks and backslashes are escaped as in JSON."""

    def __init__(self, rows: _Rows, cache: BlockCache, key: Key) -> None:
        super().__init__(cache, rows.line_bounds, self._lines)
        self._rows = rows
        self._key = key

    def _lines(self, block: int) -> _Lines:
        bounds = self.bounds
        size = bounds[block + 1] - bounds[block]
        return _Lines((*self._key, block), size, partial(self._rows.lines, block), min(size, READ_AT_ONCE))


class _Rows:
    """Ragged text, read a block of rows at a time."""

    def __init__(self, content: RaggedText) -> None:
        self.content = content
        self.blocks = -(-content.rows // ROWS_AT_ONCE)
        self._item = int(content.offset_dtype[2:])

    @property
    def name(self) -> str:
        return self.content.key.decode("utf-8", "replace")

    def spans(self, block: int) -> Iterator[tuple[int, int]]:
        """Return where the rows of a block begin and end in the text. Raises Damaged."""
        first = block * ROWS_AT_ONCE
        count = min(ROWS_AT_ONCE, self.content.rows - first)
        offsets = self._offsets(first, count + 1)
        is_whole = (first > 0 or offsets[0] == 0) and (
            offsets[-1] == self.content.text.size if block == self.blocks - 1 else offsets[-1] <= self.content.text.size
        )
        if not is_whole or any(a > b for a, b in pairwise(offsets)):
            raise self._damage()
        return pairwise(offsets)

    def lines(self, block: int) -> Iterator[bytes]:
        """Yield the rows of a block, each followed by a newline, in pieces."""
        spans = list(self.spans(block))
        start, end = spans[0][0], spans[-1][1]
        if end - start <= READ_AT_ONCE:
            text = self.content.text.read(start, end - start)
            yield b"".join(_escaped(text[a - start : b - start]) + b"\n" for a, b in spans)
            return
        for a, b in spans:
            yield from map(_escaped, Slice(self.content.text, a, b - a).pieces())
            yield b"\n"

    def line_bounds(self) -> Sequence[int]:
        """Return where the lines of each block begin, and the end. Takes a pass over the text."""
        rows, size = self.content.rows, self.content.text.size
        starts = [self._offsets(row, 1)[0] for row in (*range(0, rows, ROWS_AT_ONCE), rows)]
        if starts[0] != 0 or starts[-1] != size or sorted(starts) != starts:
            raise self._damage()
        bounds = array("Q", [0])
        for block, (start, end) in enumerate(pairwise(starts)):
            work.check()
            text = Slice(self.content.text, start, end - start)
            escapes = sum(piece.count(one) for piece in text.pieces() for one in _ESCAPES)
            count = min(ROWS_AT_ONCE, rows - block * ROWS_AT_ONCE)
            bounds.append(bounds[-1] + end - start + count + escapes)
        return bounds

    def _damage(self) -> Damaged:
        return Damaged("the offsets of its rows do not rise from 0 to its end", part=self.name)

    def _offsets(self, first: int, count: int) -> Sequence[int]:
        raw = self.content.offsets.read(first * self._item, count * self._item)
        return struct.unpack(f"<{count}{'I' if self._item == 4 else 'Q'}", raw)


class _Lines(NamedTuple):
    """The recipe of a block of lines."""

    key: Hashable
    size: int
    lines: Callable[[], Iterator[bytes | bytearray]]
    rows_cost: int
    """The memory in bytes of the rows from which the lines are made, and of one line."""

    @property
    def cost(self) -> int:
        return self.rows_cost + 2 * self.size

    @property
    def stream_cost(self) -> int:
        return self.rows_cost

    def whole(self) -> bytes:
        made = b"".join(self.lines())
        if len(made) != self.size:
            raise Damaged(f"a block of rows gives {len(made)} bytes of lines, but {self.size} were expected")
        return made

    def pieces(self) -> Iterator[bytes | bytearray]:
        return self.lines()


class Measure(NamedTuple):
    """What a pass finds of a block of lines: the memory in bytes that making it takes, and its size."""

    cost: int
    size: int


def measured(
    cache: BlockCache, measure: Callable[[], Iterable[Measure]], lines: Callable[[int], Iterator[bytes | bytearray]],
    key: Key,
) -> Blocked:
    """Return blocks of lines, ``lines(i)`` those of block i, whose sizes ``measure`` finds by making them once."""
    costs = array("Q")

    def bounds() -> Sequence[int]:
        found = array("Q", [0])
        del costs[:]
        for cost, size in measure():
            costs.append(cost)
            found.append(found[-1] + size)
        return found

    def block(number: int) -> _Lines:
        starts = blocked.bounds
        return _Lines((*key, number), starts[number + 1] - starts[number], partial(lines, number), costs[number])

    blocked = Blocked(cache, bounds, block)
    return blocked


def _in_blocks(
    cache: BlockCache, blocks: Callable[[], int], lines: Callable[[int], Iterator[bytes | bytearray]],
    cost: Callable[[int], int], key: Key,
) -> Blocked:
    """Return ``blocks()`` blocks of lines, each of which takes ``cost(block)`` bytes of memory."""

    def measure() -> Iterator[Measure]:
        for number in range(blocks()):
            spent = cost(number)
            with cache.measuring(spent):
                size = sum(map(len, lines(number)))
            yield Measure(spent, size)

    return measured(cache, measure, lines, key)


def _escaped(text: bytes | bytearray) -> bytes | bytearray:
    """Return text without line breaks."""
    for one, escape in _ESCAPES.items():
        text = text.replace(one, escape)
    return text


def _ended(line: bytes | bytearray) -> bytes | bytearray:
    """Return the line with its newline, in place if possible."""
    line += b"\n"
    return line


def _json_line(row: bytes) -> bytes | bytearray:
    """Return a JSON document on one line, unchanged if it already is; a row that is not JSON becomes a string."""
    try:
        value = standard_json.loads(row.decode(), parse_constant=_no_constant, object_pairs_hook=_unrepeated)
    except (ValueError, RecursionError):
        return json.line(row)
    return json.line(value) if b"\n" in row or b"\r" in row else row.strip()


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a key twice")
    return members


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

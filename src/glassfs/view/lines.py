"""Rows as lines: records as JSON lines, ragged text as plain lines, written when their size is first needed.

The view ``jsonl`` shows tables of things, an object for each row, and columns of documents, each on its line.
"""

from __future__ import annotations

import json as standard_json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Data, Documents, RaggedText, Records, Slice, Stream, Table
from glassfs.content.rows import of_records, offsets_of, refuse_constant
from glassfs.errors import Damaged, TooLarge
from glassfs.sizes import PIECE
from glassfs.view import json
from glassfs.view.contract import Key, Shown, View

ROWS_AT_ONCE = 4096
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
ROW_COST = 64  # bytes of memory for one byte of a JSON row: its values, the row and the line


def records(content: Records, cache: BlockCache, key: Key) -> tuple[str, Data]:
    return ".jsonl", Stream(
        cache, key, lambda: _joined(map(json.line, of_records(content))),
        lambda: max(map(content.cost, range(content.blocks)), default=0),
    )


def ragged_text(content: RaggedText, cache: BlockCache, key: Key) -> tuple[str, Data]:
    if content.is_json:
        return documents(content, cache, key)
    return ".txt", Stream(cache, key, partial(_plain_lines, content))


def documents(content: RaggedText, cache: BlockCache, key: Key, empty: bytes = b"") -> tuple[str, Data]:
    """Return each row as JSON, or as a string if it is not JSON; ``empty`` replaces an empty row."""
    def line(start: int, end: int) -> bytes | bytearray:
        # Memory is reserved for one row at a time: a stream may rest between rows, and then must not hold any.
        with cache.measuring(ROW_COST * (end - start)):
            return _json_line(content.text.read(start, end - start) or empty)

    def lines() -> Iterator[bytes]:
        for spans in _spans(content):
            if any(end - start > json.LIMIT for start, end in spans):
                raise TooLarge(f"a row is longer than {json.LIMIT >> 20} MiB", part=_name(content))
            yield from _joined(line(start, end) for start, end in spans)

    return ".jsonl", Stream(cache, key, lines)


def _plain_lines(content: RaggedText) -> Iterator[bytes]:
    """Yield the rows of ragged text, with line breaks and backslashes escaped as in JSON."""
    for spans in _spans(content):
        start, end = spans[0][0], spans[-1][1]
        # Mostly the text of all these rows is read at once; long rows are read and escaped in pieces.
        if end - start <= PIECE:
            text = content.text.read(start, end - start)
            yield from _joined(_escaped(text[a - start : b - start]) for a, b in spans)
            continue
        for a, b in spans:
            yield from map(_escaped, Slice(content.text, a, b - a).pieces())
            yield b"\n"


def _spans(content: RaggedText) -> Iterator[list[tuple[int, int]]]:
    """Yield where rows begin and end in the text, for some thousand of them at a time. Raises Damaged."""
    offsets = offsets_of(content)
    for first in range(0, content.rows, ROWS_AT_ONCE):
        try:
            bounds: list[int] = offsets.of(first, min(first + ROWS_AT_ONCE, content.rows)).tolist()
        except Damaged as damage:
            raise damage.at(part=_name(content)) from damage
        yield list(pairwise(bounds))


def _name(content: RaggedText) -> str:
    return content.key.decode("utf-8", "replace")


def _joined(lines: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Yield lines, with their newlines, in pieces that are little longer than PIECE. The last one may be empty."""
    piece = bytearray()
    for line in lines:
        piece += line
        piece += b"\n"
        if len(piece) > PIECE:
            yield bytes(piece)
            piece = bytearray()
    yield bytes(piece)


def _escaped(text: bytes) -> bytes:
    """Return text without line breaks."""
    for one, escape in _ESCAPES.items():
        text = text.replace(one, escape)
    return text


def _json_line(row: bytes) -> bytes | bytearray:
    """Return a JSON document on one line, unchanged if it already is; a row that is not JSON becomes a string."""
    try:
        value = standard_json.loads(row.decode(), parse_constant=refuse_constant, object_pairs_hook=_unrepeated)
    except (ValueError, RecursionError):
        return json.line(row)
    return json.line(value) if b"\n" in row or b"\r" in row else row.strip()


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a key twice")
    return members


def show(content: Table | Documents, cache: BlockCache, key: Key) -> Iterator[Shown]:
    rows = content.rows() if isinstance(content, Documents) else content.records
    if rows is not None:
        made = records(rows, cache, key) if isinstance(rows, Records) else documents(rows, cache, key, empty=b"{}")
        yield Shown(made[1], made[0])


VIEW = View(
    "jsonl", "tables of episodes, and columns of JSON documents, a row a line, for jq", (Table, Documents), show,
)

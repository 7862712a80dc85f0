"""Rows as lines: plain text and JSON lines, written in one pass, and offsets that lie."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import Memory, RaggedText, Records
from glassfs.errors import Damaged
from glassfs.view import file_of
from glassfs.view.lines import ROWS_AT_ONCE
from tests.view.views import KEY, PLACE, file_bytes

BAD = Damaged("bad")
MANY = st.integers(ROWS_AT_ONCE - 2, 3 * ROWS_AT_ONCE)
ROWS = st.one_of(
    st.lists(st.binary(max_size=12) | st.text("a\\\n\r", max_size=5).map(str.encode), max_size=40),
    st.tuples(st.binary(max_size=6), MANY).map(lambda row: [row[0]] * row[1]),
)


def ragged(rows: Sequence[bytes], dtype: str = "<u4", is_json: bool = False) -> RaggedText:
    offsets = list(accumulate(map(len, rows), initial=0))
    packed = struct.pack(f"<{len(offsets)}{'I' if dtype == '<u4' else 'Q'}", *offsets)
    return RaggedText(KEY, Memory(b"".join(rows)), Memory(packed), dtype, len(rows), is_json)


@given(ROWS, st.sampled_from(["<u4", "<u8"]))
@settings(max_examples=40, deadline=None)
def test_plain_rows_are_lines(rows: list[bytes], dtype: str) -> None:
    """Each row is one line, from which it can be had back."""
    for budget in (8 << 20, 1000):
        found = file_bytes(ragged(rows, dtype), ".txt", budget)
        assert b"\r" not in found
        assert [unescaped(line) for line in found.split(b"\n")] == [*rows, b""]


def unescaped(line: bytes) -> bytes:
    return re.sub(rb"\\([\\nr])", lambda found: {b"n": b"\n", b"r": b"\r"}.get(found[1], found[1]), line)


def test_only_line_breaks_in_plain_rows_are_escaped() -> None:
    rows = [b"A", b'"\t', b"\xff", b"two\nlines", b"\r\n", b"\\n"]
    assert file_bytes(ragged(rows), ".txt") == b'A\n"\t\n\xff\ntwo\\nlines\n\\r\\n\n\\\\n\n'


@pytest.mark.parametrize("letter", [b"x", b"\n"])
def test_one_long_row_among_short_ones(letter: bytes) -> None:
    rows = [b"a", letter * (20 << 20), b"", b"b"]
    assert file_bytes(ragged(rows), ".txt") == b"".join(row.replace(b"\n", b"\\n") + b"\n" for row in rows)


@pytest.mark.parametrize("offsets", [
    [1, 2, 3, 6], [0, 4, 3, 6], [0, 2, 3, 5], [0, 2, 3, 7], [0, 2, 9, 6], [0, 2**32 - 1, 3, 6],
])
def test_false_offsets_are_damage(offsets: list[int]) -> None:
    for is_json in (False, True):
        content = RaggedText(KEY, Memory(b"abcdef"), Memory(struct.pack("<4I", *offsets)), "<u4", 3, is_json)
        data = file_of(content, BlockCache(), PLACE).data
        with pytest.raises(Damaged, match="offsets"):
            data.read(0, data.size)


OBJECTS = st.dictionaries(st.text(max_size=3), st.integers(), max_size=3)
ODD_ROWS = [b"NaN", b'{"a": 1, "a": 2}', b"", b" 1 ", b"[" * 5000, b'"\r"', b'"a\nb"']


@given(st.lists(st.one_of(
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    OBJECTS.map(lambda value: json.dumps(value, indent=1).encode()),
    st.binary(max_size=8), st.sampled_from(ODD_ROWS),
), max_size=20))
@settings(max_examples=60, deadline=None)
def test_json_rows_are_one_line_each(rows: list[bytes]) -> None:
    """A row that is JSON keeps its value, one that is none becomes a string."""
    shown = file_bytes(ragged(rows, is_json=True), ".jsonl").split(b"\n")
    assert shown.pop() == b""
    assert len(shown) == len(rows)
    for line, row in zip(shown, rows, strict=True):
        value = json.loads(line)
        try:
            original = json.loads(row.decode())
        except (ValueError, RecursionError):
            assert value == row.decode("utf-8", "replace")
            continue
        if row in (b"NaN", b'{"a": 1, "a": 2}'):  # lenient parsers take them
            assert value == row.decode()
        else:
            assert value == original
            assert b"\n" in row or line == row.strip()


VALUES = st.one_of(st.none(), st.text(max_size=5), st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=3))


@given(st.lists(st.lists(VALUES, max_size=8), max_size=6))
@settings(deadline=None)
def test_records_are_json_lines_by_block(blocks: list[list[Any]]) -> None:
    content = Records(KEY, len(blocks), lambda number: blocks[number])
    for budget in (8 << 20, 40):
        shown = file_bytes(content, ".jsonl", budget).split(b"\n")
        assert shown.pop() == b""
        assert [json.loads(line) for line in shown] == [value for block in blocks for value in block]


def test_records_are_made_once_when_size_is_needed() -> None:
    asked: list[int] = []

    def block(number: int) -> list[str]:
        asked.append(number)
        return [f"row {number}"] * 3

    data = file_of(Records(KEY, 50, block), BlockCache(), PLACE).data
    assert not data.is_sized
    assert not asked
    size = data.size
    assert data.size == size == sum(3 * len(f'"row {number}"\n') for number in range(50))
    data.read(0, 10)
    data.read(size - 5, 5)
    assert asked == list(range(50))


@pytest.mark.parametrize("other", ["longer", ""])
def test_rows_that_change_after_eviction_are_damage(other: str) -> None:
    rows = [["a"]]
    cache = BlockCache()
    data = file_of(Records(KEY, 1, lambda number: rows[number]), cache, PLACE).data
    size = data.size
    rows[0] = [other]
    cache.clear()
    with pytest.raises(Damaged):
        data.read(0, size)


def test_a_bad_block_makes_the_size_damage() -> None:
    def block(number: int) -> list[str]:
        if number == 1:
            raise Damaged("block 1 does not decode")
        return ["a"]

    data = file_of(Records(KEY, 3, block), BlockCache(), PLACE).data
    with pytest.raises(Damaged, match="block 1"):
        _ = data.size

"""Rows of tables as Python values, from any row on, and strings by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.content import Array, Column, Data, Memory, Ragged, RaggedText, Records, Table, rows_of
from glassfs.content.rows import TextRows, coded, padded
from glassfs.errors import Damaged

ROWS = 9000


class Counting(Memory):
    """Bytes that count how many of them were read."""

    read_bytes = 0

    def read_into(self, buffer: memoryview, offset: int) -> None:
        Counting.read_bytes += len(buffer)
        super().read_into(buffer, offset)


def stored(values: Any, dtype: str) -> Data:
    return Counting(np.asarray(values, dtype).tobytes())


def block(number: int) -> list[Any]:
    return [None if row % 10 == 0 else row / 2 for row in range(number * 100, number * 100 + 100)]


def columns() -> list[Column]:
    lengths = np.arange(ROWS + 1) * 2
    return [
        Column(b"number", Array(b"number", stored(range(ROWS), "<i8"), "<i8", (ROWS,))),
        Column(b"pair", Array(b"pair", stored(range(2 * ROWS), "<f4"), "<f4", (ROWS, 2))),
        Column(b"run", Ragged(b"run", stored(range(2 * ROWS), "<u2"), "<u2", stored(lengths, "<u8"), "<u8", ROWS)),
        Column(b"text", RaggedText(b"text", Counting(b"ab" * ROWS), stored(lengths, "<u4"), "<u4", ROWS)),
        Column(b"cell", Records(b"cell", ROWS // 100, block, dtype="<f8")),
    ]


def expected(row: int) -> dict[str, Any]:
    return {
        "number": row, "pair": [2.0 * row, 2.0 * row + 1], "run": [2 * row, 2 * row + 1], "text": "ab",
        "cell": None if row % 10 == 0 else row / 2,
    }


@pytest.mark.parametrize(("first", "count"), [(0, 3), (0, None), (4095, 3), (8998, 100), (17, 5000), (9000, 1), (0, 0)])
def test_rows_of_columns_of_every_kind(first: int, count: int | None) -> None:
    found = list(rows_of(Table(b"t", ROWS, columns), first, count))
    end = ROWS if count is None else min(ROWS, first + count)
    assert found == [expected(row) for row in range(first, end)]


def test_rows_of_records() -> None:
    records = Records(b"r", 3, lambda number: [{"a": number * 2 + place} for place in range(2)])
    table = Table(b"t", 6, list, records)
    assert list(rows_of(table)) == [{"a": number} for number in range(6)]
    assert list(rows_of(table, 1, 3)) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert list(rows_of(table, 5, 9)) == [{"a": 5}]


def test_few_rows_read_few_bytes() -> None:
    table = Table(b"t", ROWS, lambda: columns()[:4])
    Counting.read_bytes = 0
    assert [row["number"] for row in rows_of(table, 8000, 2)] == [8000, 8001]
    assert Counting.read_bytes < 200


def test_damaged_offsets_raise() -> None:
    text = RaggedText(b"text", Memory(b"abcd"), stored([0, 3, 1, 4], "<u4"), "<u4", 3)
    with pytest.raises(Damaged, match="do not rise"):
        list(rows_of(Table(b"t", 3, lambda: [Column(b"text", text)])))


WIDTH = 4
PADDED = st.lists(st.sampled_from(
    [b"", b"a", b"ab  ", b"a\0b", b"abcd", b"\xc3\xa9", b"\xc3", b"\xa9", b" \0 \0", b"nan", b"nana", b"na"],
), max_size=9)
CUT = {
    "end": lambda raw: raw.partition(b"\0")[0], "zeros": lambda raw: raw.rstrip(b"\0"),
    "spaces": lambda raw: raw.rstrip(b" \0"),
}


def lengths_and_texts(rows: list[str | None]) -> bytes:
    encoded = [row.encode() for row in rows if row is not None]
    return b"".join(len(row).to_bytes(4, "little") + row for row in encoded)


@given(PADDED, st.sampled_from(sorted(CUT)), st.sampled_from([b"", b"nan", b"far too long"]))
def test_padded_strings_are_their_texts(rows: list[bytes], padding: str, missing: bytes) -> None:
    found = padded(b"".join(row.ljust(WIDTH, b"\0") for row in rows), WIDTH, padding, missing)
    cut = [CUT[padding](row.ljust(WIDTH, b"\0")) for row in rows]
    expected = [None if missing and row == missing else row.decode("utf-8", "backslashreplace") for row in cut]
    assert list(found) == expected and len(found) == len(rows)
    assert [found[number] for number in range(len(rows))] == expected
    assert list(found[1:3]) == expected[1:3]
    assert found.with_lengths() == lengths_and_texts(expected)
    assert found[1:3].with_lengths() == lengths_and_texts(expected[1:3])


@given(st.lists(st.integers(-1, 2), max_size=9))
def test_numbers_are_the_texts_of_their_categories(numbers: list[int]) -> None:
    categories = ["é", "", "b\0", None]
    found = coded(np.array(numbers, int), categories)
    assert list(found) == [categories[number] for number in numbers]
    assert found.with_lengths() == lengths_and_texts([categories[number] for number in numbers])
    with pytest.raises(IndexError):
        coded(np.array([4]), categories)


def test_row_that_ends_inside_a_character_is_escaped() -> None:
    rows = TextRows("aé".encode(), np.array([2, 1]))
    assert list(rows) == ["a\\xc3", "\\xa9"]
    assert rows.with_lengths() == lengths_and_texts(["a\\xc3", "\\xa9"])

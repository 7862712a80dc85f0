"""Strings by row, against Python's own strings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.content.texts import TextRows, coded, padded

WIDTH = 4
ROWS = st.lists(st.sampled_from(
    [b"", b"a", b"ab  ", b"a\0b", b"abcd", b"\xc3\xa9", b"\xc3", b"\xa9", b" \0 \0", b"nan", b"nana", b"na"],
), max_size=9)
CUT = {
    "end": lambda raw: raw.partition(b"\0")[0], "zeros": lambda raw: raw.rstrip(b"\0"),
    "spaces": lambda raw: raw.rstrip(b" \0"),
}


def lengths_and_texts(rows: list[str | None]) -> bytes:
    encoded = [row.encode() for row in rows if row is not None]
    return b"".join(len(row).to_bytes(4, "little") + row for row in encoded)


@given(ROWS, st.sampled_from(sorted(CUT)), st.sampled_from([b"", b"nan", b"far too long"]))
def test_padded_strings_are_their_texts(rows: list[bytes], padding: str, missing: bytes) -> None:
    found = padded(b"".join(row.ljust(WIDTH, b"\0") for row in rows), WIDTH, padding, missing)
    cut = [CUT[padding](row.ljust(WIDTH, b"\0")) for row in rows]
    expected = [
        None if missing and row == missing else row.decode("utf-8", "backslashreplace") for row in cut
    ]
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

"""Generated JSON, strict, in order and bounded; and rows as lines of text or JSON, written in one pass."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import Blob, Document, EncodedImage, Json, Memory, Null, RaggedText, Records, Scalar, Text
from glassfs.errors import Damaged, TooLarge
from glassfs.view import data_of, file_of
from glassfs.view.json import AT_ONCE, LIMIT, line, render
from glassfs.view.lines import ROWS_AT_ONCE
from tests.view.views import KEY, PLACE, file_bytes, memory_below

PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
)
KEYS = st.one_of(st.binary(max_size=2), st.text(st.characters(codec=None), max_size=2))
ANYTHING = st.recursive(
    st.one_of(st.floats(), st.binary(), st.text(st.characters(codec=None)), st.integers(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=5),
    ),
)


def strict(text: bytes) -> Any:
    """By a parser that takes no NaN and no key twice."""

    def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    def constant(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text.decode(), parse_constant=constant, object_pairs_hook=unrepeated)


@given(PLAIN)
@settings(deadline=None)
def test_values_come_back(value: Any) -> None:
    rendered = render(value)
    assert strict(rendered) == value
    assert rendered == (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
    assert strict(line(value)) == value
    assert b"\n" not in line(value)


@given(ANYTHING)
@settings(deadline=None)
def test_any_value_becomes_strict_json(value: Any) -> None:
    """Also with NaN, bytes that are not UTF-8, lone surrogates, and keys that these make equal."""
    rendered = render(value)
    parsed = strict(rendered)
    assert rendered.endswith(b"\n")
    assert strict(line(value)) == parsed
    if isinstance(value, dict):
        assert len(parsed) == len(value)


@given(st.dictionaries(KEYS, ANYTHING, max_size=4) | st.lists(PLAIN, max_size=3))
@settings(deadline=None)
def test_short_objects_are_written_as_long_ones_are(value: Any) -> None:
    short = render(value), line(value)
    with patch("glassfs.view.json.SHORT", -100):
        assert (render(value), line(value)) == short


@pytest.mark.parametrize(("value", "text"), [
    (math.nan, b'"NaN"'), (math.inf, b'"Infinity"'), (-math.inf, b'"-Infinity"'), (-0.0, b"-0.0"), (0.1, b"0.1"),
    (1e22, b"1e+22"), (5e-324, b"5e-324"), (2**70, b"1180591620717411303424"), (True, b"true"), (None, b"null"),
    (b"\xff\xe9", '"\ufffd\ufffd"'.encode()), ("\udc80", '"\ufffd"'.encode()), ("é", '"é"'.encode()),
    ((1, 2), b"[1, 2]"),
    ({b"a\xff": 1, b"a\xfe": 2, "a\ufffd~2": 3}, '{"a\ufffd": 1, "a\ufffd~2": 2, "a\ufffd~2~2": 3}'.encode()),
])
def test_what_json_lacks(value: Any, text: bytes) -> None:
    assert line(value) == text


@pytest.mark.slow
@pytest.mark.parametrize("value", [
    ["x" * (1 << 20)] * 65, [[10**400] * 1000] * 200, {"x" * (33 << 20): "y" * (33 << 20)}, "é" * (33 << 20),
    ["\0" * (11 << 20)], "\1" * (35 << 20), b"\xff" * (25 << 20), "\udc80" * (1 << 20) + "x" * (61 << 20),
], ids=["strings", "numbers", "keys", "more bytes than characters", "escapes", "one string", "bytes", "surrogates"])
def test_too_large_values_are_refused_early(value: Any) -> None:
    """With no more in memory than the text up to there, and what its buffer has to spare."""
    with memory_below(LIMIT * 5 // 4), pytest.raises(TooLarge, match="64 MiB"):
        render(value)


@pytest.mark.slow
@pytest.mark.parametrize("value", [
    "aé€😀\0\udc80\"" * 4 * AT_ONCE, "aé€😀\0\"".encode() * 4 * AT_ONCE, b"\xf0\x9f\x98" * 4 * AT_ONCE,
    b"a" * (AT_ONCE - 1) + b"\xc3\xa9",
], ids=["text", "bytes", "cut characters", "a character across pieces"])
def test_long_strings_are_written_as_short_ones(value: str | bytes) -> None:
    """In whatever pieces; and with little more memory than the text."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value.replace("\udc80", "\ufffd")
    expected = json.dumps(text, ensure_ascii=False).encode()
    with memory_below(len(expected) * 5 // 4 + 64 * AT_ONCE):
        shown = line(value)
    assert shown == expected
    assert line({value: 1}) == b"{" + expected + b": 1}"


@pytest.mark.slow
def test_rendering_of_exactly_the_limit_is_allowed() -> None:
    assert len(render("x" * (LIMIT - 3))) == LIMIT
    with pytest.raises(TooLarge):
        render("x" * (LIMIT - 2))


def test_document_that_cannot_be_made_is_damage() -> None:
    assert file_bytes(Document(KEY, lambda: {"a": 1}), ".json") == b'{\n  "a": 1\n}\n'

    def bad() -> None:
        raise Damaged("meta does not decode")

    data = data_of(Document(KEY, bad), BlockCache(), PLACE)
    for _ in range(2):
        with pytest.raises(Damaged, match="meta does not decode"):
            _ = data.size


@pytest.mark.parametrize(("value", "text"), [
    (0, b"0\n"), (-(2**63), b"-9223372036854775808\n"), (1.0, b"1.0\n"), (0.1, b"0.1\n"), (1e300, b"1e+300\n"),
    (True, b"true\n"), (False, b"false\n"), (math.nan, b"nan\n"), (-math.inf, b"-inf\n"), (-0.0, b"-0.0\n"),
])
def test_scalars_are_a_line(value: float, text: bytes) -> None:
    assert file_bytes(Scalar(KEY, value), ".txt") == text


def test_stored_bytes_are_shown_unchanged() -> None:
    raw = b"\xff\xd8 anything \0\n"
    for content, suffix in (
        (Blob(KEY, Memory(raw)), ".bin"), (Text(KEY, Memory(raw)), ".txt"), (Json(KEY, Memory(raw)), ".json"),
        (EncodedImage(KEY, Memory(raw), "jpeg"), ".jpg"), (EncodedImage(KEY, Memory(raw), "png"), ".png"),
    ):
        assert file_bytes(content, suffix) == raw
    assert file_bytes(Null(KEY), ".null") == b""


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
    for found, row in zip(shown, rows, strict=True):
        value = json.loads(found)
        try:
            original = json.loads(row.decode())
        except (ValueError, RecursionError):
            assert value == row.decode("utf-8", "replace")
            continue
        if row in (b"NaN", b'{"a": 1, "a": 2}'):  # lenient parsers take them
            assert value == row.decode()
        else:
            assert value == original
            assert b"\n" in row or found == row.strip()


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

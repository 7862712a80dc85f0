"""Generated JSON: strict, in order, and bounded."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import Blob, Document, EncodedImage, Json, Memory, Null, Scalar, Text
from glassfs.errors import Damaged, TooLarge
from glassfs.view import data_of
from glassfs.view.json import AT_ONCE, LIMIT, line, render
from tests.view.views import KEY, PLACE, file_bytes

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
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="64 MiB"):
            render(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LIMIT * 5 // 4


@pytest.mark.slow
@pytest.mark.parametrize("value", [
    "aé€😀\0\udc80\"" * 4 * AT_ONCE, "aé€😀\0\"".encode() * 4 * AT_ONCE, b"\xf0\x9f\x98" * 4 * AT_ONCE,
    b"a" * (AT_ONCE - 1) + b"\xc3\xa9",
], ids=["text", "bytes", "cut characters", "a character across pieces"])
def test_long_strings_are_written_as_short_ones(value: str | bytes) -> None:
    """In whatever pieces; and with little more memory than the text."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value.replace("\udc80", "\ufffd")
    expected = json.dumps(text, ensure_ascii=False).encode()
    tracemalloc.start()
    try:
        shown = line(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shown == expected
    assert peak < len(expected) * 5 // 4 + 64 * AT_ONCE
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

"""The text form of iKv documents: values, recognition, damage and hostile text."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writers.ikv import text

from glassfs.errors import GlassfsError, Refused
from glassfs.formats.ikv import FORMAT
from glassfs.formats.registry import HEAD, Head
from tests.formats.ikv_files import document_of, members_of, root_of, value_of, values
from tests.helpers import open_bytes, open_path


def value(members: str | bytes) -> Any:
    """The document of these members in braces, after a version and a name."""
    return document_of(open_bytes(b'ikv2 "t" {' + (members if isinstance(members, bytes) else members.encode()) + b"}"))


@pytest.mark.parametrize(("word", "expected"), [
    ("true", True), ("True", "True"), ("null", None), ("7", 7), ("+7", 7), ("-007", -7), ("1e3", 1000.0),
    ("5.", 5.0), (".5", 0.5), ("-0.0", -0.0), ("1e999", math.inf), (".", "."), ("e", "e"), ("1.2.3", "1.2.3"),
    ("1_0", "1_0"), ("nan", "nan"), ("inf", "inf"), ("0x1F", "0x1F"), ("-", "-"), ("a#b//c", "a#b//c"),
    ("http://x", "http://x"),
    (str(2**63 - 1), 2**63 - 1), (str(-(2**63)), -(2**63)), (str(2**63), str(2**63)), ("9" * 5000, "9" * 5000),
    ("0" * 5000 + "1", 1), ("\u0663", "\u0663"),
])
def test_bare_words(word: str, expected: Any) -> None:
    found = value(f'"k" {word}')["k"]
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(("written", "expected"), [
    (rb"\\n", rb"\n"), (rb"\n\r\t\"", b'\n\r\t"'), (rb"\\\"", rb"\""), (rb"\q\u0041\x", rb"\q\u0041\x"),
    (rb"\\\\\\", rb"\\" + b"\\"), (rb"\\\n", b"\\\n"), (b"#//", b"#//"), (b"line\nline", b"line\nline"),
    (b"\\\\" * 70_000 + b"\\n", b"\\" * 70_000 + b"\n"),
    (b"x" + b"\\\\" * 70_000 + b"\\n", b"x" + b"\\" * 70_000 + b"\n"),
])
def test_escapes(written: bytes, expected: bytes) -> None:
    assert value(b'"k" "' + written + b'"') == {"k": expected.decode()}


@pytest.mark.parametrize(("items", "dtype", "expected"), [
    ("1 2, -3,", "<i8", [1, 2, -3]), ("1.5 2e0", "<f8", [1.5, 2.0]), ("true false", "|b1", [True, False]),
    (" ".join(map(str, range(5000))), "<i8", list(range(5000))),
])
def test_arrays_of_one_type_of_number_are_arrays(items: str, dtype: str, expected: list[Any]) -> None:
    array = members_of(root_of(open_bytes(f'ikv1 t {{ "a" [{items}] "b" 1 }}'.encode())))[b"a"]
    assert array.dtype == dtype
    assert value_of(array) == expected


@pytest.mark.parametrize(("items", "expected"), [
    ("", []), ("1 2.0", [1, 2.0]), ("1 null", [1, None]), ('"a" b', ["a", "b"]), ("[1] []", [[1], []]),
    ('{"k" [1 2]} {}', [{"k": [1, 2]}, {}]), ("null null", [None, None]), ('1 "1"', [1, "1"]),
])
def test_other_arrays_are_documents(items: str, expected: list[Any]) -> None:
    found = members_of(root_of(open_bytes(f'ikv1 t {{ "a" [{items}] }}'.encode())))[b"a"].value()
    assert (found, list(map(type, found))) == (expected, list(map(type, expected)))


def test_comments_and_commas_may_stand_between_tokens() -> None:
    assert value('# one\n"a" // two\n 1 , # three\r\n "b"[ # four\n 1,//five\n2 ],') == {"a": 1, "b": [1, 2]}


@pytest.mark.parametrize(("members", "line"), [
    ("\n,", 2), ('"a"\n,1', 2), ('"a" 1,,', 1), ('"a" [,]', 1), ('"a" \n\n}', 3), ("a 1", 1), ('"a" 1 2', 1),
    ('"a" ]', 1), ('"a" [1}', 1), ('"a" {"b"}', 1), ("}", 1), ('"a" 1 }\n{', 2),
])
def test_what_is_no_document_is_refused_with_its_line(members: str, line: int) -> None:
    data = b'ikv2 "t" {' + members.encode() + b"}"
    with pytest.raises(Refused, match=rf"made: is not a valid iKv text: line {line} "):
        open_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("members", [
    b'"a" "' + b"\\" * 2_000_000, b'"a" "' + b'\\"' * 1_000_000 + b'"', b"# \n" * 500_000, b"//" * 1_000_000,
    b'"a" ' + b"[" * 2_000_000, b'"a" ' + b"9" * 2_000_000 + b".5", b'"a" [' + b"{}" * 300_000 + b"]",
    b'"a" [' + (b"[" * 250 + b"]" * 250) * 1000 + b"]", b" " * 2_000_000 + b'"',
], ids=["backslashes", "quotes", "comments", "slashes", "brackets", "digits", "objects", "nested", "spaces"])
def test_long_text_takes_linear_time(members: bytes) -> None:
    """Quadratic time would run into the time limit of tests."""
    with contextlib.suppress(Refused):
        value(members)


@pytest.mark.parametrize("tail", ["", '"a"', '"a" "b', '"a" [1 2', '"a" {', '"a" 1 # {'])
def test_a_text_that_ends_too_early_is_refused(tail: str) -> None:
    with pytest.raises(Refused, match="is a truncated iKv text"):
        open_bytes(b'ikv2 "t" {' + tail.encode())


def test_depth_limit() -> None:
    deepest = "[" * 255 + "]" * 255
    assert value(f'"a" {deepest}') != {}
    with pytest.raises(Refused, match="nested more than 256"):
        open_bytes(b'ikv2 t {"a" ' + b"[" * 256)


def test_too_much_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.ikv"
    path.write_bytes(b"ikv2 t {" + b"\n" * (2 << 20) + b"}")
    with pytest.raises(Refused, match=r"of memory or more for the text and its nodes, and 8.0M are allowed"):
        open_path(path, budget=1 << 20)
    assert document_of(open_path(path)) == {}


def test_text_documents_show_no_offsets() -> None:
    members = members_of(root_of(open_bytes(b'ikv1 t { "a" [1 2] "b" "text" }')))
    assert set(members[b"a"].attributes()) == {"dtype", "shape"}
    assert members[b"b"].attributes() == {}


RECOGNISED = [b"ikv1 a {}", b'ikv2"a"{', b'\n // saved\n ikv2 "a b" # name\n {', b'ikv2 "a" { "k" "\x1b" }']
ONLY_BY_NAME = [
    b'{ "a" 1 }', b'{"a" [1, 2] "b"', b'"a" { "b" null "c" { "d" "e" } }', b'# saved\n{ "a" 1.5 }', b"{}",
    b'{"a" 1 "b" "' + b"x" * 5000,
]
NOT_RECOGNISED = [
    b"", b"{", b"[]", b"ikv2", b"ikv2 words", b"ikv2 is a format", b"ikv3 a {}", b"IKV2 a {}", b"ikv2 a [1]", b"iKv",
    b'{"a" : [1, 2]}', b'["a", 1]', b'"name","age"\n"x","y"\n', b"# comment\nimport os\n",
    b'"Yes," he said.\n', b'{"a" 1}\0\0', b'{"a" 1} tail', b'{"' + b"a" * 5000,
]


@pytest.mark.parametrize("is_named", [False, True])
def test_version_or_name_and_validity_decide(is_named: bool) -> None:
    def is_recognised(head: bytes) -> bool:
        whole = head if head.endswith((b"}", b"]")) or head in NOT_RECOGNISED else head + b" " * HEAD
        return FORMAT.recognises(Head(whole[:HEAD], "a.IKV" if is_named else "a"))

    assert all(map(is_recognised, RECOGNISED))
    assert [is_recognised(head) for head in ONLY_BY_NAME] == [is_named] * len(ONLY_BY_NAME)
    wrong = [head for head in NOT_RECOGNISED if is_recognised(head)]
    assert wrong == ([NOT_RECOGNISED[-1]] if is_named else [])  # the first bytes of it are valid


FINITE = values(st.floats(allow_nan=False, allow_infinity=False))


@given(st.dictionaries(st.text(max_size=10), FINITE, max_size=6), st.text(max_size=5))
def test_what_is_written_is_read(found: dict[str, Any], root_name: str) -> None:
    container = open_bytes(text(found, root_name))
    assert document_of(container) == found
    assert repr(document_of(container)) == repr(found)
    assert root_of(container).key.decode() == root_name


@settings(max_examples=300)
@given(st.lists(st.sampled_from([*b'{}[],"\\#/\n \t\xff\0', b'"k" ', b"1", b"-2.5", b"true", b"null", b"ikv1 "])))
def test_hostile_text(pieces: list[int | bytes]) -> None:
    raw = b"".join(piece if isinstance(piece, bytes) else bytes((piece,)) for piece in pieces)
    for head in (b"", b'ikv2 "t" {', b"{"):
        try:
            container = open_bytes(head + raw)
            assert value_of(root_of(container)) == document_of(container)
        except GlassfsError:
            continue

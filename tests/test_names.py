"""Names as path components: total, injective, and short enough, against a second implementation of the rule."""

from __future__ import annotations

import re
from itertools import count

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from glassfs.names import component, free_name, shortened

PIECES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b"%", b"/", b"\0", b"\x1f", b"\x7f", b".", b"..", b"%2E", b"%41", b"~2", b" "]),
    st.text(max_size=3).map(str.encode), st.sampled_from(["é", "e\u0301", "😀", "日本"]).map(str.encode),
)
NAMES = st.lists(PIECES, max_size=8).map(b"".join)
LONG_NAMES = st.tuples(PIECES.filter(bool), st.integers(60, 300), PIECES).map(lambda part: part[0] * part[1] + part[2])
TAILS = st.sampled_from(["", ".npy", ".json", "~2.npy", ".offset_minutes.npy", "~123.jsonl"])


def rule(name: bytes) -> str:
    """Escape byte by byte, as docs/manual/contents.md says."""
    if name == b"":
        return "%"
    if name in (b".", b".."):
        return name.decode().replace(".", "%2E")
    shown = ""
    position = 0
    while position < len(name):
        for size in (1, 2, 3, 4):
            try:
                character = name[position : position + size].decode()
                break
            except UnicodeDecodeError:
                continue
        else:
            character = ""
        if not character or character in "%/" or ord(character) < 0x20 or ord(character) == 0x7F:
            shown += f"%{name[position]:02X}"
            position += 1
        else:
            shown += character
            position += size
    return shown


def unescaped(shown: str) -> bytes:
    if shown == "%":
        return b""
    return re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), shown.encode())


@given(st.one_of(NAMES, LONG_NAMES), TAILS)
def test_every_name_is_a_component(name: bytes, tail: str) -> None:
    shown = component(name, tail)
    raw = shown.encode()
    assert 0 < len(raw) <= 255
    assert shown not in (".", "..")
    assert not set(shown) & {"/", "\0"}
    assert shown.endswith(tail)
    assert not re.search("[\x00-\x1f\x7f\ud800-\udfff]", shown)


@given(st.one_of(NAMES, LONG_NAMES), TAILS)
def test_names_are_escaped_reversibly_and_long_ones_cut_and_hashed(name: bytes, tail: str) -> None:
    whole, shown = rule(name), component(name, tail)
    if len((whole + tail).encode()) <= 255:
        assert shown == whole + tail and unescaped(whole) == name
        return
    mark = f"~{xxhash.xxh64(name, seed=0).hexdigest()}{tail}"
    assert shown.endswith(mark)
    kept = shown.removesuffix(mark)
    assert whole.startswith(kept)
    assert not re.search("%[0-9A-F]?$", kept)
    # One character, or one %XX, more would not fit.
    following = re.match(r"%[0-9A-F]{2}|.", whole[len(kept) :], re.DOTALL)
    assert following is not None
    assert len((kept + following[0] + shown[len(kept) :]).encode()) > 255


@given(st.lists(st.one_of(NAMES, LONG_NAMES), unique=True, max_size=12), TAILS)
def test_different_names_stay_different(names: list[bytes], tail: str) -> None:
    assert len({component(name, tail) for name in names}) == len(names)


@pytest.mark.parametrize(("name", "tail", "shown"), [
    (b"", "", "%"), (b".", "", "%2E"), (b"..", "", "%2E%2E"), (b"...", "", "..."), (b"a\nb/%2F", "", "a%0Ab%2F%252F"),
    ("e\u0301".encode(), "", "e\u0301"), (b"\xe9\xa9", "", "%E9%A9"), (b"\xed\xa0\x80", "", "%ED%A0%80"),
    (b"\xc0\xaf", "", "%C0%AF"), (b"\xff" * 85, "", "%FF" * 85), (b"x" * 251, ".npy", "x" * 251 + ".npy"),
    (b"x" * 252, ".npy", "x" * 234 + "~" + xxhash.xxh64_hexdigest(b"x" * 252) + ".npy"),
])
def test_examples(name: bytes, tail: str, shown: str) -> None:
    assert component(name, tail) == shown


def test_taken_names_get_the_first_free_number() -> None:
    taken = {"a", "a~2"}
    assert free_name("b", taken.__contains__, "b".__add__) == "b"
    assert free_name("a", taken.__contains__, "a".__add__) == "a~3"
    numbers = count(2)
    assert [free_name("a", taken.__contains__, "a".__add__, numbers) for _ in range(2)] == ["a~3", "a~4"]


@given(st.one_of(NAMES, LONG_NAMES))
def test_shortened_names_have_the_same_component(name: bytes) -> None:
    short = shortened(name)
    assert len(short) <= 255 and component(short) == component(name)
    assert short == name or len(name) > 255

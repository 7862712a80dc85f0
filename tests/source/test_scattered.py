"""Test spans of a buffer: only they are filled, with and without the system call."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.source import SEGMENTS, Scattered, Spans, scattered, total
from glassfs.source.local import LocalStore

CONTENT = bytes(range(256)) * 8
PLACES = [(2, 3), (7, 0), (7, 5), (20, 1)]


@pytest.fixture
def number(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    number = os.open(path, os.O_RDONLY)
    yield number
    os.close(number)


def test_spans_are_a_sequence_of_views() -> None:
    buffer = memoryview(bytearray(range(30)))
    places = Scattered(buffer, Spans(PLACES))
    assert [bytes(place) for place in places] == [bytes(range(start, start + size)) for start, size in PLACES]
    assert [bytes(place) for place in places[1:3]] == [b"", bytes(range(7, 12))]
    assert bytes(places[-1]) == bytes([20])
    assert (len(places), total(places), total(list(places))) == (4, 9, 9)
    places[0][:] = b"abc"
    assert bytes(buffer[1:6]) == b"\1abc\5"
    with pytest.raises(IndexError):
        places[4]


@pytest.mark.parametrize("spans", [[(0, 31)], [(30, 1)], [(0, 1), (29, 2)], [(29, 2), (0, 1)], [(1 << 63, 1)]])
def test_spans_outside_a_buffer_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="not in the buffer"):
        Scattered(memoryview(bytearray(30)), Spans(spans))


@pytest.mark.parametrize("spans", [[(-1, 2)], [(3, -1)], [(1 << 64, 1)]])
def test_negative_and_huge_numbers_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(OverflowError):
        Spans(spans)


@pytest.mark.skipif(sys.platform != "linux" or sys.maxsize < 1 << 62, reason="has no such call")
class TestSystemCall:
    def test_one_read_fills_the_spans_of_any_buffer(self, number: int) -> None:
        spans = Spans(PLACES)
        for offset in range(20):  # a buffer may have the address of an earlier one
            buffer = bytearray(25 + offset)
            assert Scattered(memoryview(buffer)[offset:], spans).read(number, offset)
            found = CONTENT[offset : offset + 9]
            assert buffer == bytes(offset + 2) + found[:3] + bytes(2) + found[3:8] + bytes(8) + found[8:] + bytes(4)

    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=50))
    @settings(deadline=None)
    def test_nothing_is_written_between_spans(self, gaps_and_sizes: list[tuple[int, int]]) -> None:
        spans, expected = [], bytearray()
        for gap, size in gaps_and_sizes:
            spans.append((len(expected) + gap, size))
            expected += b"-" * gap + bytes(size)
        buffer = bytearray(b"-" * len(expected))
        with open("/dev/zero", "rb") as zeros:
            assert Scattered(memoryview(buffer), Spans(spans)).read(zeros.fileno(), 0) == any(size for _, size in spans)
        assert buffer == expected

    @pytest.mark.parametrize("offset", [len(CONTENT) - 8, len(CONTENT), -1, 1 << 62, 1 << 63, 1 << 64, 1 << 70])
    def test_reads_that_cannot_fill_all_spans_fail(self, number: int, offset: int) -> None:
        assert not Scattered(memoryview(bytearray(30)), Spans(PLACES)).read(number, offset)
        assert not Scattered(memoryview(bytearray(30)), Spans(PLACES)).read(-1, 0)

    @pytest.mark.parametrize("count", [0, SEGMENTS + 1])
    def test_no_span_and_too_many_spans_fail(self, number: int, count: int) -> None:
        places = Scattered(memoryview(bytearray(2 * count)), Spans((2 * place, 1) for place in range(count)))
        assert not places.read(number, 0)

    def test_read_only_buffers_are_not_written(self, number: int) -> None:
        buffer = bytes(30)
        with pytest.raises(TypeError):
            Scattered(memoryview(buffer), Spans(PLACES)).read(number, 0)
        assert buffer == bytes(30)


def test_spans_are_filled_without_the_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT)
    source = LocalStore(tmp_path).open(("file.bin",))
    filled = []
    for call in (scattered._preadv, None):
        monkeypatch.setattr(scattered, "_preadv", call)
        buffer = bytearray(30)
        source.scatter(Scattered(memoryview(buffer), Spans(PLACES)), 100)
        filled.append(buffer)
    assert filled[0] == filled[1]
    assert filled[0][7:12] == CONTENT[103:108]

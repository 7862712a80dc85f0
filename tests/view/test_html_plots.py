"""The values on the page of an episode: sizes from lengths alone, and points that show what the steps have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Counted, Unreadable, Zeros
from glassfs.errors import Damaged
from glassfs.view.html import plots
from tests.view.pages import column, files, plotted, recording
from tests.view.views import Noted, whole

DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")


def data_of(*columns: Column, rows: int) -> bytes:
    return whole(lambda: files(recording({}, columns, rows))["data.js"])


@given(st.sampled_from(DTYPES), st.integers(1, 9000), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=60)
def test_points(dtype: str, rows: int, channels: int, seed: int) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, rows * channels * np.dtype(dtype).itemsize, np.uint8)
    array = (raw & 1 if dtype == "|b1" else raw).view(dtype).reshape(rows, channels)
    told, (points,) = plotted(data_of(column(b"values", array), rows=rows))
    (shown,) = told["columns"]
    assert points is not None and points.shape[1] <= plots.POINTS
    with np.errstate(invalid="ignore"):
        expected: Any = array.astype(points.dtype)
    if rows <= plots.POINTS:
        np.testing.assert_array_equal(points, expected.T)
        return
    stretch = shown["stretch"]
    assert shown["taken"] == stretch
    for number in range(0, points.shape[1] // 2, 37):
        part = expected[number * stretch : (number + 1) * stretch]
        np.testing.assert_array_equal(points[:, 2 * number], np.fmin.reduce(part))
        np.testing.assert_array_equal(points[:, 2 * number + 1], np.fmax.reduce(part))


def test_large_integers_stay_distinct() -> None:
    ticks = np.arange(50, dtype="<i8") * 33_000_000 + 1_700_000_000_000_000_000
    _, (points,) = plotted(data_of(column(b"ticks", ticks), rows=50))
    assert points is not None and len(set(points[0])) == 50


def test_size_reads_no_values() -> None:
    state, reward = Noted(4 * 7 * 100_000), Noted(4 * 100_000)
    columns = [
        column(b"state", np.empty((100_000, 7), "<f4"), state), column(b"reward", np.empty(100_000, "<f4"), reward),
    ]
    data = files(recording({}, columns, 100_000))["data.js"]
    assert data.size > 4 * 8 * plots.POINTS
    head = data.read(0, 100)
    assert head.startswith(b'"use strict";\nglassfs.columns({')
    assert not state.read_ranges and not reward.read_ranges
    data.read(data.size - 10, 10)
    assert reward.read_ranges and not state.read_ranges


def test_only_some_of_very_many_bytes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "MOST_READ", 1 << 20)
    noted = Noted(4 * 1000 * 4_000_000_000)
    array = Array(b"x", noted, "<f4", (4_000_000_000, 1000))
    told, (points,) = plotted(bytes(files(recording({}, [Column(b"x", array)], 4_000_000_000))["data.js"].whole()))
    (shown,) = told["columns"]
    assert points is not None and points.shape == (plots.MOST_CHANNELS // 2, plots.POINTS)
    assert shown["taken"] < shown["stretch"] == 4_000_000
    assert noted.bytes_read <= 2 << 20
    assert told["leftOut"] == 1000 - plots.MOST_CHANNELS // 2


def test_read_limit_covers_all_columns_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "MOST_READ", 1 << 20)
    many = [Noted(4 * 1_000_000) for _ in range(8)]
    columns = [Column(b"x", Array(b"x", noted, "<f4", (1_000_000,))) for noted in many]
    files(recording({}, columns, 1_000_000))["data.js"].whole()
    assert 0 < sum(noted.bytes_read for noted in many) <= 1 << 20


def test_channels_are_limited() -> None:
    columns = [column(b"c%d" % number, np.zeros((10, 60), "<f4")) for number in range(6)]
    told, points = plotted(data_of(*columns, rows=10))
    assert [shown["channels"] for shown in told["columns"]] == [60, 60, 60, 60, 16]
    assert told["leftOut"] == 44 + 60 and len(points) == 5


def test_only_numbers_are_plotted() -> None:
    video = np.zeros((4, 8, 8, 3), "u1")
    columns = [
        Column(b"frame", Array(b"frame", Counted(4), "<i8", (4,))), column(b"film", video),
        column(b"when", np.zeros(4, "<M8[s]")), column(b"complex", np.zeros(4, "<c8")),
        column(b"none", np.zeros((4, 0), "<f4")), column(b"other", np.zeros(5, "<f4")),
        column(b"good", np.zeros((4, 2, 3), "<f4")),
    ]
    told, _ = plotted(data_of(*columns, rows=4))
    assert [(shown["name"], shown["items"]) for shown in told["columns"]] == [("good", 6)]
    told, _ = plotted(data_of(rows=0))
    assert told["columns"] == []


def test_damaged_column_leaves_others_readable() -> None:
    bad = Unreadable(400, Damaged("is cut"))
    good = np.ones(100, "<f4")
    columns = [column(b"a", good), column(b"b", good, bad), column(b"c", good)]
    _, points = plotted(data_of(*columns, rows=100))
    assert [shown is None for shown in points] == [False, True, False]


def test_names_are_values() -> None:
    name = '"</script>\u2028'.encode() + b"\xff" * 1000
    told, _ = plotted(data_of(column(name, np.zeros(3, "<f4")), rows=3))
    assert told["columns"][0]["name"] == '"</script>\u2028' + "\ufffd" * 189 + "…"


def test_values_take_no_memory_beyond_the_cache() -> None:
    cache = BlockCache(2 << 20)
    columns = [
        Column(b"c%d" % number, Array(b"", Zeros(8 * 64 * 50_000), "<f8", (50_000, 64))) for number in range(4)
    ]
    data = files(recording({}, columns, 50_000), cache)["data.js"]
    assert sum(map(len, data.pieces())) == data.size
    assert cache.used <= cache.budget

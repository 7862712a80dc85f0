"""Statistics of features: against NumPy, and however values are divided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from glassfs.cache import BlockCache
from glassfs.content import Table
from glassfs.errors import TooLarge
from glassfs.view.lerobot import statistics
from glassfs.view.lerobot.dataset import NumberFeature, Plan
from glassfs.view.lerobot.statistics import NAMES, EpisodeStatistics, Pictures, Statistics, aggregate, of_numbers
from tests.view.views import PLACE

Values = np.ndarray[Any, Any]
MOMENTS = ("min", "max", "mean", "std")
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}

shapes = hnp.array_shapes(min_dims=2, max_dims=2, max_side=40)
finite = st.floats(-1e6, 1e6, width=32)
numbers = st.one_of(
    hnp.arrays(np.float32, shapes, elements=finite), hnp.arrays(np.float64, shapes, elements=finite),
    hnp.arrays(np.int64, shapes, elements=st.integers(-(10**9), 10**9)), hnp.arrays(np.bool_, shapes),
)

threes = hnp.arrays(np.float64, st.tuples(st.integers(1, 20), st.just(3)), elements=finite)


def named(found: Statistics) -> dict[str, Values]:
    return dict(zip(NAMES, found.values, strict=True))


def of(values: Values) -> dict[str, Values]:
    return named(of_numbers([values], len(values)))


@settings(max_examples=200)
@given(numbers)
def test_statistics_are_those_of_numpy(values: Values) -> None:
    found, wide = of(values), values.astype(np.float64)
    assert found["min"].tolist() == wide.min(0).tolist()
    assert found["max"].tolist() == wide.max(0).tolist()
    near = 1e-12 * np.abs(wide).max()
    np.testing.assert_allclose(found["mean"], wide.mean(0), 1e-12, near)
    np.testing.assert_allclose(found["std"], wide.std(0), 1e-9, near)
    for name, quantile in QUANTILES.items():
        assert found[name].tolist() == np.quantile(wide, quantile, axis=0, method="inverted_cdf").tolist()


@settings(max_examples=200)
@given(numbers, st.lists(st.integers(0, 40), max_size=4))
def test_chunks_change_only_rounding(values: Values, cuts: list[int]) -> None:
    found, whole = named(of_numbers(np.split(values, sorted(cuts)), len(values))), of(values)
    near = 1e-12 * np.abs(values.astype(np.float64)).max()
    for name in NAMES:
        np.testing.assert_allclose(found[name], whole[name], 1e-9, near, err_msg=name)


def test_quantiles_of_very_many_rows_are_those_of_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(2000, dtype=np.float64).reshape(-1, 1)
    monkeypatch.setattr(statistics, "MOST_BYTES", 8 * 1000)
    for parts in (1, 7):
        found = named(of_numbers(np.array_split(values, parts), len(values)))
        assert (found["min"], found["max"]) == (0, 1999)
        np.testing.assert_allclose(found["mean"], 999.5)
        for name, quantile in QUANTILES.items():
            np.testing.assert_allclose(found[name], 2000 * quantile, atol=3)


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i8", "|b1"])
@pytest.mark.parametrize("value", [0, 1, 0.1, -1e-5, 12345.678])
def test_a_constant_has_no_deviation(value: float, dtype: str) -> None:
    values = np.full((1000, 2), value, dtype)
    found, constant = of(values), float(values[0, 0])
    assert (found["mean"] == constant).all()
    assert (found["std"] == 0).all()
    for name in QUANTILES:
        assert (found[name] == constant).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_does_not_count(value: float) -> None:
    values = np.random.default_rng(1).standard_normal((50, 3)).astype(np.float32)
    whole = of(values)
    values[9, 1] = value
    found = of(values)
    others = of(np.delete(values, 9, 0))
    for name in NAMES:
        assert found[name][[0, 2]].tolist() == whole[name][[0, 2]].tolist()
        np.testing.assert_allclose(found[name][1], others[name][1], 1e-6, err_msg=name)
    for rows in (1, 2):
        assert (of(np.full((rows, 2), value, np.float32))["mean"] == 0).all()


@settings(max_examples=100)
@given(st.lists(threes, min_size=1, max_size=6))
def test_moments_of_an_aggregate_are_those_of_all_rows(parts: list[Values]) -> None:
    found = aggregate([of_numbers([part], len(part)) for part in parts])
    rows = np.concatenate(parts)
    assert found.samples == len(rows)
    near = 1e-9 * np.abs(rows).max()
    for name in MOMENTS:
        np.testing.assert_allclose(named(found)[name], getattr(rows, name)(0), 1e-9, near, err_msg=name)


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3), st.integers(0, 9))
def test_pictures_are_their_pixels(height: int, width: int, count: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)
    pictures = Pictures()
    for one in pixels:
        pictures.add(Image.fromarray(one))
    found, flat = pictures.statistics(), pixels.reshape(-1, 3) / 255
    assert found.samples == count
    for name in MOMENTS:
        np.testing.assert_allclose(named(found)[name], getattr(flat, name)(0), 1e-9, 1e-12, err_msg=name)
    for name, quantile in QUANTILES.items():
        assert named(found)[name].tolist() == np.quantile(flat, quantile, axis=0, method="inverted_cdf").tolist()


@pytest.mark.parametrize(("width", "height", "step"), [(299, 299, 1), (300, 10, 2), (640, 480, 4), (480, 640, 4)])
def test_large_pictures_are_sampled(width: int, height: int, step: int) -> None:
    assert statistics.stride(width, height) == step
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[::step, ::step] = 255
    pictures = Pictures()
    pictures.add(Image.fromarray(pixels))
    assert (pictures.statistics().values[:3] == 1).all()


@pytest.mark.parametrize(("width", "height"), [(1, 1), (64, 48), (640, 480), (301, 977)])
def test_gray_pictures_weigh_as_much_as_others(width: int, height: int) -> None:
    made, counted = Pictures(), Pictures()
    for pictures in (made, counted):
        pictures.add(Image.new("RGB", (width, height), (0, 255, 7)))
    made.add(Image.new("RGB", (width, height), (statistics.GRAY,) * 3))
    counted.add_gray(width, height)
    assert made.statistics().samples == counted.statistics().samples
    assert made.statistics().values.tobytes() == counted.statistics().values.tobytes()


def test_file_of_too_many_dimensions_is_refused() -> None:
    plan = Plan((NumberFeature("action", "<f4", 1 << 20, ()),), (), ())
    dataset: Any = SimpleNamespace(plan=plan, episodes=1)
    found = EpisodeStatistics(Table(b"episodes", 1, list), dataset, BlockCache(), PLACE)
    with pytest.raises(TooLarge, match="too many"):
        found.as_json()

"""Narrow floats widened to float32: every value, against ml_dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from glassfs.content import Memory
from glassfs.content.dtypes import BFLOAT16, NARROW, widened
from tests.optional import package


@pytest.mark.parametrize("kind", NARROW)
def test_every_value_is_that_of_ml_dtypes(kind: str) -> None:
    dtype = np.dtype(getattr(package("ml_dtypes"), kind))
    assert dtype.itemsize == NARROW[kind]
    stored = np.arange(256**dtype.itemsize, dtype=f"<u{dtype.itemsize}")
    expected = stored.view(dtype).astype("<f4")
    data = widened(Memory(stored.tobytes()), kind)
    assert data.size == expected.nbytes
    assert data.whole() == expected.tobytes()  # bit for bit, those of NaNs included


@pytest.mark.parametrize(("kind", "stored", "values"), [
    (BFLOAT16, b"\x80\x3f\x00\xc0\x80\x7f", [1.0, -2.0, np.inf]),
    ("float8_e4m3fn", b"\x38\xc0\x7e\x01\x80", [1.0, -2.0, 448.0, 2.0**-9, -0.0]),
    ("float8_e5m2", b"\x3c\xc0\x7c\x01\xfc", [1.0, -2.0, np.inf, 2.0**-16, -np.inf]),
    ("float8_e8m0fnu", b"\x7f\x80\x00\xfe", [1.0, 2.0, 2.0**-127, 2.0**127]),
])
def test_known_values(kind: str, stored: bytes, values: list[float]) -> None:
    found = np.frombuffer(widened(Memory(stored), kind).whole(), "<f4")
    assert found.tobytes() == np.array(values, "<f4").tobytes()


@pytest.mark.parametrize("kind", NARROW)
def test_any_range_can_be_read(kind: str) -> None:
    data = widened(Memory(bytes(range(256)) * 3 + b"x" * (NARROW[kind] - 1)), kind)
    whole = data.whole()
    assert len(whole) == 4 * (768 // NARROW[kind])
    for start, end in ((0, 1), (3, 9), (100, 102), (5, len(whole)), (len(whole) - 1, len(whole))):
        assert data.read(start, end - start) == whole[start:end]

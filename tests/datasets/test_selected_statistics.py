"""Statistics of LeRobot that are kept of all episodes serve selections of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.kinodb import KinoWriter

import glassfs
from glassfs.errors import DeviceFailed, GlassfsError
from glassfs.view.lerobot import statistics


def test_statistics_of_episodes_serve_each_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found of all episodes is not decoded again for some of them, but for others of their steps."""
    path = tmp_path / "data/a.kdb"
    path.parent.mkdir()
    with KinoWriter(path, created=0) as writer:
        for number in range(4):
            writer.add_episode(np.ones((6, 2)), np.ones((6, 1)), success=bool(number % 2))
    os.utime(path, (1e9, 1e9))

    def found(**words: Any) -> dict[str, Any]:
        with glassfs.open(tmp_path / "data", views="lerobot", **words) as data:
            (stats,) = data.glob("lerobot/*/meta/stats.json")
            return dict(json.loads(stats.bytes()))

    assert found()["action"]["count"] == [4 * 6]
    with monkeypatch.context() as context:
        context.setattr(statistics, "_of_episode", fail)
        assert found(where="success")["action"]["count"] == [2 * 6]
        with pytest.raises(GlassfsError):
            found(trim="1:")
    assert found(trim="1:")["action"]["count"] == [4 * 5]


def fail(*_: object) -> Iterator[Any]:
    raise DeviceFailed("was decoded again")

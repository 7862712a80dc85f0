"""LeRobot's own reader: of ``lerobot``, or of ``lerobot-dataset``, which has the same modules under another name."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from typing import Any

import pytest

NAMES = ("lerobot", "ledataset")
PACKAGE = next((name for name in NAMES if importlib.util.find_spec(name) is not None), None)


def require() -> None:
    """Skip the tests of the module that calls this if LeRobot is not installed."""
    if PACKAGE is None:
        pytest.skip("LeRobot is not installed: scripts/lerobot-test runs these tests", allow_module_level=True)


def module(name: str) -> Any:
    """Import and return a module of LeRobot."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def dataset_class() -> Any:
    return module("datasets.lerobot_dataset").LeRobotDataset


def statistics() -> Any:
    return module("datasets.compute_stats")


def tools() -> Any:
    """Return the module that deletes, splits and merges; in ``lerobot-dataset`` it imports one by its other name."""
    found = module("datasets.dataset_tools")
    sys.modules.setdefault("lerobot.datasets.utils", module("datasets.utils"))
    sys.modules.setdefault("lerobot.datasets", module("datasets"))
    sys.modules.setdefault("lerobot", importlib.import_module(str(PACKAGE)))
    return found


def close_videos() -> None:
    """Close all videos that this process has read: LeRobot keeps decoders by path for the next dataset."""
    module("datasets.video_utils")._default_decoder_cache.clear()
    gc.collect()

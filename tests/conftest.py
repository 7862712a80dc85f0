"""What all tests share: the writers in scripts/ on the path, and the shared samples where they are there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

SHARED = Path(os.environ.get("GLASSFS_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of sample containers with expected values; skips where it is not there."""
    place = SHARED / "samples"
    if not place.is_dir():
        pytest.skip("the shared samples are not beside this checkout")
    return place


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small container."""
    from writers.kastore import KastoreWriter

    path = tmp_path / "some.kas"
    with KastoreWriter(path) as writer:
        writer.add("array", [1.0, 2.0])
    return path

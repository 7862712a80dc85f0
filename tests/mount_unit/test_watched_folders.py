"""Changes in folders reach the kernel; names that cannot be watched have short timeouts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs.datasets.joined import open_sources
from glassfs.mount.inodes import ROOT
from glassfs.settings import settings
from tests.mount_unit.kernel import operations_of
from tests.tree.made import made

pytestmark = pytest.mark.usefixtures("made_format")


def test_file_with_a_hard_link_has_a_short_timeout(tmp_path: Path) -> None:
    """Changes made under its other name are not reported to a watch of this folder."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for name in ("alone", "shared"):
        (folder / name).write_bytes(made(a=b"a"))
    os.link(folder / "shared", outside / "other")
    sources = open_sources([str(folder)])
    with sources.tree:
        operations = operations_of(sources)
        if operations.look_up(ROOT, "alone").entry_timeout != settings.cached:
            pytest.skip("folders cannot be watched here")
        assert operations.look_up(ROOT, "shared").entry_timeout == settings.cached_unwatched
        os.link(folder / "alone", outside / "another")
        assert operations.look_up(ROOT, "alone").entry_timeout == settings.cached_unwatched

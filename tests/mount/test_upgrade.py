"""A mount goes on when the package that it was started from is upgraded or removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery, check
from tests.mount.test_views import files_below
from tests.waiting import wait_until


@pytest.mark.slow
def test_every_file_is_readable_after_the_package_is_removed(
    mounted: Mounted, gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "packages/glassfs"
    shutil.copytree(ROOT / "src/glassfs", package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "__init__.py").open("a") as file:
        file.write('\n__version__ = "copy"\n')
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    with mounted(gallery.folder, options=["views=all"]) as mount:
        assert mount.status()["version"] == "copy"
        wait_until(lambda: mount.status()["all_code_loaded"])
        shutil.rmtree(package)
        for path, expected in gallery.files.items():
            check(path, expected, (mount.path / path).read_bytes())
        for path in files_below(mount.path):
            place = mount.path / path
            if not place.is_symlink():
                assert len(place.read_bytes()) == os.stat(place).st_size, path
        assert mount.status()["errors"] == 0

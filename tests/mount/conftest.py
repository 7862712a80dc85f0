"""Fixtures of real mounts. Without /dev/fuse tests that mount are skipped, or fail if GLASSFS_REQUIRE_FUSE=1."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.mount.gallery import Gallery, make_gallery
from tests.mount.mounts import Mount, require


class Mounted(Protocol):
    """``with mounted(source, …) as mount`` mounts at a new directory until the end of the block."""

    def __call__(
        self, *sources: Path | str, options: Sequence[str] = (), at: Path | None = None, foreground: bool = False,
    ) -> AbstractContextManager[Mount]: ...


@pytest.fixture(scope="session")
def fuse() -> None:
    """Skip the test if nothing can be mounted here."""
    require()


@pytest.fixture(scope="session")
def mounted(fuse: None, tmp_path_factory: pytest.TempPathFactory) -> Mounted:
    @contextmanager
    def mounting(
        *sources: Path | str, options: Sequence[str] = (), at: Path | None = None, foreground: bool = False,
    ) -> Iterator[Mount]:
        place = tmp_path_factory.mktemp("mount")
        path = at
        if path is None:
            path = place / "mnt"
            path.mkdir()
        mount = Mount(sources, path, place / "log", options, foreground)
        try:
            yield mount
        finally:
            mount.end()

    return mounting


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """A folder with a container of each format, and the expected content of its mount."""
    return make_gallery(tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="session")
def shown(mounted: Mounted, gallery: Gallery) -> Iterator[Mount]:
    """The gallery, mounted for all tests that only read. Blocks over 4 MiB exceed its cache."""
    with mounted(gallery.folder, options=["cache_size=8M"]) as mount:
        yield mount


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="glassfs-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can do this")

"""The tests that fsspec has for what file systems give."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.tests import abstract

from glassfs.filesystem import GlassfsFileSystem


class Filled(GlassfsFileSystem):
    """One whose source is a folder, into which the tests' own scenes are put."""

    def path_of(self, path: str) -> Path:
        return Path(self._shown, self._strip_protocol(path))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # type: ignore[override]
        self.path_of(path).mkdir(parents=True, exist_ok=exist_ok)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:  # type: ignore[override]
        self.makedirs(path)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:  # type: ignore[override]
        self.pipe(path, b"")

    def pipe(self, path: str, value: bytes = b"", **kwargs: Any) -> None:  # type: ignore[override]
        self.path_of(path).parent.mkdir(parents=True, exist_ok=True)
        self.path_of(path).write_bytes(value)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:  # type: ignore[override]
        shutil.rmtree(self.path_of(path))


class TestGlassfs(abstract.AbstractFixtures, abstract.AbstractGetTests):
    @pytest.fixture
    def fs(self, tmp_path: Path) -> Filled:
        (tmp_path / "behind").mkdir()
        return Filled(tmp_path / "behind")

    @pytest.fixture
    def fs_path(self) -> str:
        return "some"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return os.path.join

"""A container that is replaced by rename again and again: fresh openings succeed, and old versions are given up."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from writers.kastore import KastoreWriter

from tests.conftest import Scale
from tests.mount.changing import REFUSALS
from tests.mount.conftest import Mounted
from tests.mount.mounts import Mount
from tests.waiting import wait_until

VERSIONS = 8
MAX_DESCRIPTORS = 40
SECONDS = 5.0
"""Within this time versions are given up that no process uses."""


@pytest.fixture
def versions(tmp_path: Path) -> list[bytes]:
    found = []
    for number in range(VERSIONS):
        with KastoreWriter(tmp_path / "version") as store:
            store.add("array", [float(number)] * 4)
            store.add("inner/array", [float(number)])
        found.append((tmp_path / "version").read_bytes())
    return found


def replace(path: Path, data: bytes) -> None:
    new = path.parent.parent / "new"
    new.write_bytes(data)
    new.rename(path)


def deleted(mount: Mount) -> int:
    """Return the number of deleted files that the daemon has open."""
    return sum("(deleted)" in path for path in mount.open_files())


@pytest.mark.slow
@pytest.mark.parametrize("is_entered", [
    pytest.param(False, id="files", marks=pytest.mark.slow), pytest.param(True, id="folders"),
])
def test_replaced_versions_are_given_up(
    mounted: Mounted, tmp_path: Path, versions: list[bytes], is_entered: bool, scale: Scale,
) -> None:
    """Opening by path right after each replacement succeeds; reading may meet the next version."""
    (tmp_path / "folder").mkdir()
    container = tmp_path / "folder/c.kas"
    container.write_bytes(versions[0])
    with mounted(tmp_path / "folder") as mount:
        shown = mount.path / "c.kas"
        path = shown / "inner/array.npy" if is_entered else shown / "array.npy"
        for number in range(scale(500, 2_000, 20_000)):
            replace(container, versions[number % VERSIONS])
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.read(descriptor, 1 << 10)
            except OSError as error:
                assert error.errno in REFUSALS
            finally:
                os.close(descriptor)
        wait_until(lambda: not deleted(mount), SECONDS, "the end of replaced versions")
        assert mount.descriptors() <= MAX_DESCRIPTORS


def test_version_is_given_up_after_its_last_user(mounted: Mounted, tmp_path: Path, versions: list[bytes]) -> None:
    """A deleted one stays readable for as long as it is open, also deep in it."""
    (tmp_path / "folder").mkdir()
    container = tmp_path / "folder/c.kas"
    container.write_bytes(versions[1])
    with mounted(tmp_path / "folder") as mount:
        path = mount.path / "c.kas/inner/array.npy"
        with path.open("rb") as file:
            container.unlink()
            wait_until(lambda: not path.exists())
            assert file.read().endswith(struct.pack("<d", 1.0))
            assert deleted(mount) == 1
        wait_until(lambda: not deleted(mount), SECONDS, "the end of the deleted version")

"""Containers change while mounted: readers see old bytes, new bytes or an error, never a mix."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter

from tests.conftest import Scale
from tests.mount.changing import (
    GIVEN_UP_SECONDS,
    HEADER,
    LENGTH,
    REFUSALS,
    assert_seen_soon,
    replace,
    shows,
    write,
    write_in_folder,
)
from tests.mount.conftest import Mounted
from tests.mount.mounts import PATIENCE, is_running, opened
from tests.waiting import wait_until

PART = 50_000
LARGE, SMALL = 3_000_000, 1_000_000


def length_of(version: int) -> int:
    """Return alternately large and small lengths, all different."""
    return (LARGE if version % 2 else SMALL) + version


def put(path: Path, version: int) -> None:
    """Replace a container by one with an array of bytes that are all ``version``."""
    beside = path.with_name("beside")
    with KastoreWriter(beside) as store:
        store.add("data", np.full(length_of(version), version, np.uint8))
    beside.replace(path)


def read_part(descriptor: int, size: int, offset: int) -> bytes:
    """Read ``size`` bytes, fewer at the end of the file. The kernel may return cached bytes before an error."""
    data = b""
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


@pytest.mark.slow
@pytest.mark.parametrize("in_folder", [True, False], ids=["in a folder", "alone"])
def test_container_replaced_by_larger_and_smaller_ones(
    mounted: Mounted, scale: Scale, tmp_path: Path, in_folder: bool,
) -> None:
    """A descriptor of each version stays open."""
    path = tmp_path / "folder/changing"
    path.parent.mkdir()
    put(path, 1)
    held: list[tuple[int, int]] = []
    with mounted(path.parent if in_folder else path) as mount:
        shown = mount.path / "changing/data.npy" if in_folder else mount.path / "data.npy"

        def is_seen(version: int) -> bool:
            try:
                with shown.open("rb", buffering=0) as file:
                    size = os.fstat(file.fileno()).st_size
                    last = os.pread(file.fileno(), 100, size - 100)
            except OSError as error:
                assert error.errno in (errno.ESTALE, errno.ENOENT)
                return False
            assert last == last[:1] * 100 and size == HEADER + length_of(last[0])
            return last[0] == version

        try:
            for version in range(2, scale(8, 22, 200)):
                flags = os.O_RDONLY | (os.O_DIRECT if version % 4 < 2 else 0)
                held.append((version - 1, os.open(shown, flags)))
                assert set(os.pread(held[-1][1], 100, HEADER)) == {version - 1}
                put(path, version)
                wait_until(lambda: is_seen(version))  # noqa: B023
                assert shown.read_bytes()[HEADER:] == bytes([version]) * length_of(version)
                for old, descriptor in held:
                    assert_version_or_refused(descriptor, old, length_of(old), (errno.ESTALE,))
            assert is_running(mount.pid)
        finally:
            for _, descriptor in held:
                os.close(descriptor)


def assert_version_or_refused(descriptor: int, version: int, length: int, refusals: tuple[int, ...]) -> None:
    """Check that there is no early end and no byte of another version."""
    size = HEADER + length
    for offset in (HEADER, size // 2, size - PART, size - 1):
        try:
            data = read_part(descriptor, min(PART, size - offset), offset)
        except OSError as error:
            assert error.errno in refusals
        else:
            assert len(data) == min(PART, size - offset)
            assert set(data) <= {version}


@pytest.mark.slow
@pytest.mark.parametrize("is_entered", [
    pytest.param(False, id="files", marks=pytest.mark.slow), pytest.param(True, id="folders"),
])
def test_replaced_versions_are_given_up(
    mounted: Mounted, tmp_path: Path, is_entered: bool, scale: Scale,
) -> None:
    """Opening by path right after each replacement succeeds; reading may meet the next version."""
    (tmp_path / "folder").mkdir()
    container, versions = tmp_path / "folder/c.kas", []
    for number in range(8):
        with KastoreWriter(container) as store:
            store.add("array", [float(number)] * 4)
            store.add("inner/array", [float(number)])
        versions.append(container.read_bytes())
    with mounted(tmp_path / "folder") as mount:
        shown = mount.path / "c.kas"
        path = shown / "inner/array.npy" if is_entered else shown / "array.npy"
        for number in range(scale(500, 2_000, 20_000)):
            (tmp_path / "new").write_bytes(versions[number % 8])
            (tmp_path / "new").rename(container)
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.read(descriptor, 1 << 10)
            except OSError as error:
                assert error.errno in REFUSALS
            finally:
                os.close(descriptor)
        wait_until(lambda: not mount.deleted_files(), GIVEN_UP_SECONDS, "the end of replaced versions")
        assert mount.descriptors() <= 40


@pytest.mark.parametrize("in_folder", [True, False], ids=["in a folder", "alone"])
def test_attributes_follow_those_of_the_container(
    mounted: Mounted, tmp_path: Path, in_folder: bool,
) -> None:
    """Also those of open files and directories, without a look-up by name."""
    path = tmp_path / "folder/changing"
    path.parent.mkdir()
    write(path, 1)
    with mounted(path.parent if in_folder else path) as mount:
        root = mount.path / "changing" if in_folder else mount.path
        with (
            opened(root / "signal/data.npy") as file, opened(root / "signal") as directory, opened(root) as container,
        ):
            assert os.pread(file, 100, HEADER) == bytes([1]) * 100
            for mode in (0o600, 0o644, 0o640):
                path.chmod(mode)
                searched = 0o555 & (mode & 0o444 | (mode & 0o444) >> 2)
                shown = mode & 0o444, searched, searched
                wait_until(lambda: modes(file, directory, container) == shown, PATIENCE / 2)  # noqa: B023
                wait_until(
                    lambda: modes(root / "signal/data.npy", root / "signal", root) == shown,  # noqa: B023
                )
                assert os.pread(file, 100, HEADER + 500_000) == bytes([1]) * 100


def modes(*places: int | Path) -> tuple[int, ...]:
    return tuple(os.stat(place).st_mode & 0o777 for place in places)


DATA = "signal/data.npy"


def replace_alike(path: Path, version: int, kind: str) -> None:
    """Replace a container by one of the same size and time, as `cp -p` and rsync do: only the inode differs."""
    beside = path.with_name("beside")
    write(beside, version, kind)
    os.utime(beside, ns=(0, path.stat().st_mtime_ns))
    beside.replace(path)


@pytest.mark.parametrize(("kind", "put", "in_folder"), [
    ("raw", replace, False), ("raw", replace_alike, True), *(
        pytest.param(*words, marks=pytest.mark.slow) for words in (
            ("compressed", replace, False), ("raw", write, False), ("raw", replace_alike, False),
        )
    ),
])
def test_changed_container_shows_within_a_second(
    mounted: Mounted, tmp_path: Path, kind: str, put: Callable[[Path, int, str], None], in_folder: bool,
) -> None:
    """In a mount of one container the kernel may keep pages and attributes for hours."""
    path = write_in_folder(tmp_path, kind)
    with mounted(path.parent if in_folder else path) as mount:
        root = mount.path / "changing" if in_folder else mount.path
        data = root / DATA

        def change(version: int) -> Callable[[], bool]:
            assert shows(data, version - 1)()
            inode = data.stat().st_ino
            put(path, version, kind)
            changed = path.stat().st_mtime_ns
            return lambda: (
                shows(data, version)() and data.stat().st_mtime_ns == changed
                and (put is write or data.stat().st_ino != inode)
            )

        assert_seen_soon(change)
        assert is_running(mount.pid)
        assert mount.status()["pid"] == mount.pid
        wait_until(lambda: root.stat().st_mtime_ns == path.stat().st_mtime_ns)


@pytest.mark.parametrize("change", [
    "rewritten", *(pytest.param(change, marks=pytest.mark.slow) for change in ("truncated", "emptied")),
])
def test_open_file_keeps_its_bytes_or_is_refused(mounted: Mounted, tmp_path: Path, change: str) -> None:
    path = tmp_path / "changing"
    write(path, 1)
    with mounted(path) as mount, opened(mount.path / DATA, os.O_DIRECT) as early, opened(mount.path / DATA) as late:
        assert set(os.pread(early, 1000, HEADER)) == {1}
        assert set(os.pread(late, 1000, HEADER)) == {1}
        if change == "rewritten":
            write(path, 2)
        else:
            os.truncate(path, path.stat().st_size // 2 if change == "truncated" else 0)
        for is_noticed in (False, True, True):
            wait_until(lambda: not is_noticed or any("has changed" in line for line in mount.log_lines()))  # noqa: B023
            for descriptor in (early, late):
                assert_version_or_refused(descriptor, 1, LENGTH, REFUSALS)
        assert is_running(mount.pid)

"""Damaged containers with all views: errors for lost data, and no other difference."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter, Stored, jpeg
from writers.wshard import WShardWriter

from glassfs.codec import h264
from tests.conftest import SAMPLES
from tests.formats.derived import LARGEST
from tests.formats.wshard_files import with_flipped
from tests.mount.conftest import Mounted
from tests.view.test_samples_damage import broken

ALLOWED = {errno.EIO, errno.EFBIG}
PIECE, PAGE = 1 << 20, 4096
MOST_CHILDREN = 100
"""Number of first and of last files that are read in a directory."""
MEMORY = 160 << 20


def state_of(root: Path) -> dict[str, object]:
    """Return the bytes of each file below a mount, or the number of the error."""
    found: dict[str, object] = {}
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        place = os.path.relpath(folder, root)
        try:
            names = os.listdir(folder)
        except OSError as error:
            found[place] = error.errno
            continue
        some = names if len(names) <= 2 * MOST_CHILDREN else [*names[:MOST_CHILDREN], *names[-MOST_CHILDREN:]]
        for name in some:
            path = os.path.join(folder, name)
            if name == ".glassfs":
                continue
            if os.path.islink(path):
                found[os.path.relpath(path, root)] = os.readlink(path)
            elif os.path.isdir(path):
                waiting.append(path)
            else:
                found[os.path.relpath(path, root)] = read_of(path)
    return found


def read_of(path: str) -> object:
    """Return the bytes of a file, only the ends of a large one; or the number of the error."""
    try:
        size = os.stat(path).st_size
        with open(path, "rb", buffering=0) as file:
            if size > LARGEST:
                return size, os.pread(file.fileno(), PIECE, 0), os.pread(file.fileno(), PIECE, size - PIECE)
            data = file.read()
            assert data is not None and len(data) == size, path
            return data
    except OSError as error:
        return error.errno


@pytest.mark.slow
def test_broken_containers_in_a_mount_with_views(mounted: Mounted, tmp_path: Path) -> None:
    """All files read the same twice, and those of the plain tree the same as without views."""
    folder = tmp_path / "corpora"
    for path in broken():
        place = folder / path.relative_to(SAMPLES)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    sound = SAMPLES / "wshard/py_multimodal.wshard"
    shutil.copyfile(sound, folder / sound.name)
    with mounted(folder, options=["cache_size=16M"]) as mount:
        plain = state_of(mount.path)
    with mounted(folder, options=["cache_size=16M", "views=all"]) as mount:
        first = state_of(mount.path)
        assert state_of(mount.path) == first
        assert mount.resident() < MEMORY
        assert (mount.path / sound.name / "signal/front.mp4").read_bytes()[4:8] == b"ftyp"
    errors = {place: state for place, state in first.items() if isinstance(state, int)}
    assert set(errors.values()) <= ALLOWED and errors
    assert {place: first[place] for place in plain} == plain
    assert len(first) > len(plain)


def ranges_of(path: Path) -> dict[int, bytes | int | None]:
    """Return the pages of a file, read past the page cache, or the numbers of errors."""
    found: dict[int, bytes | int | None] = {}
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for start in range(0, os.fstat(descriptor).st_size, PAGE):
            try:
                found[start] = os.pread(descriptor, PAGE, start)
            except OSError as error:
                found[start] = error.errno
    finally:
        os.close(descriptor)
    return found


def lost(good: dict[int, bytes | int | None], bad: dict[int, bytes | int | None]) -> list[int]:
    """Return the pages that fail with EIO; check that all others are equal."""
    assert bad.keys() == good.keys()
    failed = [start for start, page in bad.items() if page == errno.EIO]
    assert all(bad[start] == page for start, page in good.items() if start not in failed)
    return failed


def test_damaged_image_costs_one_frame_of_the_video(mounted: Mounted, tmp_path: Path) -> None:
    stored = [jpeg(np.full((64, 64, 3), 20 * number, np.uint8)) for number in range(6)]
    good, bad = tmp_path / "good.kdb", tmp_path / "bad.kdb"
    with KinoWriter(good, created=0) as writer:
        shots = [{"front": Stored(image, 64, 64)} for image in stored]
        writer.add_episode(np.ones((6, 1)), np.ones((6, 1)), images=shots)
    data = bytearray(good.read_bytes())
    start = data.index(stored[3])
    data[start + 3 : start + len(stored[3])] = bytes(len(stored[3]) - 3)
    bad.write_bytes(data)
    with mounted(good, bad, options=["views=all"]) as mount:
        video = "episodes/0/images/front.mp4"
        failed = lost(*(ranges_of(mount.path / path.name / video) for path in (good, bad)))
        size = (mount.path / bad.name / video).stat().st_size
        frame = h264.size_of(64, 64)
        begin = size - 3 * frame
        assert failed == list(range(begin // PAGE * PAGE, begin + frame, PAGE))
        steps = "episodes/0/steps.parquet"
        assert (mount.path / bad.name / steps).read_bytes() == (mount.path / good.name / steps).read_bytes()
        with pytest.raises(OSError, match="Input/output error"):
            (mount.path / bad.name / video).read_bytes()
        assert (mount.path / bad.name / "episodes/0/images/front/000004.jpg").read_bytes() == stored[4]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_damaged_block_costs_its_column_of_the_table(mounted: Mounted, tmp_path: Path, codec: str) -> None:
    good, bad = tmp_path / "good.wshard", tmp_path / "bad.wshard"
    with WShardWriter(good, codec=codec) as writer:
        for name in ("first", "second", "third"):
            writer.add_channel(name, np.arange(4 * PAGE, dtype="<f8"))
    bad.write_bytes(with_flipped(good.read_bytes(), "signal/second", 50))
    with mounted(good, bad, options=["views=parquet"]) as mount:
        failed = lost(*(ranges_of(mount.path / path.name / "steps.parquet") for path in (good, bad)))
    column = 4 * PAGE * 8
    assert len(failed) == pytest.approx(column / PAGE, abs=2) and failed[-1] - failed[0] == (len(failed) - 1) * PAGE


def test_omitted_view_has_a_reason(mounted: Mounted, tmp_path: Path) -> None:
    path = tmp_path / "wide.wshard"
    with WShardWriter(path) as writer:
        writer.add_channel("rgb", np.zeros((2, 1, 20_000, 3), np.uint8))
    with mounted(path, options=["views=all"]) as mount:
        folder = mount.path / "signal"
        assert not (folder / "rgb.mp4").exists() and (folder / "rgb.npy").exists()
        assert b"too large for an MP4" in os.getxattr(folder, "user.glassfs.error")

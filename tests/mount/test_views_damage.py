"""Damaged containers with all views: errors for lost data, and no other difference."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import SAMPLES
from tests.formats.derived import LARGEST
from tests.mount.conftest import Mounted
from tests.view.test_samples import broken

ALLOWED = {errno.EIO, errno.EFBIG}
PIECE = 1 << 20
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

"""File handles (name_to_handle_at), as servers of NFS and SMB give them to their clients."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import opened

AT_FDCWD = -100
_LIBC = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    """``struct file_handle``"""

    _fields_ = (("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128))


def handle_of(path: Path) -> Handle:
    handle, mount = Handle(128), ctypes.c_int()
    if _LIBC.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def target_of(handle: Handle, at: Path) -> str | int:
    """Return the path that a handle leads to, or the errno."""
    with opened(at) as root:
        descriptor = _LIBC.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
        if descriptor < 0:
            return ctypes.get_errno()
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)


def files_below(path: Path) -> list[Path]:
    found = (Path(folder, name) for folder, folders, files in os.walk(path) for name in folders + files)
    return [path for path in found if not path.is_symlink()]


@pytest.mark.usefixtures("as_root")
def test_handles_of_an_earlier_mount_lead_to_no_other_file(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    at = tmp_path / "mnt"
    at.mkdir()
    source = gallery.folder
    with mounted(source, at=at):
        handles = {path: handle_of(path) for path in files_below(at)}
        assert len(handles) > 50
        assert {target_of(handle, at) for handle in handles.values()} == set(map(str, handles))
        root = handle_of(at)
    with mounted(source, at=at):
        kept = sorted(files_below(at), reverse=True)
        for path in kept:  # ids are given in another order
            path.stat()
        assert {target_of(handle, at) for handle in handles.values()} == {errno.ESTALE}
        assert target_of(root, at) == str(at)

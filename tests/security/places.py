"""Files to attack: small containers, owners, modes, access lists, and what a user can read of them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.wshard import write_chunked

from tests.security.users import User

ACL = "system.posix_acl_access"
ACL_VERSION = 2
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NOBODY_IN_PARTICULAR = 0xFFFFFFFF


def write_file(path: Path, data: bytes | str, mode: int = 0o644, owner: User | None = None) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return give(path, mode, owner)


def make_folder(path: Path, mode: int = 0o755, owner: User | None = None) -> Path:
    path.mkdir()
    return give(path, mode, owner)


def give(path: Path, mode: int, owner: User | None = None) -> Path:
    if owner is not None:
        os.chown(path, owner.uid, owner.gid)
    path.chmod(mode)
    return path


def write_store(path: Path, word: bytes = b"harmless", mode: int = 0o644, owner: User | None = None) -> Path:
    """Write a kastore container with the array ``word`` of these bytes."""
    with KastoreWriter(path) as writer:
        writer.add("word", np.frombuffer(word, "u1"))
    return give(path, mode, owner)


def write_episode(folder: Path, name: str, word: bytes, parts: int = 2) -> tuple[Path, list[Path]]:
    """Write a WShard manifest and its parts; each step of ``signal/word`` has the bytes of ``word``."""
    steps = np.tile(np.frombuffer(word, "u1"), (parts, 1))
    manifest = write_chunked(folder, name, {"signal/word": steps}, 1)
    return manifest, sorted(folder.glob(f"{name}_chunk_*.wshard"))


def access_list(entries: Iterable[tuple[int, int, int]]) -> bytes:
    """Return the extended attribute of entries (tag, permissions, id), as in linux/posix_acl_xattr.h."""
    head = struct.pack("<I", ACL_VERSION)
    return head + b"".join(struct.pack("<HHI", tag, allowed, number) for tag, allowed, number in sorted(entries))


def set_access(path: Path, owner: int, group: int, others: int, users: Mapping[int, int], mask: int = 7) -> None:
    """Set a POSIX access list with named users. Skips the test if the file system has none."""
    plain = [(tag, allowed, NOBODY_IN_PARTICULAR) for tag, allowed in
             ((USER_OBJ, owner), (GROUP_OBJ, group), (MASK, mask), (OTHER, others))]
    try:
        os.setxattr(path, ACL, access_list([*plain, *((USER, allowed, uid) for uid, allowed in users.items())]))
    except OSError as error:
        pytest.skip(f"no access lists at {path}: {error.strerror}")


def read_or_refusal(path: str | Path) -> bytes | int:
    """Return the bytes of a file, or the errno of the failure."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        return error.errno or 0


def can_open(path: str | Path) -> bool:
    """Return whether a file can be read, or a folder listed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.listdir(descriptor)
        else:
            os.read(descriptor, 1 << 16)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def all_bytes_below(root: str | Path) -> dict[str, bytes]:
    """Walk a tree and return each readable file and each link's target, by path."""
    found: dict[str, bytes] = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[f"{path} (target)"] = os.fsencode(os.readlink(path))
            data = read_or_refusal(path)
            if isinstance(data, bytes):
                found[path] = data
    return found

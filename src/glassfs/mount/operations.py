"""What the kernel asks, answered from a tree. No ctypes here, and no FUSE: it can be driven by hand.

Every method may be called from any thread, and raises what the tree raises, or ``Answer`` for an errno of its own.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from glassfs.errors import Changed
from glassfs.mount.errors import Answer
from glassfs.mount.options import MountOptions
from glassfs.tree import Directory, File, Node, Symlink, Tree

BLOCK = 512
STATFS_BLOCK = 4096
LONGEST_NAME = 255


class Attributes(NamedTuple):
    """A node's stat fields. Times are nanoseconds since 1970."""

    mode: int
    nlink: int
    ino: int
    uid: int
    gid: int
    size: int
    mtime_ns: int

    @property
    def blocks(self) -> int:
        return -(-self.size // BLOCK)


class Operations:
    """The file system over ``tree``. ``total_size`` gives the bytes of all sources, for ``df``."""

    def __init__(self, tree: Tree, options: MountOptions, total_size: Callable[[], int]) -> None:
        self.tree = tree
        self.options = options
        self._total_size = total_size
        self._mask = ~options.umask
        self._files: dict[int, tuple[File, str]] = {}
        self._listings: dict[int, Sequence[Node]] = {}
        self._numbers = itertools.count(1)

    def open_paths(self) -> list[str]:
        """The paths of all open files; one that is open twice is there twice."""
        return [path for _, path in list(self._files.values())]

    def attributes(self, node: Node) -> Attributes:
        """All attributes. May take a pass over the data for a file whose size needs one."""
        if isinstance(node, File):
            mode, links, size = node.mode & self._mask, 1, node.data.size
        elif isinstance(node, Directory):
            mode, links, size = node.mode & self._mask, node.link_count, 0
        else:
            mode, links, size = node.mode, 1, len(node.target) if isinstance(node, Symlink) else 0
        origin, uid, gid = node.origin, self.options.uid, self.options.gid
        return Attributes(
            mode, links, node.ino, origin.uid if uid is None else uid, origin.gid if gid is None else gid, size,
            origin.mtime_ns,
        )

    def known_attributes(self, node: Node) -> Attributes | None:
        """The attributes, if they are known without reading from the container."""
        is_known = node.data.is_sized if isinstance(node, File) else not isinstance(node, Directory) or node.is_counted
        return self.attributes(node) if is_known else None

    def readlink(self, path: str) -> str:
        node = self.tree.lookup(path)
        if not isinstance(node, Symlink):
            raise Answer(errno.EINVAL)
        return node.target

    def open(self, path: str, flags: int) -> tuple[int, File]:
        """A handle for ``read_into``, and the file."""
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise Answer(errno.EROFS)
        file = self.tree.file(path).opened()
        number = next(self._numbers)
        self._files[number] = file, path
        return number, file

    def opened(self, handle: int) -> File:
        """The file behind a handle. Raises Changed where another has taken its place."""
        file = self._files[handle][0]
        if file.origin.is_replaced:
            # Pages are cached by path: bytes of the old file must not get among those of the new one.
            raise Changed(f"{file.name}: was replaced while it is open")
        return file

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        return self.opened(handle).read_into(buffer, offset)

    def release(self, handle: int) -> None:
        self._files.pop(handle, None)

    def opendir(self, path: str) -> int:
        listing = self.tree.directory(path).listing()
        number = next(self._numbers)
        self._listings[number] = listing
        return number

    def entries(self, handle: int) -> Sequence[Node]:
        """The children of an opened directory, as they were then."""
        return self._listings[handle]

    def releasedir(self, handle: int) -> None:
        self._listings.pop(handle, None)

    def getxattr(self, path: str, name: str) -> bytes:
        if not name.startswith("user."):
            # Not ENODATA: on ENOTSUP ``ls -l`` stops asking after the first file.
            raise Answer(errno.ENOTSUP)
        try:
            return self.tree.lookup(path).xattrs()[name]
        except KeyError:
            raise Answer(errno.ENODATA) from None

    def listxattr(self, path: str) -> list[str]:
        return list(self.tree.lookup(path).xattrs())

    def statfs(self) -> dict[str, int]:
        """The fields of statvfs: as large as the sources, and nothing free."""
        return {
            "f_bsize": STATFS_BLOCK,
            "f_frsize": STATFS_BLOCK,
            "f_blocks": -(-self._total_size() // STATFS_BLOCK),
            "f_namemax": LONGEST_NAME,
        }



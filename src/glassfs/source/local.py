"""Files of the local system. Every open starts at a descriptor of the store's root and follows no link, unless asked.

Users with write access may replace any component of a path at any moment. A path is therefore opened in one call in
which the kernel follows no link and crosses no mount, or component by component with O_NOFOLLOW; size, owner, mode and
version are those of the opened descriptor. Mounts of glassfs are never entered, as their answers may depend on this
process: such an entry is shown as an empty folder.
"""

from __future__ import annotations

import builtins
import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from glassfs import work
from glassfs.errors import Changed, GlassfsError, NotAllowed, NotFound, Unavailable
from glassfs.settings import settings
from glassfs.source import descriptors, following, system
from glassfs.source.contract import Entry, Kind, Path, Source, Store, Version
from glassfs.source.local_source import MISSING, LocalSource, translated

if TYPE_CHECKING:
    from glassfs.source.watching import Watch

_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SEARCH_BENEATH, _READ_BENEATH = system.How(_SEARCH), system.How(_READ)
_HAS_XATTRS = hasattr(os, "getxattr")
_KINDS = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.FOLDER, stat.S_IFLNK: Kind.LINK}
_FAILURES = (GlassfsError, OSError, ValueError)
_new = tuple.__new__
"""Makes a named tuple of all its fields in less than half the time."""


class LocalStore(Store):
    """The folder ``root``, called ``name`` in messages. Links in ``root`` itself are resolved once, now.

    When another folder replaces the root, the store switches to it; while nothing or a link is there, nothing is found.
    If it ``follows`` links, those out of it to files appear as these files where that is safe (see ``following``).
    Raises OSError if the folder cannot be opened.
    """

    has_lasting_versions = True

    def __init__(self, root: str | os.PathLike[str], name: str | None = None, follows: bool = False) -> None:
        self.follows_links = follows
        self._root_path = os.path.realpath(root)
        self._name = os.fspath(root) if name is None else name
        self._prefix = os.path.join(self._name, "")
        self._watched = Watched(self._root_path)
        self._acls: dict[tuple[int, int, int], bool] = {}
        self._avoids_glassfs = False
        self._root: _OpenFolder | None = self._opened_root()
        # A root on a mount of glassfs was named on purpose. Mounts that appear on the way to any other are not entered.
        self._avoids_glassfs = not system.is_on_glassfs(self._root.device)
        self._next_root_check = time.monotonic() + settings.root_check

    def __del__(self) -> None:
        with suppress(AttributeError):  # __init__ failed
            self.close()

    def shown(self, path: Path) -> str:
        return f"{self._prefix}{'/'.join(path)}" if path else self._name

    def entry(self, path: Path) -> Entry:
        self._renew_root(is_due=not path)
        try:
            return self._entry(self._folder(path[:-1]), path[:-1], path[-1] if path else ".")
        except _FAILURES as error:
            raise self._explained(error, path) from None

    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        self._renew_root(is_due=not path)
        try:
            folder = self._folder(path)
            listing = descriptors.opened(lambda: os.open(".", _LIST, dir_fd=folder.fd))
            try:
                names = sorted(descriptors.opened(lambda: os.listdir(listing)), key=os.fsencode)
            finally:
                os.close(listing)
            entries = self._entries(folder, path, names)
        except _FAILURES as error:
            raise self._explained(error, path) from None
        return ((name, entry) for name, entry in zip(names, entries, strict=True) if entry is not None)

    def open(self, path: Path) -> Source:
        self._renew_root(is_due=False)
        try:
            fd, entry = self.open_descriptor(path)
        except _FAILURES as error:
            raise self._explained(error, path) from None
        return LocalSource(self.open_descriptor, self.shown(path), path, entry, fd)

    def source(self, path: Path, entry: Entry) -> Source:
        return LocalSource(self.open_descriptor, self.shown(path), path, entry)

    def watch(self, path: Path, notify: Callable[[Path, str], None]) -> bool:
        return self._watched.watch(path, notify, self._has_root)

    def is_watched(self, path: Path) -> bool:
        return self._watched.is_watched(path)

    def close(self) -> None:
        self._watched.close()
        self._root = None

    def open_descriptor(self, path: Path) -> tuple[int, Entry]:
        """Return a descriptor of the regular file at ``path`` and its entry. Raises OSError and Unavailable."""
        if not path:
            raise OSError(errno.EISDIR, "is a folder")
        root = self._current_root()
        fd = system.opened_beneath(root.fd, path, _READ_BENEATH)
        if fd is None:
            folder = self._folder(path[:-1])
            if system.is_glassfs(folder.fd, path[-1], folder.device):
                raise FileNotFoundError(errno.ENOENT, "is on a mount of glassfs")
            try:
                fd = descriptors.opened(lambda: os.open(path[-1], _READ, dir_fd=folder.fd))
            except OSError as error:
                if error.errno != errno.ELOOP or not self.follows_links:
                    raise
                return self._followed(folder, path)
        return fd, self._entry_of(fd)

    def _entry_of(self, fd: int) -> Entry:
        """Return the entry of an open regular file. Closes it if it raises: OSError and Unavailable."""
        try:
            entry = self._entry_at(fd, fd)
            if entry.kind is not Kind.FILE:
                raise OSError(errno.EINVAL, "is not a regular file")
            return entry
        except BaseException:
            os.close(fd)
            raise

    def _entries(self, folder: _OpenFolder, path: Path, names: Iterable[str]) -> builtins.list[Entry | None]:
        """Return the entries of names in the folder at ``path``, which is open; None for those that are not there."""
        found: list[Entry | None] = []
        for name in names:
            work.check()
            try:
                found.append(self._entry(folder, path, name))
            except Unavailable:
                raise
            except (OSError, ValueError):  # removed, or no name of a file
                found.append(None)
        return found

    def _entry(self, folder: _OpenFolder, path: Path, name: str) -> Entry:
        """Return the entry of ``name`` in the folder at ``path``, which is open. Raises OSError."""
        if system.is_glassfs(folder.fd, name, folder.device):
            return _hidden(os.fstat(folder.fd))
        # Mounts of glassfs are recognized before the first call that their daemon would have to answer.
        status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        has_acl = self._known_acl(status)
        if has_acl is None:
            fd = descriptors.opened(lambda: os.open(name, _NAME, dir_fd=folder.fd))
            try:
                entry = self._entry_at(fd, f"/proc/self/fd/{fd}")
            finally:
                os.close(fd)
        else:
            entry = _described(status, has_acl)
        if entry.kind is Kind.LINK:
            return self._link(folder, path, name, entry._replace(target=os.readlink(name, dir_fd=folder.fd)))
        return entry

    def _entry_at(self, fd: int, place: int | str) -> Entry:
        """Return the entry of what is open, whose attributes are at ``place``. Raises OSError."""
        status = os.fstat(fd)
        has_acl = self._known_acl(status)
        if has_acl is None:
            status, has_acl = self._read_acl(fd, place, status)
        return _described(status, has_acl)

    def _link(self, folder: _OpenFolder, path: Path, name: str, link: Entry) -> Entry:
        """Return the entry of a link, or of the file to which it leads if it is followed."""
        if not following.leads_out(self._root_path, path, link.target):
            return link
        reason = "is followed only with -o follow_links; or name the folder to which it leads"
        if self.follows_links:
            try:
                fd, file = self._followed(folder, (*path, name))
            except FileNotFoundError:
                return link
            except (NotAllowed, Changed) as error:
                reason = error.reason
            except OSError as error:
                if error.errno in descriptors.EXHAUSTED:
                    raise
                reason = os.strerror(error.errno or 0)
            else:
                os.close(fd)
                return file
        return link._replace(omitted=f"link out of the source: {link.target}: {reason}")

    def _followed(self, folder: _OpenFolder, path: Path) -> tuple[int, Entry]:
        """Return what ``open_descriptor`` returns for the file to which the link at ``path`` leads.

        Raises NotAllowed if it is not followed. Changes of the file are not reported to watchers of the link's folder.
        """
        fd = following.opened(folder.fd, self.shown(path[:-1]), path[-1])
        return fd, self._entry_of(fd)._replace(has_other_names=True)

    def _known_acl(self, status: os.stat_result) -> bool | None:
        """Return whether a file has an ACL that may deny what its mode grants; None if its ACL must be read."""
        if not status.st_mode & 0o077 or stat.S_ISLNK(status.st_mode) or not _HAS_XATTRS:
            return False
        return self._acls.get((status.st_dev, status.st_ino, status.st_ctime_ns))  # setting an ACL changes the ctime

    def _read_acl(self, fd: int, place: int | str, status: os.stat_result) -> tuple[os.stat_result, bool]:
        """Return the status of an open file, and whether it had an ACL at that moment.

        ``place`` has its attributes; ``status`` is that of ``fd``, as the status of a folder that others write to may
        have changed since its name was looked up.
        """
        # The list and the status are read one after the other. Both belong together if the ctime, which setting a list
        # changes, is the same before and after.
        for _ in range(10):
            has_acl = system.has_acl(place)
            if has_acl is None:
                break
            before, status = status, os.fstat(fd)
            if before.st_ctime_ns == status.st_ctime_ns:
                # A later change of attributes is sure to have another ctime than one that is this old.
                if time.time_ns() - status.st_ctime_ns > 2 * 10**9:
                    if len(self._acls) >= 100_000:
                        self._acls.clear()
                    self._acls[status.st_dev, status.st_ino, status.st_ctime_ns] = has_acl
                return status, has_acl
        return status, True  # unknown: assume the stricter

    def _folder(self, path: Path) -> _OpenFolder:
        """Open the folder at ``path`` as a starting point, below the current root. Raises OSError and Unavailable."""
        root = self._current_root()
        if not path:
            return root
        fd = system.opened_beneath(root.fd, path, _SEARCH_BENEATH)
        if fd is None:
            fd = _walked(".", root.fd, path, FileNotFoundError(errno.ENOENT, "is a mount of glassfs"))
        return _OpenFolder(fd)

    def _current_root(self) -> _OpenFolder:
        """Return the root. Its descriptor stays open as long as a caller refers to it."""
        root = self._root
        if root is None:
            root = self._root = self._opened_root()
        return root

    def _opened_root(self) -> _OpenFolder:
        """Open the folder that is now at the root's path. Raises OSError and Unavailable."""
        refusal = OSError(errno.EBUSY, "is behind a mount of glassfs") if self._avoids_glassfs else None
        return _OpenFolder(_walked("/", None, filter(None, self._root_path.split("/")), refusal))

    def _renew_root(self, is_due: bool) -> None:
        """Switch to the folder that replaced the root. If that cannot be determined, keep the root."""
        if not (is_due or self._watched.has_ended) and time.monotonic() < self._next_root_check:
            return
        self._watched.has_ended = False
        self._next_root_check = time.monotonic() + settings.root_check
        now = None
        try:
            now = self._opened_root()
        except (Unavailable, OSError) as error:
            if error.errno not in (*MISSING, errno.ENOTDIR):
                return
        # The old root stays if it is still the folder at the path: sources and watches refer to its descriptor.
        root = self._root
        if now is None or root is None or not os.path.samestat(os.fstat(now.fd), os.fstat(root.fd)):
            self._root = now

    def _has_root(self, identity: tuple[int, int]) -> bool:
        """Return whether the root is that folder, after switching to a replacement."""
        self._renew_root(is_due=True)
        root = self._root
        if root is None:
            return False
        status = os.fstat(root.fd)
        return (status.st_dev, status.st_ino) == identity

    def _explained(self, error: Exception, path: Path) -> GlassfsError:
        """Return the error of glassfs for one of the system about ``path``."""
        if isinstance(error, GlassfsError):
            return error.at(self.shown(path))
        if isinstance(error, OSError):
            return translated(error, self.shown(path))
        return NotFound("is not a valid file name", self.shown(path))  # a NUL, or a surrogate that stands for no byte


class Watched:
    """The watched folders of the store with its root at ``root``, by path. It holds no reference to the store.

    inotify is loaded on the first request; without it nothing can be watched.

    ``has_ended`` is set when a watch has ended: another folder may have replaced the root.
    """

    def __init__(self, root: str) -> None:
        self.has_ended = False
        self._root = tuple(filter(None, root.split("/")))
        self._lock = threading.Lock()
        self._watches: dict[Path, Watch] = {}

    def watch(
        self, path: Path, notify: Callable[[Path, str], None], has_root: Callable[[tuple[int, int]], bool],
    ) -> bool:
        """Implement ``Store.watch``. ``has_root`` returns whether the store's root is the folder found at its path.

        The folder watched is the one there now, while the store might still read from a replaced one.
        """
        if self.is_watched(path):
            return True
        if sys.platform != "linux":
            return False
        try:
            # Import the name, not the module: while another thread's import fails, a partial module is visible.
            from glassfs.source.watching import pool
        except ImportError:
            return False
        watch = pool.watch((*self._root, *path), len(self._root), partial(self._notified, path, notify))
        if watch is None:
            return False
        is_right = has_root(watch.root)
        with self._lock:
            is_first = not self.is_watched(path)
            if is_right and is_first:
                self._watches[path] = watch
        if not (is_right and is_first):
            watch.release()
        return is_right and not (is_first and watch.is_over)

    def is_watched(self, path: Path) -> bool:
        known = self._watches.get(path)
        return known is not None and not known.is_over

    def close(self) -> None:
        with self._lock:
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.release()

    def _notified(self, path: Path, notify: Callable[[Path, str], None], name: str, is_over: bool) -> None:
        if is_over:
            self.has_ended = True
            with self._lock:
                if path in self._watches and self._watches[path].is_over:
                    del self._watches[path]
        notify(path, name)


class _OpenFolder(descriptors.Descriptor):
    """A descriptor of a folder on ``device``."""

    __slots__ = ("device",)

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.device = system.device_of(fd)


def _walked(start: str, folder: int | None, names: Iterable[str], refusal: OSError | None) -> int:
    """Open the folder to which ``names`` lead from ``start``, one by one. Raises ``refusal`` at a mount of glassfs."""
    fd = descriptors.opened(lambda: os.open(start, _SEARCH, dir_fd=folder))
    try:
        for name in names:
            if refusal is not None and system.is_glassfs(fd, name, system.device_of(fd)):
                raise refusal
            inner = descriptors.opened(partial(os.open, name, _SEARCH, dir_fd=fd))
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


def _described(status: os.stat_result, has_acl: bool) -> Entry:
    mode, mtime_ns, size, volume = status.st_mode, status.st_mtime_ns, status.st_size, _volume(status.st_dev)
    kind = _KINDS.get(stat.S_IFMT(mode), Kind.OTHER)
    # Nine bits cannot express which users an ACL names.
    permissions = mode & (0o700 if has_acl else 0o777)
    file_id = f"{volume}:{status.st_ino}"
    version = Version(f"{file_id}:{size}:{mtime_ns}")
    return _new(Entry, (
        kind, version, file_id, f"{version}:{status.st_ctime_ns}", size, permissions, status.st_uid, status.st_gid,
        mtime_ns, "", volume, kind is Kind.FILE and status.st_nlink > 1, "",
    ))


def _hidden(parent: os.stat_result) -> Entry:
    """Return the entry of a mount of glassfs: an empty folder with the owner of the folder that contains it."""
    file_id = f"{parent.st_dev}:{parent.st_ino}:hidden"
    return Entry(
        Kind.MOUNT, Version(file_id), file_id, file_id, 0, parent.st_mode & 0o555, parent.st_uid, parent.st_gid,
        parent.st_mtime_ns, volume=_volume(parent.st_dev),
    )


@lru_cache(256)
def _volume(device: int) -> str:
    """Return one string object per device: there may be many entries."""
    return f"{device}"

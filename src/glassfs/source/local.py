"""Files of the local system. Every open starts at a descriptor of the store's root and follows no link.

Reads use ``preadv``, not ``mmap``: touching a page of a truncated file raises SIGBUS and kills the process. ``preadv``
into the caller's buffer copies once and releases the GIL. After each read, size and mtime are compared with those at
opening: the kernel sets the mtime before it copies new bytes in, so a read that finds the old mtime has old bytes only.

Users with write access may replace any component of a path at any moment. A path is therefore opened in one call in
which the kernel follows no link and crosses no mount, or component by component with O_NOFOLLOW; size, owner, mode and
version are those of the opened descriptor. Mounts of glassfs are never entered, as their answers may depend on this
process: such an entry is shown as an empty folder.
"""

from __future__ import annotations

import builtins
import errno
import mmap
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from weakref import WeakSet

from glassfs import work
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotADirectory, NotAllowed, NotFound, Unavailable
from glassfs.source import beneath, descriptors, foreign
from glassfs.source.contract import Entry, Kind, Path, Source, Store, Version
from glassfs.source.scattered import fill, total
from glassfs.source.watched import Watched

ACL = "system.posix_acl_access"
REMEMBERED_ACLS = 100_000
SETTLED_NS = 2 * 10**9
"""A later change of attributes is sure to have another ctime than one that is this old."""
ROOT_CHECK_SECONDS = 0.1
"""Interval between two checks whether the store's root was replaced, made when something below it is used."""
MOST_MAPPINGS = 128
"""Before Python 3.13 each mapping holds a descriptor."""
_mappings: WeakSet[mmap.mmap] = WeakSet()
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SEARCH_BENEATH, _READ_BENEATH = beneath.How(_SEARCH), beneath.How(_READ)
_KINDS = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.FOLDER, stat.S_IFLNK: Kind.LINK}
_MISSING = (errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_FAILING = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.ETIMEDOUT, errno.EREMOTEIO)
_ERRORS: tuple[tuple[tuple[int, ...], type[GlassfsError]], ...] = (
    (_MISSING, NotFound), ((errno.ENOTDIR,), NotADirectory), (_FORBIDDEN, NotAllowed), (_FAILING, DeviceFailed),
    (descriptors.EXHAUSTED, Unavailable),
)


class LocalStore(Store):
    """The folder ``root``, called ``name`` in messages. Links in ``root`` itself are resolved once, now.

    When another folder replaces the root, the store switches to it; while nothing or a link is there, nothing is found.
    Raises OSError if the folder cannot be opened.
    """

    has_lasting_versions = True

    def __init__(self, root: str | os.PathLike[str], name: str | None = None) -> None:
        self._root_path = os.path.realpath(root)
        self._name = os.fspath(root) if name is None else name
        self._watched = Watched(self._root_path)
        self._acls: dict[tuple[int, int, int], bool] = {}
        self._avoids_glassfs = False
        self._root: _Root | None = self._opened_root()
        # A root on a mount of glassfs was named on purpose. Mounts that appear on the way to any other are not entered.
        self._avoids_glassfs = not foreign.is_on_glassfs(self._root.device)
        self._next_root_check = time.monotonic() + ROOT_CHECK_SECONDS

    def __del__(self) -> None:
        with suppress(AttributeError):  # __init__ failed
            self.close()

    def shown(self, path: Path) -> str:
        return os.path.join(self._name, *path) if path else self._name

    def entry(self, path: Path) -> Entry:
        self._renew_root(is_due=not path)
        with self._errors(path):
            if len(path) < 2:
                root = self._current_root()
                return self._entry(root.fd, path[0] if path else ".", root.device)
            with self._folder(path[:-1]) as folder:
                return self._entry(folder, path[-1], foreign.device_of(folder))

    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        self._renew_root(is_due=not path)
        with self._errors(path), self._folder(path) as folder:
            listing = descriptors.opened(lambda: os.open(".", _LIST, dir_fd=folder))
            try:
                names = sorted(descriptors.opened(lambda: os.listdir(listing)), key=os.fsencode)
            finally:
                os.close(listing)
            found = []
            device = foreign.device_of(folder)
            for name in names:
                work.check()
                try:
                    found.append((name, self._entry(folder, name, device)))
                except Unavailable:
                    raise
                except OSError:  # removed meanwhile
                    continue
        return iter(found)

    def glances(self, path: Path, names: Sequence[str]) -> builtins.list[tuple[str, int] | None]:
        self._renew_root(is_due=not path)
        with self._errors(path), self._folder(path) as folder:
            device = foreign.device_of(folder)
            return [_glance(folder, name, device) for name in names]

    def open(self, path: Path) -> Source:
        self._renew_root(is_due=False)
        with self._errors(path):
            fd, entry = self.open_descriptor(path)
        return LocalSource(self, path, entry, fd)

    def source(self, path: Path, entry: Entry) -> Source:
        return LocalSource(self, path, entry)

    def watch(self, path: Path, notify: Callable[[Path, str], None]) -> bool:
        return self._watched.watch(path, notify, self._has_root)

    def close(self) -> None:
        self._watched.close()
        self._root = None

    def open_descriptor(self, path: Path) -> tuple[int, Entry]:
        """Return a descriptor of the regular file at ``path`` and its entry. Raises OSError and Unavailable."""
        if not path:
            raise OSError(errno.EISDIR, "is a folder")
        root = self._current_root()
        fd = beneath.opened(root.fd, path, _READ_BENEATH)
        if fd is None:
            with self._folder(path[:-1]) as folder:
                if foreign.is_glassfs(folder, path[-1], foreign.device_of(folder)):
                    raise FileNotFoundError(errno.ENOENT, "is on a mount of glassfs")
                fd = descriptors.opened(lambda: os.open(path[-1], _READ, dir_fd=folder))
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "is not a regular file")
            return fd, self._described(status, lambda: os.getxattr(fd, ACL))
        except BaseException:
            os.close(fd)
            raise

    def _entry(self, folder: int, name: str, device: int | None) -> Entry:
        """Return the entry of ``name`` in an open folder on ``device``. Raises OSError."""
        if foreign.is_glassfs(folder, name, device):
            return _hidden(os.fstat(folder))
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        entry = self._described(status, lambda: _acl_of(folder, name, status))
        if entry.kind is Kind.LINK:
            return entry._replace(target=os.readlink(name, dir_fd=folder))
        return entry

    def _described(self, status: os.stat_result, acl: Callable[[], bytes]) -> Entry:
        mode = status.st_mode
        kind = _KINDS.get(stat.S_IFMT(mode), Kind.OTHER)
        permissions = mode & 0o777
        # An ACL may deny what the mode grants: nine bits cannot express which users it names.
        if permissions & 0o077 and kind is not Kind.LINK and self._has_acl(status, acl):
            permissions &= 0o700
        file_id = f"{status.st_dev}:{status.st_ino}"
        version = _version(status)
        return Entry(
            kind, version, file_id, f"{version}:{status.st_ctime_ns}", status.st_size, permissions, status.st_uid,
            status.st_gid, status.st_mtime_ns, volume=_volume(status.st_dev),
            has_other_names=kind is Kind.FILE and status.st_nlink > 1,
        )

    def _has_acl(self, status: os.stat_result, acl: Callable[[], bytes]) -> bool:
        if not hasattr(os, "getxattr"):
            return False
        key = (status.st_dev, status.st_ino, status.st_ctime_ns)  # setting an ACL changes the ctime
        known = self._acls.get(key)
        if known is None:
            try:
                known = bool(acl())
            except Unavailable:
                raise
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                    return True  # unknown: assume the stricter
                known = False
            if time.time_ns() - status.st_ctime_ns > SETTLED_NS:
                if len(self._acls) >= REMEMBERED_ACLS:
                    self._acls.clear()
                self._acls[key] = known
        return known

    @contextmanager
    def _folder(self, path: Path) -> Iterator[int]:
        """Open the folder at ``path`` as a starting point. Raises OSError and Unavailable."""
        root = self._current_root()
        if not path:
            yield root.fd
            return
        fd = beneath.opened(root.fd, path, _SEARCH_BENEATH)
        if fd is None:
            fd = _walked(".", root.fd, path, FileNotFoundError(errno.ENOENT, "is a mount of glassfs"))
        try:
            yield fd
        finally:
            os.close(fd)

    def _current_root(self) -> _Root:
        """Return the root. Its descriptor stays open as long as a caller refers to it."""
        root = self._root
        if root is None:
            root = self._root = self._opened_root()
        return root

    def _opened_root(self) -> _Root:
        """Open the folder that is now at the root's path. Raises OSError and Unavailable."""
        refusal = OSError(errno.EBUSY, "is behind a mount of glassfs") if self._avoids_glassfs else None
        return _Root(_walked("/", None, filter(None, self._root_path.split("/")), refusal))

    def _renew_root(self, is_due: bool) -> None:
        """Switch to the folder that replaced the root. If that cannot be determined, keep the root."""
        if not (is_due or self._watched.has_ended) and time.monotonic() < self._next_root_check:
            return
        self._watched.has_ended = False
        self._next_root_check = time.monotonic() + ROOT_CHECK_SECONDS
        now = None
        try:
            now = self._opened_root()
        except (Unavailable, OSError) as error:
            if error.errno not in (*_MISSING, errno.ENOTDIR):
                return
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

    @contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        """Translate errors of the system about ``path`` into errors of glassfs."""
        try:
            yield
        except GlassfsError as error:
            raise error.at(self.shown(path)) from None
        except OSError as error:
            raise translated(error, self.shown(path)) from None
        except ValueError:  # a NUL, or a surrogate that stands for no byte
            raise NotFound("is not a valid file name", self.shown(path)) from None


class _Root:
    """A descriptor of a store's root on ``device``, closed with the last reference to it."""

    __slots__ = ("device", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.device = foreign.device_of(fd)

    def __del__(self) -> None:
        os.close(self.fd)


def _walked(start: str, folder: int | None, names: Iterable[str], refusal: OSError | None) -> int:
    """Open the folder to which ``names`` lead from ``start``, one by one. Raises ``refusal`` at a mount of glassfs."""
    fd = descriptors.opened(lambda: os.open(start, _SEARCH, dir_fd=folder))
    try:
        for name in names:
            if refusal is not None and foreign.is_glassfs(fd, name, foreign.device_of(fd)):
                raise refusal
            inner = descriptors.opened(partial(os.open, name, _SEARCH, dir_fd=fd))
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


def translated(error: OSError, name: str) -> GlassfsError:
    """Return the error of glassfs for what the system reported about the file called ``name``."""
    kind = next((kind for numbers, kind in _ERRORS if error.errno in numbers), Changed)
    return kind(error.strerror or str(error), name)


class LocalSource(Source):
    """A regular file of a store in the version ``entry``; ``fd`` is its descriptor if it is open."""

    def __init__(self, store: LocalStore, path: Path, entry: Entry, fd: int | None = None) -> None:
        self.name = store.shown(path)
        self.entry = entry
        self._store = store
        self._path = path
        self._checked = (entry.size, entry.mtime_ns)
        self._lock = threading.Lock()
        self._fd = fd
        self._readers = 0
        self._is_parked = fd is None
        self._is_closed = False
        self._is_pooled = fd is not None
        self.was_read = True
        """Set by each read, cleared by the descriptor pool when it searches for idle sources."""
        self.is_lost = False
        if fd is not None:
            descriptors.pool.add(self)

    def __del__(self) -> None:
        with suppress(AttributeError):  # __init__ failed
            self._give_back()  # without the lock: in a forked child, a thread that does not exist may hold it

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        wanted = total(buffers)
        work.check(wanted)
        fd = self._begin()
        try:
            got = fill(fd, buffers, offset, wanted)
            status = os.fstat(fd)
        except OverflowError:  # beyond any file
            raise self.outside(offset, wanted) from None
        except OSError as error:
            raise DeviceFailed(f"cannot be read at {offset}: {error.strerror or error}", self.name) from error
        finally:
            self._end()
        self._demand_unchanged(status)
        if got != wanted:
            raise self.outside(offset, wanted)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        fd = self._begin()
        try:
            self._demand_unchanged(os.fstat(fd))
            return _mapped(fd, offset, size)
        finally:
            self._end()

    def keep(self) -> None:
        with self._lock:
            self._is_parked = False

    def park(self) -> None:
        with self._lock:
            self._is_parked = True
            self._give_back()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._give_back()

    def evict(self, is_forced: bool = False) -> bool:
        """Close the descriptor, unless it is being read; the next read opens it again. Return whether it is closed.

        The descriptor of a deleted or replaced file that is in use is closed only if ``is_forced``.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._fd is not None and self.is_needed and not is_forced:
                self.is_lost = os.fstat(self._fd).st_nlink == 0
                if self.is_lost:
                    return False
            self._give_back()
            return self._fd is None
        finally:
            self._lock.release()

    def _demand_unchanged(self, status: os.stat_result) -> None:
        if (status.st_size, status.st_mtime_ns) != self._checked:
            raise Changed("was changed while it was open", self.name)

    def _begin(self) -> int:
        """Return the descriptor, which stays valid until ``_end``. Raises Changed and Unavailable."""
        with self._lock:
            if self._is_closed:
                raise Changed("was closed", self.name)
            if self._fd is None:
                self._fd = self._opened_again()
            self._readers += 1
            self.was_read = True
            return self._fd

    def _end(self) -> None:
        with self._lock:
            self._readers -= 1
            if self._is_parked or self._is_closed:
                self._give_back()
                return
            if self._is_pooled:
                return
            self._is_pooled = True
        descriptors.pool.add(self)

    def _give_back(self) -> None:
        if self._readers == 0 and self._fd is not None:
            fd, self._fd = self._fd, None
            self._is_pooled = False
            descriptors.pool.discard(self)
            os.close(fd)

    def _opened_again(self) -> int:
        try:
            fd, entry = self._store.open_descriptor(self._path)
        except Unavailable as error:
            raise error.at(self.name) from None
        except OSError as error:
            if error.errno in (*_FORBIDDEN, *_FAILING):
                raise translated(error, self.name) from None
            raise Changed(f"cannot be opened again: {error.strerror or error}", self.name) from error
        if entry.version != self.version:
            os.close(fd)
            raise Changed("has been replaced by another file", self.name)
        return fd


def _mapped(fd: int, offset: int, size: int) -> memoryview | None:
    """Return these bytes of an open file; None if they are not all in it or cannot be mapped now."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + size - start
    if not size or len(_mappings) >= MOST_MAPPINGS:
        return None
    try:
        if sys.version_info >= (3, 13):
            pages = mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start, trackfd=False)
        else:
            pages = mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start)
            _mappings.add(pages)
    except (OSError, ValueError, OverflowError):  # a file system that cannot, no descriptor, no room for it
        return None
    return memoryview(pages)[offset - start :]


def _acl_of(folder: int, name: str, status: os.stat_result) -> bytes:
    """Return the ACL of the file that ``status`` describes. Raises OSError; ESTALE if ``name`` was replaced."""
    fd = descriptors.opened(lambda: os.open(name, _NAME, dir_fd=folder))
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino, found.st_ctime_ns) != (status.st_dev, status.st_ino, status.st_ctime_ns):
            raise OSError(errno.ESTALE, "was replaced")
        return os.getxattr(f"/proc/self/fd/{fd}", ACL)
    finally:
        os.close(fd)


def _glance(folder: int, name: str, device: int | None) -> tuple[str, int] | None:
    """Return the stamp and the mode bits of ``name`` in an open folder on ``device``; None if it is not there."""
    try:
        if foreign.is_glassfs(folder, name, device):
            return None
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return f"{_version(status)}:{status.st_ctime_ns}", status.st_mode & 0o777


def _version(status: os.stat_result) -> Version:
    return Version(f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")


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

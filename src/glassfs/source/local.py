"""Files of the local system: every open starts at a descriptor of the store's root and follows no link.

Nothing is read through ``mmap``: a page of a file that somebody truncates raises SIGBUS and kills the process, where
``preadv`` returns fewer bytes. (Whoever asks for a mapping gets one: ``Source.mapped``.) ``preadv`` into the caller's
buffer copies once and releases the GIL. After each read the file's size and mtime are compared with those at opening:
the kernel sets the mtime before it copies new bytes in, so a read that finds the old mtime has seen old bytes only.

What stands at a path may be exchanged at any moment by somebody who may write there. So a path is opened in one step
in which the kernel follows no link and crosses no mount, or else walked component by component with O_NOFOLLOW; and
size, owner, mode and version are those of the descriptor that was opened. Mounts of glassfs are never looked into, as
their answers may depend on the one who asks: such an entry is an empty folder.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotADirectory, NotAllowed, NotFound, Unavailable
from glassfs.source import beneath, descriptors, foreign, mappings
from glassfs.source.contract import Entry, Kind, Path, Source, Store, Version
from glassfs.source.scattered import fill, total
from glassfs.source.watched import Watched

ACL = "system.posix_acl_access"
REMEMBERED_ACLS = 100_000
SETTLED = 2 * 10**9
"""Nanoseconds after which a change of attributes is sure to have another ctime than the one before."""
RENEWAL = 0.1
"""Seconds between two looks at what stands where a store has its root, for those who ask for something in it."""
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


class LocalStore(Store):
    """The folder ``root``, called ``name`` in messages. Links in ``root`` itself are resolved once, now.

    Raises OSError where the folder cannot be opened. When another folder takes its place, the store goes over to that;
    where nothing or a link stands there, nothing is found until a folder does.
    """

    has_lasting_versions = True

    def __init__(self, root: str | os.PathLike[str], name: str | None = None) -> None:
        self._place = os.path.realpath(root)
        self._name = os.fspath(root) if name is None else name
        self._lock = threading.Lock()
        self._watched = Watched(self._place)
        self._acls: dict[tuple[int, int, int], bool] = {}
        self._avoids_glassfs = False
        self._root: _Root | None = self._opened_root()
        # A root on a mount of glassfs was named on purpose; in the path of any other, one that turns up is not entered.
        self._avoids_glassfs = not foreign.is_on_glassfs(self._root.device)
        self._next_renewal = time.monotonic() + RENEWAL

    def __del__(self) -> None:
        with suppress(AttributeError):  # one that could not be made
            self.close()

    def shown(self, path: Path) -> str:
        return os.path.join(self._name, *path) if path else self._name

    def entry(self, path: Path) -> Entry:
        self._renew_root(is_due=not path)
        with self._errors(path):
            if len(path) < 2:
                root = self._current_root()
                return self._entry(root.number, path[0] if path else ".", root.device)
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
                try:
                    found.append((name, self._entry(folder, name, device)))
                except Unavailable:
                    raise
                except OSError:  # gone meanwhile
                    continue
        return iter(found)

    def open(self, path: Path) -> Source:
        self._renew_root(is_due=False)
        with self._errors(path):
            number, entry = self.open_descriptor(path)
        return LocalSource(self, path, entry, number)

    def source(self, path: Path, entry: Entry) -> Source:
        return LocalSource(self, path, entry)

    def watch(self, path: Path, told: Callable[[Path, str], None]) -> bool:
        return self._watched.watch(path, told, self._has_root)

    def close(self) -> None:
        self._watched.close()
        with self._lock:
            self._root = None

    def open_descriptor(self, path: Path) -> tuple[int, Entry]:
        """A descriptor of the regular file at ``path``, and what it is. Raises OSError and Unavailable."""
        if not path:
            raise OSError(errno.EISDIR, "is a folder")
        root = self._current_root()
        number = beneath.opened(root.number, path, _READ_BENEATH)
        if number is None:
            with self._folder(path[:-1]) as folder:
                if foreign.is_glassfs(folder, path[-1], foreign.device_of(folder)):
                    raise FileNotFoundError(errno.ENOENT, "is on a mount of glassfs")
                number = descriptors.opened(lambda: os.open(path[-1], _READ, dir_fd=folder))
        try:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "is not a regular file")
            return number, self._described(status, lambda: os.getxattr(number, ACL))
        except BaseException:
            os.close(number)
            raise

    def _entry(self, folder: int, name: str, device: int | None) -> Entry:
        """Raises OSError."""
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
        # A list of further users takes rights away, too: nine bits cannot say who is in it.
        if permissions & 0o077 and kind is not Kind.LINK and self._has_acl(status, acl):
            permissions &= 0o700
        place = f"{status.st_dev}:{status.st_ino}"
        version = Version(f"{place}:{status.st_size}:{status.st_mtime_ns}")
        return Entry(
            kind, version, place, f"{version}:{status.st_ctime_ns}", status.st_size, permissions, status.st_uid,
            status.st_gid, status.st_mtime_ns, volume=_volume(status.st_dev),
            has_other_names=kind is Kind.FILE and status.st_nlink > 1,
        )

    def _has_acl(self, status: os.stat_result, acl: Callable[[], bytes]) -> bool:
        if not hasattr(os, "getxattr"):
            return False
        key = (status.st_dev, status.st_ino, status.st_ctime_ns)  # setting one moves the ctime
        known = self._acls.get(key)
        if known is None:
            try:
                known = bool(acl())
            except Unavailable:
                raise
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                    return True  # nobody can tell
                known = False
            if time.time_ns() - status.st_ctime_ns > SETTLED:
                if len(self._acls) >= REMEMBERED_ACLS:
                    self._acls.clear()
                self._acls[key] = known
        return known

    @contextmanager
    def _folder(self, path: Path) -> Iterator[int]:
        """A descriptor of the folder at ``path``, to start opening at. Raises OSError and Unavailable."""
        root = self._current_root()
        if not path:
            yield root.number
            return
        number = beneath.opened(root.number, path, _SEARCH_BENEATH)
        if number is None:
            number = self._walked(root.number, path)
        try:
            yield number
        finally:
            os.close(number)

    def _walked(self, folder: int, path: Path) -> int:
        """The same name by name, from a folder that is not the last one."""
        held = []
        try:
            for name in path:
                if foreign.is_glassfs(folder, name, foreign.device_of(folder)):
                    raise FileNotFoundError(errno.ENOENT, "is a mount of glassfs")
                folder = descriptors.opened(partial(os.open, name, _SEARCH, dir_fd=folder))
                held.append(folder)
                if len(held) > 1:
                    os.close(held.pop(0))
        except BaseException:
            for number in held:
                os.close(number)
            raise
        return folder

    def _current_root(self) -> _Root:
        """The root, whose descriptor stays what it is as long as somebody refers to it."""
        root = self._root
        if root is None:
            with self._lock:
                root = self._root
                if root is None:
                    root = self._root = self._opened_root()
        return root

    def _opened_root(self) -> _Root:
        """What stands where the root is, or stood. Raises OSError and Unavailable."""
        number = descriptors.opened(lambda: os.open("/", _SEARCH))
        try:
            for name in filter(None, self._place.split("/")):
                if self._avoids_glassfs and foreign.is_glassfs(number, name, foreign.device_of(number)):
                    raise OSError(errno.EBUSY, "is behind a mount of glassfs")
                inner = descriptors.opened(partial(os.open, name, _SEARCH, dir_fd=number))
                os.close(number)
                number = inner
        except BaseException:
            os.close(number)
            raise
        return _Root(number)

    def _renew_root(self, is_due: bool) -> None:
        """Goes over to what is where the root was. Where that cannot be found out, the root stays what it is."""
        if not (is_due or self._watched.has_ended) and time.monotonic() < self._next_renewal:
            return
        self._watched.has_ended = False
        self._next_renewal = time.monotonic() + RENEWAL
        now = None
        try:
            now = self._opened_root()
        except (Unavailable, OSError) as error:
            if error.errno not in (*_MISSING, errno.ENOTDIR):
                return
        with self._lock:
            root = self._root
            if now is None or root is None or not os.path.samestat(os.fstat(now.number), os.fstat(root.number)):
                self._root = now

    def _has_root(self, identity: tuple[int, int]) -> bool:
        """Whether the root is that folder, if need be after going over to what is there now."""
        for is_due in (False, True):
            if is_due:
                self._renew_root(is_due=True)
            with self._lock:
                if self._root is not None:
                    status = os.fstat(self._root.number)
                    if (status.st_dev, status.st_ino) == identity:
                        return True
        return False

    @contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        """Turns what the system says about ``path`` into errors of glassfs."""
        try:
            yield
        except GlassfsError as error:
            raise error.at(self.shown(path)) from None
        except OSError as error:
            raise told(error, self.shown(path)) from None
        except ValueError:  # a NUL, or a surrogate that stands for no byte
            raise NotFound("is not a name that a file can have", self.shown(path)) from None


class _Root:
    """A descriptor of a store's root, closed when nobody refers to it any more; ``device`` is what it is on."""

    __slots__ = ("device", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.device = foreign.device_of(number)

    def __del__(self) -> None:
        os.close(self.number)


def told(error: OSError, name: str) -> GlassfsError:
    """What the system said about the file called ``name``."""
    reason = error.strerror or str(error)
    if error.errno in _MISSING:
        return NotFound(reason, name)
    if error.errno == errno.ENOTDIR:
        return NotADirectory(reason, name)
    if error.errno in _FORBIDDEN:
        return NotAllowed(reason, name)
    if error.errno in _FAILING:
        return DeviceFailed(reason, name)
    if error.errno in descriptors.EXHAUSTED:
        return Unavailable(reason, name)
    return Changed(reason, name)


class LocalSource(Source):
    """A regular file of a store, in the version that ``entry`` tells; ``number`` is a descriptor of it, if open."""

    def __init__(self, store: LocalStore, path: Path, entry: Entry, number: int | None = None) -> None:
        self.name = store.shown(path)
        self.entry = entry
        self._store = store
        self._path = path
        self._checked = (entry.size, entry.mtime_ns)
        self._lock = threading.Lock()
        self._number = number
        self._readers = 0
        self._is_parked = number is None
        self._is_closed = False
        self._is_pooled = number is not None
        self.was_read = True
        """Set by each read; the pool clears it when it looks for descriptors that nobody needs."""
        self.is_lost = False
        if number is not None:
            descriptors.pool.add(self)

    def __del__(self) -> None:
        with suppress(AttributeError):  # one that could not be made
            self._give_back()  # without the lock: after a fork, a thread that is not there may have it

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.scatter((buffer,), offset)

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        wanted = total(buffers)
        number = self._begin()
        try:
            got = fill(number, buffers, offset, wanted)
            status = os.fstat(number)
        except OverflowError:  # further than any file can reach
            raise self.outside(offset, wanted) from None
        except OSError as error:
            raise DeviceFailed(f"cannot be read at {offset}: {error.strerror or error}", self.name) from error
        finally:
            self._end()
        self._demand_unchanged(status)
        if got != wanted:
            raise self.outside(offset, wanted)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        number = self._begin()
        try:
            self._demand_unchanged(os.fstat(number))
            return mappings.mapped(number, offset, size)
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
        """Closes the descriptor, to be opened again by the next read, unless somebody reads right now.

        That of a file that is in use and was deleted, or has another one in its place, only if ``is_forced``.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._number is not None and self.is_needed and not is_forced:
                self.is_lost = os.fstat(self._number).st_nlink == 0
                if self.is_lost:
                    return False
            self._give_back()
            return self._number is None
        finally:
            self._lock.release()

    def _demand_unchanged(self, status: os.stat_result) -> None:
        if (status.st_size, status.st_mtime_ns) != self._checked:
            raise Changed("was changed while it was open", self.name)

    def _begin(self) -> int:
        """The descriptor, which stays what it is until ``_end``. Raises Changed and Unavailable."""
        with self._lock:
            if self._is_closed:
                raise Changed("was closed", self.name)
            if self._number is None:
                self._number = self._opened_again()
            self._readers += 1
            self.was_read = True
            return self._number

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
        if self._readers == 0 and self._number is not None:
            number, self._number = self._number, None
            self._is_pooled = False
            descriptors.pool.discard(self)
            os.close(number)

    def _opened_again(self) -> int:
        try:
            number, entry = self._store.open_descriptor(self._path)
        except Unavailable as error:
            raise error.at(self.name) from None
        except OSError as error:
            if error.errno in (*_FORBIDDEN, *_FAILING):
                raise told(error, self.name) from None
            raise Changed(f"cannot be opened again: {error.strerror or error}", self.name) from error
        if entry.version != self.version:
            os.close(number)
            raise Changed("has been replaced by another file", self.name)
        return number


def _acl_of(folder: int, name: str, status: os.stat_result) -> bytes:
    """The access list of what ``status`` is of. Raises OSError; ESTALE where ``name`` is something else by now."""
    number = descriptors.opened(lambda: os.open(name, _NAME, dir_fd=folder))
    try:
        found = os.fstat(number)
        if (found.st_dev, found.st_ino, found.st_ctime_ns) != (status.st_dev, status.st_ino, status.st_ctime_ns):
            raise OSError(errno.ESTALE, "was exchanged")
        return os.getxattr(f"/proc/self/fd/{number}", ACL)
    finally:
        os.close(number)


def _hidden(parent: os.stat_result) -> Entry:
    """What a mount of glassfs looks like from here: an empty folder of the one that has the folder around it."""
    place = f"{parent.st_dev}:{parent.st_ino}:hidden"
    return Entry(
        Kind.MOUNT, Version(place), place, place, 0, parent.st_mode & 0o555, parent.st_uid, parent.st_gid,
        parent.st_mtime_ns, volume=_volume(parent.st_dev),
    )


@lru_cache(256)
def _volume(device: int) -> str:
    """One string for all that is there: there may be many entries."""
    return f"{device}"


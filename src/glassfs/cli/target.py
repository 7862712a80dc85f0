"""A folder of the local system that is written to safely, whatever others have put or are putting into it.

Below the folder everything is done by descriptors of directories, each opened from the one above it: nothing there is
followed, and what stands where a folder or a file has to go is never opened. A file is written under a temporary name
beside its own and renamed when it is whole; whatever ends the writing, the temporary file goes. So a name in the
target is a whole file or no file, also where two programs write into one target.

One thread. What cannot be done is NotWritten; Unusable is one after which nothing else can be written either.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from types import TracebackType
from typing import NamedTuple, NoReturn

from glassfs.errors import GlassfsError
from glassfs.names import raw
from glassfs.source import is_url

KEPT_FOLDERS = 64
PIECE = 1 << 20
ZEROS = bytes(PIECE)
OWNER = 0o700
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)


class NotWritten(GlassfsError):
    """Why something cannot be written, without its name."""


class Unusable(NotWritten):
    """Why nothing else can be written either."""


class Existing(Enum):
    """What to do about a file that is there already."""

    REFUSE = "refuse"
    OVERWRITE = "overwrite"
    RESUME = "resume"


class Place(NamedTuple):
    """A file or folder of the local system, whatever path leads to it."""

    device: int
    number: int

    @classmethod
    def of(cls, status: os.stat_result) -> Place:
        return cls(status.st_dev, status.st_ino)


class Target:
    """The open folder ``root``. Places in it are ``/a/b``, as in a tree; ``/`` is the folder itself.

    ``kept`` are files and folders (the source) that nothing is written to and nothing takes the place of.
    """

    def __init__(self, root: int, existing: Existing, kept: Collection[Place] = ()) -> None:
        self.place = Place.of(os.fstat(root))
        self._existing = existing
        self._kept = kept
        self._root = root
        self._folders: OrderedDict[str, int] = OrderedDict()
        self._last = "", root

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for descriptor in (*self._folders.values(), self._root):
            os.close(descriptor)
        self._folders.clear()

    def make_folder(self, place: str, mode: int) -> None:
        """A folder that may be there already. A new one has ``mode`` less the umask; its owner may fill it."""
        above, name = self._at(place)
        with _writing:
            try:
                os.mkdir(name, mode & 0o777 | OWNER, dir_fd=above)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                    raise NotWritten("something that is not a directory is in the way") from None

    def write(self, place: str, mode: int, mtime_ns: int, pieces: Iterable[memoryview]) -> None:
        """A file of these pieces, each but the last PIECE long; what is zero in it becomes a hole.

        What ``pieces`` raises goes through, and the file does not come into being.
        """
        folder, name = self._free(place)
        temporary = _temporary_name()
        try:
            with _writing:
                descriptor = os.open(temporary, _NEW_FILE, mode & 0o777, dir_fd=folder)
            try:
                _fill(descriptor, pieces)
                with _writing:
                    os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            finally:
                with _writing:  # some file systems tell only now that there is no room
                    os.close(descriptor)
            self._put(folder, temporary, name)
        except BaseException:
            _discard(folder, temporary)
            raise

    def link(self, place: str, goal: str, mtime_ns: int) -> None:
        """A symbolic link to ``goal``."""
        folder, name = self._free(place)
        temporary = _temporary_name()
        try:
            with _writing:
                os.symlink(raw(goal), temporary, dir_fd=folder)
                os.utime(temporary, ns=(mtime_ns, mtime_ns), dir_fd=folder, follow_symlinks=False)
            self._put(folder, temporary, name)
        except BaseException:
            _discard(folder, temporary)
            raise

    def has_file(self, place: str, mtime_ns: int, size: int | None) -> bool:
        """Whether a regular file with this time and, where that is given, this size is there."""
        status = self._status(*self._at(place))
        return (
            status is not None and stat.S_ISREG(status.st_mode) and status.st_mtime_ns == mtime_ns
            and size in (None, status.st_size)
        )

    def has_anything(self, place: str) -> bool:
        """Whether something is there, in a folder that is."""
        try:
            return self._status(*self._at(place)) is not None
        except NotWritten:
            return False

    def has_link(self, place: str, goal: str) -> bool:
        folder, name = self._at(place)
        try:
            return os.readlink(name, dir_fd=folder) == raw(goal)
        except OSError:
            return False

    def _put(self, folder: int, temporary: bytes, name: bytes) -> None:
        with _writing:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _free(self, place: str) -> tuple[int, bytes]:
        """Folder and name for a new file, where nothing is or what is there is to be replaced."""
        folder, name = self._at(place)
        status = self._status(folder, name)
        if status is None:
            return folder, name
        if Place.of(status) in self._kept:
            raise NotWritten("is the source itself")
        if stat.S_ISDIR(status.st_mode):
            raise NotWritten("a directory is in the way")
        if self._existing is Existing.REFUSE:
            raise NotWritten("exists already; use --overwrite to replace it or --resume to keep it if it is complete")
        if self._existing is Existing.RESUME and not stat.S_ISREG(status.st_mode):
            raise NotWritten("something that is not a regular file is in the way; --overwrite replaces it")
        return folder, name

    def _at(self, place: str) -> tuple[int, bytes]:
        """The folder that a place is in, open, and its name there."""
        folder, _, name = place.rpartition("/")
        return self._folder(folder), _component(name)

    def _folder(self, place: str) -> int:
        """The descriptor of a folder that is there, opened component by component from one that is open."""
        if place == self._last[0]:  # mostly a file goes beside the one before it
            return self._last[1]
        missing: list[str] = []
        known = place
        while known and known not in self._folders:
            known, _, name = known.rpartition("/")
            missing.append(name)
        descriptor = self._root
        if known:
            descriptor = self._folders[known]
            self._folders.move_to_end(known)
        for name in reversed(missing):
            known = f"{known}/{name}"
            descriptor = self._folders[known] = self._entered(descriptor, _component(name))
            if len(self._folders) > KEPT_FOLDERS:
                os.close(self._folders.popitem(last=False)[1])
        self._last = place, descriptor
        return descriptor

    def _entered(self, above: int, name: bytes) -> int:
        with _writing:
            try:
                descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
            except (NotADirectoryError, FileNotFoundError):
                raise NotWritten("the folder for it is no longer there") from None
        if Place.of(os.fstat(descriptor)) in self._kept:
            os.close(descriptor)
            raise NotWritten("the folder for it is the source itself")
        return descriptor

    def _status(self, folder: int, name: bytes) -> os.stat_result | None:
        with _writing:
            try:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None


@contextmanager
def opened_target(
    path: str, mode: int, existing: Existing, source: str, is_begun: bool = False,
) -> Iterator[Target]:
    """The folder at ``path``, made with ``mode`` where it is missing, together with those above it.

    Links in ``path`` are followed as usual, but for the last component. Refused, before anything is written: a folder
    that is ``source`` or inside it, and one that has something in it, if that is not said to be replaced or resumed.
    If it ``is_begun``, others are writing to it, and it is there.
    """
    kept = set() if is_url(source) else {Place.of(os.stat(source))}
    above, missing = _deepest(path)
    try:
        if any(place in kept for place in _and_above(above)):
            raise NotWritten("is the source itself, or inside it")
        if missing and is_begun:
            raise Unusable("is not there for one of those who should write to it")
        for number, name in enumerate(missing, 1):
            is_last = number == len(missing)
            with suppress(FileExistsError):
                os.mkdir(name, mode & 0o777 | OWNER if is_last else 0o777, dir_fd=above)
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
            os.close(above)
            above = below
        root = os.open(b".", _FOLDER, dir_fd=above)
    except OSError as error:
        _raise_not_written(error)
    finally:
        os.close(above)
    with Target(root, existing, kept) as target:
        if existing is Existing.REFUSE and not is_begun and _has_something(root):
            raise NotWritten("is not empty; use --overwrite to replace files in it or --resume to go on with an export")
        yield target


def names_below(path: str, folder: str) -> list[str] | None:
    """The names that lead from a folder to what is at ``path``; None if it is not inside."""
    above = os.path.realpath(path)
    names: list[str] = []
    with suppress(OSError):
        wanted = Place.of(os.stat(folder))
        while above != "/":
            above, name = os.path.split(above)
            names.append(name)
            if Place.of(os.stat(above)) == wanted:
                return names[::-1]
    return None


def _deepest(path: str) -> tuple[int, list[bytes]]:
    """The deepest directory of a path that is there, open, and the names that are missing below it."""
    missing: list[bytes] = []
    place = os.fsencode(path)
    while True:
        try:
            descriptor = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | (0 if missing else os.O_NOFOLLOW))
        except FileNotFoundError as error:
            above, name = os.path.split(place.rstrip(b"/"))
            if name in (b"", b".", b".."):
                _raise_not_written(error)
            missing.insert(0, name)
            place = above or b"."
        except NotADirectoryError as error:
            if not missing and os.path.islink(place):
                raise NotWritten("is a symbolic link; with a slash after it the folder it leads to is used") from error
            raise NotWritten("is not a directory" if not missing else "what is above it is not a directory") from error
        except OSError as error:
            _raise_not_written(error)
        else:
            return descriptor, missing


def _and_above(directory: int) -> Iterator[Place]:
    """An open directory and all above it, found by descriptors."""
    place = Place.of(os.fstat(directory))
    current = os.dup(directory)
    try:
        while True:
            yield place
            above = os.open(b"..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = above
            below, place = place, Place.of(os.fstat(current))
            if place == below:
                return
    finally:
        os.close(current)


def _has_something(directory: int) -> bool:
    with os.scandir(directory) as entries:
        return next(entries, None) is not None


def _fill(descriptor: int, pieces: Iterable[memoryview]) -> None:
    end = written = 0
    for piece in pieces:
        if not _is_zero(piece):
            written = end
            while written < end + len(piece):
                with _writing:
                    written += os.pwrite(descriptor, piece[written - end :], written)
        end += len(piece)
    if written < end:
        with _writing:
            os.ftruncate(descriptor, end)


def _is_zero(piece: memoryview) -> bool:
    if not piece or piece[0] or piece[-1]:
        return False
    return bytes(piece) == (ZEROS if len(piece) == PIECE else bytes(len(piece)))


def _temporary_name() -> bytes:
    return b".glassfs-" + os.urandom(8).hex().encode()


def _discard(folder: int, name: bytes) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _component(name: str) -> bytes:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise NotWritten("is not a name that a file can have")
    return raw(name)


class _Writing:
    """What the system refuses in here is NotWritten. A class, as a generator would cost as much as the system call."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, OSError):
            _raise_not_written(error)


def _raise_not_written(error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        raise Unusable(f"{reason}; when there is room, --resume goes on from here") from error
    raise (Unusable if error.errno == errno.EROFS else NotWritten)(reason) from error


_writing = _Writing()

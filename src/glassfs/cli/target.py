"""Write safely to a folder of the local system that other processes may be changing.

Below the folder, everything uses descriptors of directories, each opened from its parent without following links. A
file is written under a temporary name beside its own and renamed when complete; the temporary file is removed on any
failure. So a name in the target is a complete file or does not exist, even if two programs write to one target.

One thread. Failures raise NotWritten; Unusable if nothing else can be written either.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from enum import Enum
from types import TracebackType
from typing import NoReturn

from glassfs.errors import GlassfsError
from glassfs.names import raw
from glassfs.outputs import is_inside
from glassfs.source import is_url

NOT_EMPTY = "is not empty; use --overwrite to replace files in it or --resume to continue an export"
INSIDE = "is the source itself or inside it; name another folder"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)


class NotWritten(GlassfsError):
    """Why something cannot be written, without its name."""


class Unusable(NotWritten):
    """Why nothing else can be written either."""


class Existing(Enum):
    """What to do about existing files."""

    REFUSE = "refuse"
    OVERWRITE = "overwrite"
    RESUME = "resume"


class Target:
    """The open folder ``root`` that an export writes to. In files, pieces of zeros become holes.

    Paths in it are ``/a/b``, as in a tree; ``/`` is the target itself. ``kept``, a file or folder (the source), is
    neither written to nor replaced.
    """

    def __init__(self, root: int, existing: Existing, kept: os.stat_result | None) -> None:
        self._existing = existing
        self._kept = kept
        self._root = root
        # Files of a folder are written one after another.
        self._place, self._folder = "", os.dup(root)

    def close(self) -> None:
        os.close(self._folder)
        os.close(self._root)

    def is_at(self, path: str) -> bool:
        """Return whether the local ``path`` leads to the target. Raises OSError."""
        return os.path.samestat(os.stat(path), os.fstat(self._root))

    def make_folder(self, path: str, mode: int) -> None:
        """Make a folder unless it exists. A new one has ``mode`` less the umask, writable for all who may read it."""
        above, name = self._at(path)
        with _writing:
            try:
                os.mkdir(name, _writable(mode) | stat.S_IRWXU, dir_fd=above)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                    raise NotWritten("something other than a directory is in the way") from None

    def write(self, path: str, mode: int, mtime_ns: int, pieces: Iterable[memoryview]) -> None:
        """Write a file in pieces. Its mode is as for a folder.

        If ``pieces`` raises, the error passes through and no file is created.
        """
        with self._replacing(path) as (folder, temporary):
            with _writing:
                descriptor = os.open(temporary, _NEW_FILE, _writable(mode), dir_fd=folder)
            try:
                for piece in pieces:
                    # The first byte of most others shows that they are none, without a copy.
                    is_hole = not any(piece[:1]) and not bytes(piece).strip(b"\0")
                    with _writing:
                        if is_hole:
                            os.lseek(descriptor, len(piece), os.SEEK_CUR)
                        while piece and not is_hole:
                            piece = piece[os.write(descriptor, piece) :]
                with _writing:
                    os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
                    os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            finally:
                with _writing:  # some file systems report a full disk only now
                    os.close(descriptor)

    def link(self, path: str, goal: str, mtime_ns: int) -> None:
        """Make a symbolic link to ``goal``, unless an interrupted export has."""
        if self._existing is Existing.RESUME:
            above, name = self._at(path)
            with suppress(OSError):
                if os.readlink(name, dir_fd=above) == raw(goal):
                    return
        with self._replacing(path) as (folder, temporary), _writing:
            os.symlink(raw(goal), temporary, dir_fd=folder)
            os.utime(temporary, ns=(mtime_ns, mtime_ns), dir_fd=folder, follow_symlinks=False)

    def has_file(self, path: str, mtime_ns: int, size: int | None) -> bool:
        """Return whether a regular file with this time and, if given, size exists."""
        status = self._status(*self._at(path))
        return (
            status is not None and stat.S_ISREG(status.st_mode) and status.st_mtime_ns == mtime_ns
            and size in (None, status.st_size)
        )

    def has_anything(self, path: str) -> bool:
        """Return whether anything exists there."""
        with suppress(NotWritten):
            return self._status(*self._at(path)) is not None
        return False

    @contextmanager
    def _replacing(self, path: str) -> Iterator[tuple[int, bytes]]:
        """Yield an open folder and a temporary name in it; what is created there is renamed to ``path`` at the end."""
        # The name is checked here and replaced at the end. If another program takes it between, it loses its file as to
        # any rename; files of the source cannot be lost, as their folders are refused.
        folder, name = self._free(path)
        temporary = b".glassfs-" + os.urandom(8).hex().encode()
        try:
            yield folder, temporary
            with _writing:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise

    def _free(self, path: str) -> tuple[int, bytes]:
        """Return folder and name for a new file where nothing exists or the existing file may be replaced."""
        folder, name = self._at(path)
        status = self._status(folder, name)
        if status is None:
            return folder, name
        if self._is_kept(status):
            raise NotWritten("is the source itself")
        if stat.S_ISDIR(status.st_mode):
            raise NotWritten("a directory is in the way")
        if self._existing is Existing.REFUSE:
            raise NotWritten("exists already; use --overwrite to replace it or --resume to keep it if it is complete")
        if self._existing is Existing.RESUME and not stat.S_ISREG(status.st_mode):
            raise NotWritten("something other than a regular file is in the way; use --overwrite to replace it")
        return folder, name

    def _at(self, path: str) -> tuple[int, bytes]:
        """Return the open folder of a path, and the name in it."""
        place, _, name = path.rpartition("/")
        if place != self._place:
            names = list(map(_component, place.split("/")[1:]))
            folder = os.dup(self._root)
            for below in names:
                folder = self._entered(folder, below)
            os.close(self._folder)
            self._place, self._folder = place, folder
        return self._folder, _component(name)

    def _entered(self, above: int, name: bytes) -> int:
        """Return the descriptor of a folder in an open one, which is closed."""
        with _writing:
            try:
                descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
            except (NotADirectoryError, FileNotFoundError):
                raise NotWritten("its folder no longer exists") from None
            finally:
                os.close(above)
        if self._is_kept(os.fstat(descriptor)):
            os.close(descriptor)
            raise NotWritten("its folder is the source itself")
        return descriptor

    def _is_kept(self, status: os.stat_result) -> bool:
        return self._kept is not None and os.path.samestat(status, self._kept)

    def _status(self, folder: int, name: bytes) -> os.stat_result | None:
        with _writing:
            try:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None


@contextmanager
def opened_folder(path: str, mode: int, existing: Existing, source: str, is_begun: bool = False) -> Iterator[Target]:
    """Open the folder at ``path``; a missing one is made with ``mode``, after those above it.

    Links in ``path`` are followed, except for the last component. Refused before anything is written: a folder that is
    ``source`` or inside it, and one that is not empty unless ``existing`` allows it. If ``is_begun``, it must exist, as
    other processes write to it.
    """
    kept = None if is_url(source) else os.stat(source)
    if os.path.islink(path):  # not with a slash at its end
        raise NotWritten("is a symbolic link; append a slash to use the folder that it leads to")
    if kept is not None and is_inside(path, kept):
        raise NotWritten(INSIDE)
    if is_begun and not os.path.isdir(path):
        raise Unusable("does not exist on one of the workers; use a folder that all of them share")
    try:
        folder = _made(path, _writable(mode) | stat.S_IRWXU, os.O_NOFOLLOW)
        try:
            root = os.open(b".", _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
    except NotADirectoryError as error:
        is_there = os.path.lexists(path.rstrip("/"))
        raise NotWritten("is not a directory" if is_there else "its parent is not a directory") from error
    except OSError as error:
        _raise_not_written(error)
    with closing(Target(root, existing, kept)) as target:
        if existing is Existing.REFUSE and not is_begun and os.listdir(root):
            raise NotWritten(NOT_EMPTY)
        yield target


def _made(path: str, mode: int, no_links: int = 0) -> int:
    """Open a folder (O_PATH) after making what is missing of it and above it. No new one can be a link of others."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | no_links)
    except FileNotFoundError:
        above, name = os.path.split(path.rstrip("/"))
        if name in ("", ".", ".."):
            raise
        folder = _made(above or ".", 0o777)
    try:
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=folder)
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def _writable(mode: int) -> int:
    """Return the mode of a new file or folder, before the umask: readers of the source may write, others nothing."""
    return mode & 0o777 | (mode & 0o444) >> 1 | 0o600


def _component(name: str) -> bytes:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise NotWritten("is not a valid file name")
    return raw(name)


class _Writing:
    """Turn errors of the system into NotWritten. A class, as a generator would take as long as the system call."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, OSError):
            _raise_not_written(error)


def _raise_not_written(error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        raise Unusable(f"{reason}; free some space and continue with --resume") from error
    raise (Unusable if error.errno == errno.EROFS else NotWritten)(reason) from error


_writing = _Writing()

"""Mount points: make them, find what is mounted there, ask mounts for their status, and unmount them.

A mount may never answer. A thread that waits for a file system whose daemon hangs cannot be ended, not even by SIGKILL,
and neither can its process. So each question is asked by a child process, which is abandoned when its time is up. Call
``ask`` and ``statuses`` while the process has one thread.

A mount point that the user did not name, or that is missing, is made. The process that serves the mount removes it,
however the mount ends, except by ``kill -9``: only an empty directory, and only if it is the one that was made.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NoReturn

from glassfs.mount.errors import MountError
from glassfs.names import component, raw
from glassfs.settings import settings
from glassfs.sizes import PIECE
from glassfs.source.mountinfo import FILE_SYSTEM, Mount, mounts
from glassfs.source.remote.url import is_url, local_name, parsed
from glassfs.tree import may_be_container

_LIBC = ctypes.CDLL(None, use_errno=True)
SUFFIX = "-glassfs"
_PARTIAL = ".partial"  # the suffix of a container that is still being written

Question = Callable[[], bytes]

GONE = "its daemon is gone; 'glassfs umount' removes it"
SILENT = "does not answer"
NOT_ALLOWED = "only root and the user who mounted it may see more"
FOREIGN = "its status cannot be read"


def mount_at(path: str) -> Mount | None:
    """Return the topmost mount whose mount point is ``path``, which must be absolute and without symbolic links."""
    found = [mount for mount in mounts() if mount.path == path]
    return found[-1] if found else None


def real_path(path: str) -> str:
    """Return the path without symbolic links. Nothing is asked of what is mounted there: it may be dead, or hang."""
    found = os.path.abspath(path)
    for _ in range(40):  # as many links as the kernel follows
        folder, name = os.path.split(found)
        found = os.path.join(os.path.realpath(folder), name)
        try:
            found = os.path.join(os.path.dirname(found), os.readlink(found))
        except OSError:  # no link: the kernel says so without the mount
            break
    return os.path.normpath(found)


def is_dead(path: str) -> bool:
    """Return whether the daemon of the mount at ``path`` is gone. Not by ``stat``, which the kernel may have cached."""
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(path: str, lazy: bool = False) -> None:
    """Unmount the glassfs mount at ``path``. Raises MountError with the reason."""
    mount = mount_at(real_path(path))
    if mount is None:
        raise MountError(f"{path}: nothing is mounted there")
    if mount.file_system != FILE_SYSTEM:
        raise MountError(f"{path}: is not a glassfs mount but {mount.file_system}")
    reason = _unmount(mount.path, lazy)
    if reason:
        hint = "; close what uses it ('fuser -m' lists the processes), or use 'glassfs umount --lazy'"
        raise MountError(f"{path}: {reason}{hint if 'busy' in reason else ''}")
    end = time.monotonic() + settings.unmounting
    while mount in mounts() and time.monotonic() < end:
        time.sleep(0.01)


def _unmount(path: str, lazy: bool) -> str | None:
    """Unmount; return the reason if that failed, else None."""
    number = detached(path, lazy)
    if number != errno.EPERM:
        return os.strerror(number) if number else None
    program = fusermount()
    if program is None:
        return "fusermount3 is not installed"
    command = [program, "-u", *(["-z"] if lazy else []), "--", path]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stderr.strip().rpartition(": ")[2] or f"{program} failed" if done.returncode else None


def detached(path: str, lazy: bool) -> int:
    """Unmount by the system call; return its errno, 0 for success. Only for root, and in namespaces of their own."""
    flags = 8 | (2 if lazy else 0)  # UMOUNT_NOFOLLOW and MNT_DETACH
    return ctypes.get_errno() if _LIBC.umount2(os.fsencode(path), flags) else 0


def fusermount() -> str | None:
    """Return the path of the program that mounts and unmounts for users, of libfuse 3 or libfuse 2; None for none."""
    return shutil.which("fusermount3") or shutil.which("fusermount")


def silence() -> None:
    """Have the standard descriptors of this process lead to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def raise_read_ahead(device: str, size: int) -> bool:
    """Set the kernel's read-ahead for a mount to ``size`` bytes; return whether that worked. Only root may.

    The kernel does not let a daemon ask for more than 128 KiB.
    """
    try:
        with open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as file:
            file.write(str(size >> 10))
    except OSError:
        return False
    return True


def statuses(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return each mount's status.json, or the reason why it cannot be read, as ``unreadable``.

    Any user who may mount can be at the other end, so callers must not trust the content.
    """
    return [_parsed(answer) for answer in ask([partial(_status, path) for path in paths])]


def ask(questions: Sequence[Question], seconds: float | None = None) -> list[bytes | None]:
    """Return the answer to each question, or None if it raised or took longer; by default, than a mount may take."""
    children: list[tuple[int, int]] = []
    for question in questions:
        pipe, writable = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(pipe)
            _answer(question, writable)
        os.close(writable)
        children.append((child, pipe))
    end = time.monotonic() + (settings.probe if seconds is None else seconds)
    return [_heard(child, pipe, end) for child, pipe in children]


def _heard(child: int, pipe: int, end: float) -> bytes | None:
    """Return what a child says by that moment of ``time.monotonic``."""
    said = b""
    with open(pipe, "rb", buffering=0) as file:
        # A moment in any case: another child may have taken all the time, and this one waits to say more.
        while select.select((file,), (), (), max(0.1, end - time.monotonic()))[0]:
            part = file.read(PIECE)
            if not part:
                return said if os.waitpid(child, 0)[1] == 0 else None
            said += part
    # Not waited for: a child that hangs in the kernel ends when the kernel lets it.
    os.kill(child, signal.SIGKILL)
    return None


def _answer(question: Question, writable: int) -> NoReturn:
    """Answer a question through a pipe, as a child process."""
    status = 1
    try:
        # A reader of this program's output must not have to wait for a child that hangs.
        silence()
        answer = question()
        while answer:
            answer = answer[os.write(writable, answer) :]
        status = 0
    finally:
        os._exit(status)


def _status(path: str) -> bytes:
    """Return the status, or the reason why there is none, as JSON."""
    reason: str | None = GONE
    try:
        if not is_dead(path):
            with open(os.path.join(path, ".glassfs/status.json"), "rb") as file:
                return file.read(16 << 20)  # a longer one is not from glassfs
    except PermissionError:
        reason = NOT_ALLOWED
    except OSError as error:
        reason = error.strerror
    return json.dumps({"unreadable": reason}).encode()


def _parsed(answer: bytes | None) -> dict[str, Any]:
    if answer is None:
        return {"unreadable": SILENT}
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"unreadable": FOREIGN}


@dataclass(frozen=True)
class OwnMountPoint:
    """A directory that was created for one mount. ``name`` is relative to where it was created, ``path`` absolute."""

    name: str
    path: str
    status: os.stat_result

    def remove(self) -> None:
        """Remove the directory if it is still the same one and empty. Never raises."""
        with suppress(OSError):  # removed already, or not empty
            if os.path.samestat(os.lstat(self.path), self.status):
                os.rmdir(self.path)


def is_own(path: str) -> bool:
    """Return whether the mount at ``path`` reports that its mount point was created for it."""
    options = statuses([path])[0].get("options")
    return isinstance(options, dict) and options.get("own_mountpoint") is True


def wait_for_removal(path: str) -> None:
    """Wait until the process that served a mount has removed its mount point, or the directory is no longer empty."""
    end = time.monotonic() + settings.unmounting
    with suppress(OSError):  # it is gone
        while time.monotonic() < end and not os.listdir(path):
            time.sleep(0.01)


def make(source: str) -> OwnMountPoint:
    """Create a directory in the current one, named after the source. Existing ones are not used; no server is asked.

    The name is that of a container without its suffix, or that of any other source with ``-glassfs`` appended, which is
    also the second choice for a container; then numbers are appended. Raises MountError.
    """
    for name in _names(source):
        try:
            os.mkdir(name)
            return _own(name)
        except FileExistsError:
            pass
        except OSError as error:
            raise MountError(f"{name}: cannot be created ({error.strerror}); name a mount point") from None
    raise AssertionError("there is always one more name")


def make_at(path: str) -> OwnMountPoint | None:
    """Create a directory at ``path``; return None if that is impossible, or if the name is that of a container.

    Such a name is a mistyped source, rather than a mount point.
    """
    if may_be_container(os.path.basename(path)):
        return None
    try:
        os.mkdir(path)
    except OSError:  # the checks before mounting say what is wrong
        return None
    return _own(path)


def _own(name: str) -> OwnMountPoint:
    return OwnMountPoint(name, os.path.abspath(name), os.lstat(name))


def _names(source: str) -> Iterator[str]:
    if is_url(source):
        # A whole bucket or server has its own name.
        url = parsed(source)
        name = url.path[-1] if url.path else url.host.partition(":")[0]
        name, is_folder = component(raw(name)), url.is_folder or not may_be_container(name)
    else:
        path = os.path.abspath(local_name(source))
        name, is_folder = os.path.basename(path), os.path.isdir(path)
    stem = name if is_folder else os.path.splitext(name.removesuffix(_PARTIAL))[0]
    # With ./ in front, a name that begins like an option can be passed to other commands.
    base = f"./{stem}" if stem.startswith("-") else stem
    if stem not in ("", name):
        yield base
    base += SUFFIX
    yield base
    for number in count(2):
        yield f"{base}-{number}"

"""Mount and unmount, without a library: by mount(2), or for users by ``fusermount3`` or ``fusermount``. Linux.

The programs come with libfuse 3 and 2, and are set-user-ID. They mount, and pass the descriptor of the connection back
through a socket whose number is in the environment variable ``_FUSE_COMMFD``.

The **guard** is a small process that ends the kernel's connection if the daemon dies, so that no reader waits for ever.
A daemon that is killed while one of its threads waits in the kernel keeps the connection until that thread returns; if
the thread waits for a reader, and the reader for the daemon, neither ever ends. The guard then writes to the
connection's file ``abort`` in fusectl, which frees all of them. Without fusectl the mount works all the same.

The guard cannot wait for the end of a pipe, which that thread would keep open as well, nor for the end of the process.
It is a shell, which takes less than 1 MiB, and gets a signal at the death of the main thread. It keeps ``abort`` open
from the beginning, as another connection may get the number later, and ignores the signals that end a mount.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from glassfs.mount import system
from glassfs.mount.errors import MountError
from glassfs.sandbox.confinement import Prctl
from glassfs.source.mountinfo import FILE_SYSTEM

CONNECTIONS = "/sys/fs/fuse/connections"

_WAIT = """trap 'echo 1; exit' USR1; read -r word; echo 1"""
"""Standard output is the file ``abort``."""
_LIBC = ctypes.CDLL(None, use_errno=True)
DEVICE = "/dev/fuse"
CHECKED = "default_permissions"


class MountPoint:
    """A mount point at ``path``, whose mount is ``name`` in the table of mounts. For the main thread.

    ``allow_other`` lets other users access the mount. With ``auto_unmount`` a process unmounts it when this one dies.
    """

    def __init__(self, path: str, name: str, allow_other: bool = False, auto_unmount: bool = False) -> None:
        self.path = path
        self.device = ""
        """The device number of the mount; "" before there is one."""
        self._name = name
        self._options = ["allow_other"] if allow_other else []
        self._auto_unmount = auto_unmount
        self._socket: socket.socket | None = None

    def mount(self) -> int:
        """Mount; return the descriptor of the connection to the kernel, which the caller owns. Raises MountError."""
        descriptor = None if self._auto_unmount else self.mounted_by_system()
        if descriptor is None:
            descriptor = self._mounted_by_helper()
        mounted = system.mount_at(self.path)
        self.device = mounted.device if mounted is not None else ""
        return descriptor

    def unmount(self, descriptor: int, is_aborted: bool) -> None:
        """Unmount, unless that was done or another file system is on top. An aborted connection leaves its mount."""
        is_left = self._is_here(descriptor, is_aborted) and system.detached(self.path, lazy=True) != 0
        # A program needs no descriptor of this process: none may be free.
        if is_left and (program := system.fusermount()):
            os.waitpid(os.posix_spawn(program, [program, "-u", "-q", "-z", "--", self.path], os.environ), 0)
        if self._socket is not None:
            self._socket.close()

    def _is_here(self, descriptor: int, is_aborted: bool) -> bool:
        # After the end of a connection the next mount at this path may have got the same device number.
        poll = select.poll()
        poll.register(descriptor, 0)
        if poll.poll(0) and not is_aborted:
            return False
        try:
            mounted = system.mount_at(self.path)
        except OSError:  # no descriptor is free
            return True
        return mounted.device == self.device if mounted is not None else not self.device  # without a table of mounts

    def mounted_by_system(self) -> int | None:
        """Mount by the system call; return None if this user may not do that."""
        try:
            descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise MountError(
                f"{DEVICE} cannot be opened ({error.strerror}): 'modprobe fuse' as root, ask for the group that owns "
                f"it, or start a container with '--device {DEVICE} --cap-add SYS_ADMIN'; all commands but 'mount', and "
                "Python, work without it"
            ) from None
        try:
            mode = stat.S_IFMT(os.stat(self.path).st_mode)
            ids = f"rootmode={mode:o},user_id={os.getuid()},group_id={os.getgid()}"
            # A user who may do this is in a user namespace, which lacks the user's further groups: the kernel would
            # refuse files that are readable for these. The daemon has the user's rights, and no other user has access.
            is_checked = os.geteuid() == 0 or self._options
            data = ",".join([f"fd={descriptor}", ids, *self._options, *([CHECKED] if is_checked else [])])
            words = map(os.fsencode, (self._name, self.path, FILE_SYSTEM))
            flags = ctypes.c_ulong(1 | 2 | 4 | 8)  # MS_RDONLY, MS_NOSUID, MS_NODEV and MS_NOEXEC
            if _LIBC.mount(*words, flags, os.fsencode(data)) == 0:
                return descriptor
            number = ctypes.get_errno()
            if number != errno.EPERM:
                raise OSError(number, os.strerror(number))
        except OSError as error:
            os.close(descriptor)
            raise MountError(f"mount(2): {error.strerror}") from None
        os.close(descriptor)
        return None

    def _mounted_by_helper(self) -> int:
        helper = system.fusermount()
        if helper is None:
            raise MountError("fusermount3 is not installed, without which only root may mount: 'apt install fuse3'")
        name = self._name.replace("\\", "\\\\").replace(",", "\\,")
        subtype = FILE_SYSTEM.partition(".")[2]
        options = ["ro", "nosuid", "nodev", "noexec", f"fsname={name}", f"subtype={subtype}", CHECKED, *self._options]
        options += ["auto_unmount"] if self._auto_unmount else []
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [helper, "-o", ",".join(options), "--", self.path], pass_fds=[theirs.fileno()],
                env=os.environ | {"_FUSE_COMMFD": str(theirs.fileno())}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            ours.close()
            _, said = process.communicate()
            raise MountError("; ".join(said.decode(errors="replace").split("\n")).strip("; ") or f"{helper} failed")
        os.set_inheritable(descriptors[0], False)
        if self._auto_unmount:  # it lives until the socket is closed
            self._socket = ours
        else:
            ours.close()
            process.communicate()
        return descriptors[0]


@contextmanager
def guarded(device: str) -> Iterator[None]:
    """Have a guard for the connection of the mount with this device number while the block lasts.

    The main thread must call this.
    """
    with ExitStack() as stack:
        # Without fusectl there is no guard.
        with (
            suppress(OSError, MemoryError, subprocess.SubprocessError),
            open(_opened(device), "wb", buffering=0) as file,
        ):
            process = subprocess.Popen(
                ["glassfs-guard", "-c", _WAIT], executable="/bin/sh", stdin=subprocess.PIPE, stdout=file,
                stderr=subprocess.DEVNULL, cwd="/", start_new_session=True, preexec_fn=partial(_watch, os.getpid()),
            )
            # It is killed before it sees the end of its pipe, also if it was stopped.
            stack.callback(process.communicate)
            stack.callback(process.kill)
        yield


def _watch(daemon: int) -> None:
    """Have this process, which becomes the guard, outlive signals to a mount, and get one at the end of its parent."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    _LIBC.prctl(Prctl.SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != daemon:
        os.write(1, b"1")


def _opened(device: str) -> int:
    """Open the file ``abort`` of the connection with a device number. Raises OSError.

    Where fusectl is not mounted, as in many containers, root opens it without mounting it anywhere.
    """
    path = f"{device.rpartition(':')[2]}/abort"
    try:
        return os.open(f"{CONNECTIONS}/{path}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.geteuid() != 0:
            raise

    def call(*arguments: object) -> int:
        result = _LIBC.syscall(*arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(result)

    # System calls since Linux 5.2, with these numbers on all architectures.
    with ExitStack() as stack:
        context = call(430, b"fusectl", 1)  # fsopen, FSOPEN_CLOEXEC
        stack.callback(os.close, context)
        call(431, context, 6, None, None, 0)  # fsconfig, FSCONFIG_CMD_CREATE
        folder = call(432, context, 1, 0)  # fsmount, FSMOUNT_CLOEXEC
        stack.callback(os.close, folder)
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)

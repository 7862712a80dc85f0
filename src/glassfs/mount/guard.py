"""A small process that ends the kernel's connection if the daemon dies, so that no reader waits for ever.

A daemon that is killed while one of its threads waits in the kernel keeps the connection until that thread returns; if
the thread waits for a reader, and the reader for the daemon, neither ever ends. The guard then writes to the
connection's file ``abort`` in fusectl, which frees all of them. Without fusectl the mount works all the same.

The guard cannot wait for the end of a pipe, which that thread would keep open as well, nor for the end of the process.
It is a shell, which takes less than 1 MiB, and gets a signal at the death of the main thread. It keeps ``abort`` open
from the beginning, as another connection may get the number later, and ignores the signals that end a mount.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from glassfs.sandbox.confinement import Prctl

log = logging.getLogger(__name__)

CONNECTIONS = "/sys/fs/fuse/connections"

_WAIT = """trap 'echo 1; exit' USR1; read -r word; echo 1"""
"""Standard output is the file ``abort``."""
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def guarded(device: str) -> Iterator[None]:
    """Have a guard for the connection of the mount with this device number while the block lasts.

    The main thread must call this.
    """
    with ExitStack() as stack:
        try:
            abort = _opened(device)
        except OSError as error:
            log.debug("there is no guard: %s", error.strerror)
        else:
            with open(abort, "wb", buffering=0) as file, suppress(OSError, MemoryError, subprocess.SubprocessError):
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

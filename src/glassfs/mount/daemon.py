"""Mount: check, fork into a daemon, report readiness, and remove a mount point that was made for the mount.

Each common mistake has a message of its own. The fork comes before heavy imports and before threads are started. The
child opens the sources and mounts; the parent waits on a pipe until the mount answers, or for the message that says why
it does not.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from glassfs import threads
from glassfs.arguments import harmless
from glassfs.datasets.selections import asked, is_selection
from glassfs.errors import GlassfsError
from glassfs.mount import logs, process, system
from glassfs.mount.errors import MountError
from glassfs.mount.options import MountOptions
from glassfs.outputs import is_inside
from glassfs.sandbox import pool
from glassfs.settings import settings
from glassfs.source.mountinfo import FILE_SYSTEM, glassfs_devices
from glassfs.source.remote.url import absolute, is_url, local_name, parsed
from glassfs.terminal import printable

log = logging.getLogger(__name__)

_LIBC = ctypes.CDLL(None)
Serve = Callable[[Callable[[], None]], None]
"""Opens the sources, mounts, and serves until the end; calls its argument when the mount answers."""


def mount(
    sources: Sequence[str], mountpoint: str, options: MountOptions, foreground: bool,
    remove: Callable[[], None] | None = None, program: int | None = None,
) -> int:
    """Mount, and return the exit status when the mount is usable; in the foreground, when it has ended.

    ``remove`` removes the mount point if it was created for this mount. The mount ends with the process ``program``, if
    there is one.
    """
    is_daemon = not (foreground or "debug" in options.flags)
    with ExitStack() as at_end:
        if remove is not None:
            at_end.callback(remove)
        _open_standard_descriptors()
        removed = check(sources, mountpoint, options)
        # Only now, as a log may not be made in the source or the mount point.
        logs.configure(options.log_file, is_daemon)
        if removed:
            log.warning("%s", removed)
        paths, target = [*map(absolute, sources)], os.path.abspath(mountpoint)

        def serve(ready: Callable[[], None]) -> None:
            from glassfs.mount.session import MountSession

            process.raise_descriptor_limit()
            process.settle()
            if program is not None:
                threads.start("program", _end_after, program)
            MountSession(paths, target, options, remove is not None).run(ready)

        if is_daemon:
            _start(serve, remove)
            at_end.pop_all()  # the daemon removes it
            return 0
        serve(lambda: _notify("READY=1", f"MAINPID={os.getpid()}"))
        _notify("STOPPING=1")
        return 0


def _start(serve: Serve, remove: Callable[[], None] | None) -> None:
    """Fork into a daemon, and wait until the mount answers. Raises MountError with the reason if it does not."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        _become_daemon(writable, serve, remove)
    os.close(writable)
    with open(readable, encoding="utf-8", errors="replace") as pipe:
        answer = pipe.read()
    with suppress(ChildProcessError):  # this process may ignore SIGCHLD
        os.waitpid(child, 0)  # it may become a program that waits for its children
    if answer != "ready":
        raise MountError(answer or "the daemon ended before the mount was ready; see the log")


def _become_daemon(pipe: int, serve: Serve, remove: Callable[[], None] | None) -> None:
    """Serve as a daemon and never return. Errors before the mount is ready are written to the pipe."""
    status = 1
    try:
        # The second fork leaves a process that leads no session and so can get no terminal.
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.chdir("/")
        _close_inherited()
        serve(lambda: _detach(pipe))
        status = 0
    except GlassfsError as error:
        _report(pipe, str(error))
    except OSError as error:
        _report(pipe, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except BaseException as error:
        log.exception("the daemon ends")
        _report(pipe, f"{type(error).__name__}: {error}")
    finally:
        if remove is not None:
            remove()
        pool.close()
        logging.shutdown()
        os._exit(status)


def _end_after(program: int) -> None:
    """End the mount when the process with this number has ended."""
    # pidfd_open, which some builds of Python lack; its number is the same on all architectures.
    descriptor = _LIBC.syscall(434, program, 0)
    if descriptor >= 0:
        select.select([descriptor], [], [])
    else:  # before Linux 5.3, or it has ended
        while os.path.exists(f"/proc/{program}"):
            time.sleep(settings.watch)
    os.kill(os.getpid(), signal.SIGTERM)


def _detach(pipe: int) -> None:
    """Report readiness to the parent and detach from its terminal."""
    system.silence()
    try:
        os.write(pipe, b"ready")
    except BrokenPipeError:  # the parent was killed while it waited for a server
        os.kill(os.getpid(), signal.SIGTERM)
    os.close(pipe)


def _report(pipe: int, sentence: str) -> None:
    try:
        os.write(pipe, printable(harmless(" ".join(sentence.split()))).encode())
    except OSError:  # the parent has its answer already
        log.error("%s", sentence)


def _close_inherited() -> None:
    """Close descriptors that the caller passed on, such as pipes whose readers wait for their end, or locks."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # that of the listing
            if number > 2 and os.get_inheritable(number):
                os.close(number)


def _open_standard_descriptors() -> None:
    """Open /dev/null as stdin, stdout and stderr where the parent closed them: no source may get their numbers."""
    number = os.open(os.devnull, os.O_RDWR)
    while number < 3:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


def _notify(*assignments: str) -> None:
    """Send ``READY=1`` or ``STOPPING=1`` to the service manager, if one asks for it (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    import socket

    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto("\n".join(assignments).encode(), address)
        except OSError as error:
            log.warning("cannot notify the service manager: %s", error)


def check(sources: Sequence[str], mountpoint: str, options: MountOptions) -> str:
    """Check sources and mount point, and unmount a dead glassfs mount at the mount point; return a record about that.

    The process must have one thread. A mount that hangs at the mount point does not make this hang. No server is
    asked: the daemon opens remote sources. Raises MountError with what to do.
    """
    if any(map(is_selection, sources)):
        sources = [*sources, *asked(sources, options.words).sources]
    for source in sources:
        check_source(source)
    files = [local_name(source) for source in sources if not is_url(source)]
    for source in files:
        if not os.access(source, os.R_OK):
            raise MountError(f"{source}: this user may not read it")
        if os.stat(source).st_dev in glassfs_devices():
            raise MountError(f"{source}: is on a mount of glassfs, which cannot be mounted again")
    # Before anything touches the mount point: a dead mount there answers nothing, and one that hangs never does.
    removed = _check_nothing_is_mounted(mountpoint)
    if not os.path.exists(mountpoint):
        raise MountError(f"{mountpoint}: the mount point does not exist; 'mkdir -p {mountpoint}' first")
    if not os.path.isdir(mountpoint):
        raise MountError(f"{mountpoint}: the mount point is not a directory")
    if "nonempty" not in options.flags and os.listdir(mountpoint):
        raise MountError(f"{mountpoint}: the mount point is not empty; choose an empty directory, or add -o nonempty")
    for source in files:
        if os.path.isdir(source) and is_inside(mountpoint, os.stat(source)):
            advice = "choose a mount point outside of it"
            raise MountError(f"{mountpoint}: lies inside {source}, which would then contain itself; {advice}")
    for written in filter(None, (options.metrics, options.log_file)):
        for folder in (mountpoint, *files):
            if os.path.isdir(folder) and is_inside(os.path.dirname(os.path.abspath(written)), os.stat(folder)):
                # Each line of a log about a change in the source would be a change in the source.
                raise MountError(f"{written}: lies inside {folder}, and glassfs writes to it; name a file outside")
    return removed


def check_source(typed: str) -> None:
    """Raise MountError for a local source that does not exist, and Refused for a URL that must not be typed."""
    if is_url(typed):
        parsed(typed)
    elif not os.path.exists(local_name(typed)):
        raise MountError(f"{local_name(typed)}: no such file or folder")


def _check_nothing_is_mounted(mountpoint: str) -> str:
    path = system.real_path(mountpoint)
    existing = system.mount_at(path)
    if existing is None or existing.file_system != FILE_SYSTEM:
        return ""
    (state,) = system.ask([lambda: b"dead" if system.is_dead(path) else b"alive"])
    if state == b"dead":
        system.unmount(path, lazy=True)
        return f"{mountpoint}: a glassfs mount whose daemon is gone was unmounted"
    if state == b"alive":
        advice = f"'glassfs umount {mountpoint}' first"
        raise MountError(f"{mountpoint}: {existing.source} is mounted there already; {advice}")
    advice = f"'glassfs umount --lazy {mountpoint}' removes it"
    raise MountError(f"{mountpoint}: {existing.source} is mounted there and does not answer; {advice}")

"""``mount``: the checks, the fork into a daemon, readiness, and the end of a mount point that was made for it.

The fork comes before anything heavy is imported and before there are threads. The child opens the sources and mounts;
the parent waits on a pipe until the mount answers, or for the one sentence that says why it does not.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence

from glassfs.arguments import harmless
from glassfs.errors import GlassfsError
from glassfs.mount import logs, privileges, service
from glassfs.mount.checks import check
from glassfs.mount.errors import MountError
from glassfs.mount.options import MountOptions
from glassfs.source.remote.url import absolute
from glassfs.terminal import printable

log = logging.getLogger(__name__)


def mount(
    sources: Sequence[str], mountpoint: str, options: MountOptions, foreground: bool, log_file: str | None,
) -> int:
    """Mounts and returns when the mount is usable; in the foreground, when it has ended. The exit status."""
    try:
        return _mount(sources, mountpoint, options, foreground, log_file)
    except BaseException:
        _remove_own(options)
        raise


def _mount(
    sources: Sequence[str], mountpoint: str, options: MountOptions, foreground: bool, log_file: str | None,
) -> int:
    is_daemon = not foreground and "debug" not in options.flags
    _open_standard_descriptors()
    logs.configure(log_file, is_daemon)
    privileges.raise_descriptor_limit()
    check(sources, mountpoint, options)
    if not is_daemon:
        from glassfs.mount.session import MountSession

        MountSession(sources, mountpoint, options).run(lambda: service.notify("READY=1", f"MAINPID={os.getpid()}"))
        service.notify("STOPPING=1")
        _remove_own(options)
        return 0
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        _become_daemon(writable, sources, mountpoint, options)
    os.close(writable)
    with open(readable, encoding="utf-8", errors="replace") as pipe:
        answer = pipe.read()
    if answer != "ready":
        raise MountError(answer or "the daemon ended before the mount was ready")
    return 0


def _become_daemon(pipe: int, sources: Sequence[str], mountpoint: str, options: MountOptions) -> None:
    """Goes on as a daemon and never returns. What goes wrong before the mount is ready is written to the pipe."""
    status = 1
    try:
        from glassfs.mount.session import MountSession

        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        places = [absolute(source) for source in sources]
        target = os.path.abspath(mountpoint)
        os.chdir("/")
        MountSession(places, target, options, sources).run(_readiness(pipe))
        status = 0
    except GlassfsError as error:
        _tell(pipe, str(error))
    except OSError as error:
        _tell(pipe, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except BaseException as error:
        log.exception("the daemon ends")
        _tell(pipe, f"{type(error).__name__}: {error}")
    finally:
        _remove_own(options)
        logging.shutdown()
        os._exit(status)


def _readiness(pipe: int) -> Callable[[], None]:
    """What tells the starter that the mount answers, and lets go of the starter's terminal."""

    def ready() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)
        try:
            os.write(pipe, b"ready")
        except BrokenPipeError:  # whoever wanted the mount has given up waiting for a server
            os.kill(os.getpid(), signal.SIGTERM)
        os.close(pipe)

    return ready


def _tell(pipe: int, sentence: str) -> None:
    try:
        os.write(pipe, printable(harmless(" ".join(sentence.split()))).encode())
    except OSError:  # the parent has its answer already
        log.error("%s", sentence)


def _open_standard_descriptors() -> None:
    """Where the starter has closed stdin, stdout or stderr, no source and no device may come to have its number."""
    number = os.open(os.devnull, os.O_RDWR)
    while number < 3:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


def _remove_own(options: MountOptions) -> None:
    if options.own_mountpoint is not None:
        options.own_mountpoint.remove()

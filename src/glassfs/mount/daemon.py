"""``mount``: the checks, the fork into a daemon, readiness, and where the log goes.

The fork comes before anything heavy is imported and before there are threads. The child opens the sources and mounts;
the parent waits on a pipe until the mount answers, or for the one sentence that says why it does not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from glassfs.errors import GlassfsError
from glassfs.mount import service
from glassfs.mount.checks import check
from glassfs.mount.errors import MountError
from glassfs.mount.options import MountOptions

log = logging.getLogger(__name__)


def mount(
    sources: Sequence[str], mountpoint: str, options: MountOptions, foreground: bool, log_file: str | None,
) -> int:
    """Mounts and returns when the mount is usable; in the foreground, when it has ended. The exit status."""
    is_daemon = not foreground and "debug" not in options.flags
    _configure_log(log_file, is_daemon)
    check(sources, mountpoint, options)
    if not is_daemon:
        from glassfs.mount.session import Session

        Session(sources, mountpoint, options).run(lambda: service.notify("READY=1", f"MAINPID={os.getpid()}"))
        service.notify("STOPPING=1")
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
        from glassfs.mount.session import Session

        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        places = [os.path.abspath(source) for source in sources]
        target = os.path.abspath(mountpoint)
        os.chdir("/")

        def ready() -> None:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.close(null)
            os.write(pipe, b"ready")
            os.close(pipe)

        Session(places, target, options, sources).run(ready)
        status = 0
    except GlassfsError as error:
        _tell(pipe, str(error))
    except OSError as error:
        _tell(pipe, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except BaseException as error:
        log.exception("the daemon ends")
        _tell(pipe, f"{type(error).__name__}: {error}")
    finally:
        logging.shutdown()
        os._exit(status)


def _tell(pipe: int, sentence: str) -> None:
    try:
        os.write(pipe, " ".join(sentence.split()).encode("utf-8", "replace"))
    except OSError:  # the parent has its answer already
        log.error("%s", sentence)


def _configure_log(log_file: str | None, is_daemon: bool) -> None:
    """To a file, else to stderr in the foreground (the journal under systemd), else to syslog."""
    handler: logging.Handler
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    if log_file is not None:
        handler = logging.FileHandler(log_file)
    elif not is_daemon:
        handler = logging.StreamHandler()
        if service.is_journal(2):
            formatter = service.JournalFormatter()
    elif os.path.exists("/dev/log"):
        from logging.handlers import SysLogHandler

        handler, formatter = SysLogHandler("/dev/log"), logging.Formatter("glassfs[%(process)d]: %(message)s")
    else:
        handler = logging.NullHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)

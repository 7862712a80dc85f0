"""Mounting: the checks before, the daemon, readiness, the watch over the sources, and the end.

``mount`` forks before anything heavy is imported and before there are threads. The child opens the sources and mounts;
the parent waits on a pipe until the mount answers, or for the one sentence that says why it does not.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from glassfs import __version__
from glassfs.cache import BlockCache
from glassfs.errors import GlassfsError
from glassfs.mount import system
from glassfs.mount.binding import Binding, load
from glassfs.mount.callbacks import Registration, fuse_class
from glassfs.mount.errors import Failures, MountError
from glassfs.mount.operations import Operations
from glassfs.mount.options import MountOptions
from glassfs.mount.status import MountRoot

log = logging.getLogger(__name__)

FUSE_DEVICE = "/dev/fuse"
FUSE_CONFIGURATION = "/etc/fuse.conf"
WATCH_INTERVAL = 0.3
SHORT_TIMEOUT = 0.5
LONG_TIMEOUT = 3600.0
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
THREADS = 16
ROOT_ID = 1


def mount(
    sources: Sequence[str], mountpoint: str, options: MountOptions, foreground: bool, log_file: str | None,
) -> int:
    """Mounts and returns when the mount is usable; in the foreground, when it has ended. The exit status."""
    check(sources, mountpoint, options)
    if foreground or "debug" in options.flags:
        _configure_log(log_file, is_daemon=False)
        Session(sources, mountpoint, options).run(lambda: None)
        return 0
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        _become_daemon(writable, sources, mountpoint, options, log_file)
    os.close(writable)
    with open(readable, encoding="utf-8", errors="replace") as pipe:
        answer = pipe.read()
    if answer != "ready":
        raise MountError(answer or "the daemon ended before the mount was ready")
    return 0


def check(sources: Sequence[str], mountpoint: str, options: MountOptions) -> None:
    """What people get wrong first, each with its own sentence. Unmounts a dead glassfs mount that is in the way."""
    for source in sources:
        if not os.path.exists(source):
            raise MountError(f"{source}: no such file or folder")
        if not os.access(source, os.R_OK):
            raise MountError(f"{source}: may not be read by this user")
    place = system.real_path(mountpoint)
    existing = system.mount_at(place)
    if existing is not None and existing.file_system == system.FILE_SYSTEM:
        if not system.is_dead(place):
            advice = f"'glassfs umount {mountpoint}' first"
            raise MountError(f"{mountpoint}: {existing.source} is mounted there already; {advice}")
        log.warning("%s: unmounting a glassfs mount whose daemon is gone", mountpoint)
        system.unmount(place, lazy=True)
    if not os.path.exists(mountpoint):
        raise MountError(f"{mountpoint}: the mount point does not exist; 'mkdir {mountpoint}' first")
    if not os.path.isdir(mountpoint):
        raise MountError(f"{mountpoint}: the mount point is not a directory")
    if "nonempty" not in options.flags and os.listdir(mountpoint):
        raise MountError(f"{mountpoint}: the mount point is not empty; choose an empty directory, or add -o nonempty")
    for source in sources:
        if os.path.isdir(source) and _is_inside(mountpoint, source):
            raise MountError(f"{mountpoint}: lies inside {source}, which would then contain itself")
    _check_fuse(options)


def _is_inside(path: str, folder: str) -> bool:
    inner, outer = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath((inner, outer)) == outer


def _check_fuse(options: MountOptions) -> None:
    if sys.platform != "linux":
        return
    try:
        os.close(os.open(FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise MountError(
            f"{FUSE_DEVICE} does not exist: 'modprobe fuse' as root, or in a container start it with "
            f"'--device {FUSE_DEVICE} --cap-add SYS_ADMIN'; 'glassfs ls', 'cat' and 'export' work without it"
        ) from None
    except OSError as error:
        raise MountError(f"{FUSE_DEVICE} cannot be opened ({error.strerror}): {_device_advice(error)}") from None
    if os.geteuid() == 0:
        return
    if not (shutil.which("fusermount3") or shutil.which("fusermount")):
        raise MountError("fusermount3 is not installed, without which only root may mount: 'apt install fuse3'")
    if options.flags & {"allow_other", "allow_root"} and not _may_allow_other():
        advice = f"root must first put the line 'user_allow_other' into {FUSE_CONFIGURATION}"
        raise MountError(f"option allow_other: {advice}")


def _device_advice(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "this user may not use FUSE; ask for the group that owns it, or in a container for '--device /dev/fuse'"
    return "'modprobe fuse' as root loads the kernel's part"


def _may_allow_other() -> bool:
    try:
        with open(FUSE_CONFIGURATION, encoding="utf-8", errors="replace") as file:
            return any(line.strip() == "user_allow_other" for line in file)
    except OSError:
        return False


def _become_daemon(
    pipe: int, sources: Sequence[str], mountpoint: str, options: MountOptions, log_file: str | None,
) -> None:
    """Goes on as a daemon and never returns. What goes wrong before the mount is ready is written to the pipe."""
    status = 1
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        places = [os.path.abspath(source) for source in sources]
        target = os.path.abspath(mountpoint)
        os.chdir("/")
        _configure_log(log_file, is_daemon=True)

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
    """To a file, else to stderr in the foreground, else to syslog, which the journal reads as well."""
    handler: logging.Handler
    layout = "%(asctime)s %(levelname)s %(message)s"
    if log_file is not None:
        handler = logging.FileHandler(os.path.abspath(log_file))
    elif not is_daemon:
        handler = logging.StreamHandler()
    elif os.path.exists("/dev/log"):
        from logging.handlers import SysLogHandler

        handler, layout = SysLogHandler("/dev/log"), "glassfs[%(process)d]: %(message)s"
    else:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter(layout))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)


class Session:
    """One mount, from opening its sources to the end of the daemon."""

    def __init__(
        self, sources: Sequence[str], mountpoint: str, options: MountOptions, shown: Sequence[str] | None = None,
    ) -> None:
        from glassfs.tree import Places, open_tree

        self.binding: Binding = load()
        self.sources = sources
        self.shown_sources = list(shown or sources)
        self.mountpoint = system.real_path(mountpoint)
        self.options = options
        self.failures = Failures()
        self.started = time.time()
        self.cache = BlockCache(options.cache_size, options.spool)
        self.places = Places(self.cache, options.max_open)
        tree = open_tree(sources, self.places)
        tree.replace_root(MountRoot(tree.root, self.status))
        self.operations = Operations(tree, options, self._total_size)
        self._size: tuple[float, int] | None = None
        self._fuse: int | None = None
        self._names: set[str] = set()
        self._is_ending = threading.Event()
        self._has_folder = any(os.path.isdir(source) for source in sources)

    def run(self, ready: Callable[[], None]) -> None:
        """Serves until the file system is unmounted; ``ready`` is called once it answers. Raises MountError."""
        _tame_allocator()
        timeout = SHORT_TIMEOUT if self._has_folder or self.binding.generation == 2 else LONG_TIMEOUT

        def started(fuse: int) -> None:
            self._fuse = fuse
            threading.Thread(target=self._after_start, args=(ready,), name="glassfs-watch", daemon=True).start()

        callbacks = fuse_class(self.binding, self.operations, self.failures)
        messages = _Messages() if "debug" not in self.options.flags else None
        self._messages = messages
        try:
            callbacks(Registration(started, timeout), self.mountpoint, foreground=True, **self._fuse_options(timeout))
        except RuntimeError as error:
            said = messages.text() if messages else ""
            raise MountError(f"{self.mountpoint}: cannot be mounted: {said or f'libfuse ends with {error}'}") from None
        finally:
            self._is_ending.set()
            if messages:
                messages.restore()

    def _fuse_options(self, timeout: float) -> dict[str, Any]:
        name = self.shown_sources[0] if len(self.sources) == 1 else f"{len(self.sources)} sources"
        options: dict[str, Any] = {
            "fsname": name.replace("\\", "\\\\").replace(",", "\\,"),
            "subtype": "glassfs",
            "ro": True,
            "default_permissions": True,
            "nosuid": True,
            "nodev": True,
            "noexec": True,
        }
        if "debug" in self.options.flags:
            options["debug"] = True
        for flag in self.options.flags & {"allow_other", "allow_root", "auto_unmount"}:
            options[flag] = True
        if self.binding.generation == 2:
            options |= {
                "use_ino": True, "auto_cache": True, "nonempty": True,
                "entry_timeout": timeout, "attr_timeout": timeout, "negative_timeout": timeout, "ac_attr_timeout": 0,
            }
        elif self.binding.version >= (3, 12):
            # Idle threads are kept: each carries a Python thread state.
            options |= {"max_threads": THREADS, "max_idle_threads": THREADS}
        return options

    def _after_start(self, ready: Callable[[], None]) -> None:
        """On a thread of its own: makes sure that the mount answers, then watches the sources until the end."""
        try:
            os.stat(self.mountpoint)
        except OSError as error:
            log.error("%s: does not answer: %s", self.mountpoint, error)
        mounted = system.mount_at(self.mountpoint)
        if mounted is not None and not system.raise_read_ahead(mounted.device, self.options.read_ahead):
            log.info("the read-ahead of %s stays at 128 KiB: only root may raise it", self.mountpoint)
        if self._messages:
            self._messages.restore()
        log.info("%s is mounted at %s", ", ".join(self.shown_sources), self.mountpoint)
        ready()
        self._names = self._names_at_root()
        while not self._is_ending.wait(WATCH_INTERVAL):
            for place in self.places.refresh():
                log.info("%s has changed", place or self.shown_sources[0])
                self._invalidate(place)

    def _invalidate(self, place: str) -> None:
        """Drops what the kernel keeps of a container: its entry in the root, or all entries if it is the root.

        An entry takes all that is below it along. Where the library cannot tell the kernel, timeouts are short instead.
        """
        library = self.binding.library
        if self._fuse is None or self.binding.generation == 2:
            return
        fuse = ctypes.c_void_p(self._fuse)
        for path in set(self.operations.open_paths()):
            if path.startswith(f"{place}/"):
                library.fuse_invalidate_path(fuse, os.fsencode(path))
        library.fuse_get_session.restype = ctypes.c_void_p
        session = ctypes.c_void_p(library.fuse_get_session(fuse))
        old, self._names = self._names, self._names_at_root()
        for name in [place[1:].partition("/")[0]] if place else old | self._names:
            raw = os.fsencode(name)
            library.fuse_lowlevel_notify_inval_entry(session, ctypes.c_uint64(ROOT_ID), raw, ctypes.c_size_t(len(raw)))
        library.fuse_invalidate_path(fuse, b"/")

    def _names_at_root(self) -> set[str]:
        try:
            return {node.name for node in self.operations.tree.root.listing()}
        except GlassfsError:
            return set()

    def status(self) -> dict[str, Any]:
        """For ``.glassfs/status.json``."""
        now = self.places.open_containers()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mountpoint": self.mountpoint,
            "sources": [os.path.abspath(source) for source in self.sources],
            "options": self.options.shown(),
            "libfuse": ".".join(map(str, self.binding.version)),
            "uptime_seconds": round(time.time() - self.started, 1),
            "open_containers": [place.path for place in now],
            "open_files": len(self.operations.open_paths()),
            "cache": {
                "budget": self.cache.budget, "used": self.cache.used,
                "hits": self.cache.hits, "misses": self.cache.misses,
            },
            "errors": self.failures.count,
        }

    def _total_size(self) -> int:
        now = time.monotonic()
        if self._size is None or now - self._size[0] > 10:
            self._size = now, sum(_size_of(source) for source in self.sources)
        return self._size[1]


class _Messages:
    """What libfuse and fusermount write to stderr until the mount is ready, for the one sentence if it fails."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._stderr: int | None = os.dup(2)
        os.dup2(self._file.fileno(), 2)

    def restore(self) -> None:
        if self._stderr is not None:
            os.dup2(self._stderr, 2)
            os.close(self._stderr)
            self._stderr = None

    def text(self) -> str:
        self._file.seek(0)
        lines = self._file.read().decode("utf-8", "replace").splitlines()
        return "; ".join(line.strip() for line in lines if line.strip())


def _size_of(source: str) -> int:
    if not os.path.isdir(source):
        return os.stat(source).st_size if os.path.exists(source) else 0
    total = 0
    for folder, _, names in os.walk(source):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _tame_allocator() -> None:
    """Keeps glibc from mapping and unmapping memory for each 1 MiB request, which costs more than the copy."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_MMAP_THRESHOLD, 64 << 20)
    mallopt(M_TRIM_THRESHOLD, 64 << 20)

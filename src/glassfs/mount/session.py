"""One mount, from opening its sources to the end: serving, the watch over the sources, what the kernel must forget.

``Session`` belongs to the thread that makes it, which ``run`` keeps; the watch is a thread of its own, the only one
that tells the kernel to drop things, and never does so under a lock or in a callback.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from glassfs import __version__
from glassfs.cache import BlockCache
from glassfs.mount import allocator, privileges, system
from glassfs.mount.binding import load
from glassfs.mount.callbacks import Registration, fuse_class
from glassfs.mount.errors import Failures, MountError
from glassfs.mount.messages import Messages
from glassfs.mount.operations import Operations
from glassfs.mount.options import MountOptions
from glassfs.mount.status import MountRoot
from glassfs.tree import Containers, Directory, open_sources
from glassfs.tree.places.usage import Usage

log = logging.getLogger(__name__)

WATCH_INTERVAL = 0.3
SHORT_TIMEOUT = 0.5
LONG_TIMEOUT = 3600.0
THREADS = 16
ROOT_ID = 1
ENDED_BY_SIGNAL = 8  # what libfuse 3 returns after SIGINT or SIGTERM


class Session:
    """One mount, from opening its sources to the end of the daemon."""

    def __init__(
        self, sources: Sequence[str], mountpoint: str, options: MountOptions, shown: Sequence[str] | None = None,
    ) -> None:
        self.binding = load()
        self.shown_sources = list(shown or sources)
        self.mountpoint = system.real_path(mountpoint)
        self.options = options
        self.failures = Failures()
        self.started = time.time()
        self.cache = BlockCache(options.cache_size, options.spool)
        self.sources = open_sources(sources, Containers(self.cache, options.max_open))
        self.sources.tree.wrap_root(self._mount_root)
        usage = Usage(self.sources.places.values(), self.sources.made_of)
        self.operations = Operations(self.sources.tree, options, usage)
        self._memory = allocator.Memory()
        self._fuse: int | None = None
        self._is_ending = threading.Event()
        self._wake = threading.Event()
        self.sources.on_change = self.operations.on_volatile = self._wake.set

    def run(self, ready: Callable[[], None]) -> None:
        """Serves until the file system is unmounted; ``ready`` is called once it answers. Raises MountError."""
        privileges.drop()
        allocator.tame()
        _tame_collector()
        timeout = SHORT_TIMEOUT if self.sources.has_folder or self.binding.generation == 2 else LONG_TIMEOUT

        def started(fuse: int) -> None:
            self._fuse = fuse
            threading.Thread(target=self._after_start, args=(ready,), name="glassfs-watch", daemon=True).start()

        callbacks = fuse_class(self.binding, self.operations, self.failures)
        messages = Messages() if "debug" not in self.options.flags else None
        self._messages = messages
        try:
            callbacks(Registration(started, timeout), self.mountpoint, foreground=True, **self._fuse_options(timeout))
        except RuntimeError as error:
            if self._fuse is not None and error.args == (ENDED_BY_SIGNAL,):
                return
            said = messages.text() if messages else ""
            raise MountError(f"{self.mountpoint}: cannot be mounted: {said or f'libfuse ends with {error}'}") from None
        finally:
            self._is_ending.set()
            self._wake.set()
            self.failures.log_counts()
            if messages:
                messages.restore()

    def _mount_root(self, inner: Directory) -> Directory:
        return MountRoot(inner, self.sources, self.status, (os.geteuid(), os.getegid()))

    def _fuse_options(self, timeout: float) -> dict[str, Any]:
        name = self.shown_sources[0] if len(self.shown_sources) == 1 else f"{len(self.shown_sources)} sources"
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
                "use_ino": True, "nonempty": True,
                "entry_timeout": timeout, "attr_timeout": timeout, "negative_timeout": timeout,
            }
        elif self.binding.keeps_threads:
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
        again: dict[str, float] = {}
        while not self._is_ending.is_set():
            self._wake.wait(WATCH_INTERVAL)
            self._wake.clear()
            self._invalidate_paths(self.operations.taken_volatile())
            now = time.monotonic()
            due = {place for place, when in again.items() if when <= now}
            for place in due:
                del again[place]
            for place in self._refreshed():
                log.info("%s has changed", place or self.shown_sources[0])
                # Once more later: what somebody is opening at this moment keeps its old attributes the first time.
                again[place] = now + WATCH_INTERVAL
                due.add(place)
            for place in due:
                self._invalidate(place)
            self._memory.tick(self.cache.misses)

    def _refreshed(self) -> list[str]:
        """What has changed. Whatever goes wrong is logged: without the watch nothing new would be shown any more."""
        try:
            return self.sources.refresh()
        except Exception as error:
            self.failures.errno_of(error)
            return []

    def _invalidate(self, place: str) -> None:
        """Drops what the kernel keeps of a container: its entry in the root, or all entries if it is the root.

        An entry takes all that is below it along. Where the library cannot tell the kernel, timeouts are short instead.
        """
        library = self.binding.library
        if self._fuse is None or self.binding.generation == 2:
            return
        self._invalidate_paths({path for path in self.operations.open_paths() if path.startswith(f"{place}/")})
        library.fuse_get_session.restype = ctypes.c_void_p
        session = ctypes.c_void_p(library.fuse_get_session(ctypes.c_void_p(self._fuse)))
        for name in [place[1:].partition("/")[0]] if place else self.operations.names_at_root():
            raw = os.fsencode(name)
            library.fuse_lowlevel_notify_inval_entry(session, ctypes.c_uint64(ROOT_ID), raw, ctypes.c_size_t(len(raw)))
        self._invalidate_paths({"/"})

    def _invalidate_paths(self, paths: Collection[str]) -> None:
        """Drops attributes and pages."""
        if self._fuse is None or self.binding.generation == 2:
            return
        for path in paths:
            self.binding.library.fuse_invalidate_path(ctypes.c_void_p(self._fuse), os.fsencode(path))

    def status(self) -> dict[str, Any]:
        """For ``.glassfs/status.json``."""
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mountpoint": self.mountpoint,
            "sources": [str(place.store.shown(place.path)) for place in self.sources.places.values()],
            "options": self.options.shown(),
            "libfuse": ".".join(map(str, self.binding.version)),
            "uptime_seconds": round(time.time() - self.started, 1),
            "open_containers": [opened.container.sources[0].name for opened in self.sources.containers.all_open()],
            "open_files": len(self.operations.open_paths()),
            "cache": {
                "budget": self.cache.budget, "used": self.cache.used,
                "hits": self.cache.hits, "misses": self.cache.misses,
            },
            "errors": self.failures.count,
        }


def _tame_collector() -> None:
    """Nodes come and go by the thousand, and are freed without the collector having to look at all of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

"""Serve one mount: open its sources, answer requests, watch the sources and notify the kernel of changes.

Threads beside the engine's:
``glassfs-watch`` notifies the kernel and is the only one that does, never under a lock or while a request is answered;
``glassfs-poll`` compares what is shown with the stores, which may hang, drops what is not used, and writes counters;
``glassfs-clock`` ends requests that were interrupted, while there are requests;
``glassfs-load``, at the start, loads the code that may be needed later.

A mount that is not used rests: it is woken by requests and by reports of changes, and compares sources every few
seconds.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from glassfs import __version__, threads
from glassfs.cache import BlockCache
from glassfs.datasets.joined import Audience
from glassfs.datasets.selecting import open_sources
from glassfs.errors import GlassfsError
from glassfs.mount import process, system
from glassfs.mount.engines.engine import Engine
from glassfs.mount.engines.mounting import MountPoint
from glassfs.mount.errors import Failures, MountError
from glassfs.mount.operations import Operations, Stale
from glassfs.mount.options import MountOptions
from glassfs.mount.status import Metrics, OwnDirectory
from glassfs.settings import settings
from glassfs.source.remote.url import shown as shown_name
from glassfs.tree import ContainerSettings
from glassfs.tree.preload import preload
from glassfs.tree.sources.walk import Usage

log = logging.getLogger(__name__)


class MountSession:
    """Serves one mount, from opening its sources to the end of the daemon."""

    _metrics: Metrics | None = None
    _measured = 0.0
    """When the counters were written last."""

    def __init__(
        self, sources: Sequence[str], mountpoint: str, options: MountOptions, is_own_mountpoint: bool = False,
    ) -> None:
        self.failures = Failures()
        self.shown_sources = [shown_name(source) for source in sources]
        self.mountpoint = system.real_path(mountpoint)
        self.options = options
        self.is_own_mountpoint = is_own_mountpoint
        self.started = time.time()
        self.cache = BlockCache(options.cache_size, options.spool, options.spool_size)
        opening = ContainerSettings(
            self.cache, options.max_open, views=options.views, has_catalogue=options.catalogue,
            layout=options.layout,
        )
        owner = os.geteuid(), os.getegid()
        audience = Audience("allow_other" in options.flags, owner)
        self._is_ending = threading.Event()
        self._wake = threading.Event()
        """Wakes the watch."""
        self._touched = threading.Event()
        """Wakes the poll."""
        self._used = time.monotonic()
        """When a request was in progress last."""
        self.operations = Operations(
            lambda: self.sources.root(),
            lambda: OwnDirectory(self.sources, self._status_text, self.operations.omitted.text, owner),
            lambda: self._usage(), options.uid, options.gid, options.umask or 0,
            only_for=owner[0] if "allow_root" in options.flags else None,
        )
        self.sources = open_sources(
            sources, opening, audience, options.connection(), on_change=self._wake.set,
            on_drop=self.operations.inodes.drop_nodes, follows="follow_links" in options.flags, words=options.words,
        )
        self._usage = Usage(self.sources.locations.values(), self.sources.containers.watcher.find)
        self.operations.has_presumed = self.sources.has_presumed
        self.engine = Engine(self.operations, self.failures, "debug" in options.flags)
        self._memory = process.FreeMemory()
        self._is_loaded = False
        self._changed: set[str] = set()
        """Paths that changed according to ``_poll``, before the kernel is notified; replaced as a whole."""

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until the file system is unmounted; call ``ready`` once it answers. Raises MountError."""
        process.tune_collector()
        if self.options.metrics is not None:  # before the mount, as the folder may be hidden or refuse the file
            self._metrics = Metrics(self.options.metrics, self.status)
            self._metrics.write()

        name = self.shown_sources[0] if len(self.shown_sources) == 1 else f"{len(self.shown_sources)} sources"
        flags = self.options.flags
        mountpoint = MountPoint(
            self.mountpoint, name, bool(flags & {"allow_other", "allow_root"}), "auto_unmount" in flags,
        )

        def started() -> None:
            threads.start("watch", self._after_start, mountpoint.device, ready)
            threads.start("clock", self._repeat, self.engine.busy, self._tick)
            threads.start("poll", self._repeat, self._touched, self._poll)
            threads.start("load", self._load)

        try:
            self.engine.serve(mountpoint, started)
        except MountError as error:
            raise MountError(f"{self.mountpoint}: cannot be mounted: {error}") from None
        finally:
            self._is_ending.set()
            for event in (self._wake, self._touched, self.engine.busy):
                event.set()
            self.sources.finish()
            if self._metrics is not None:
                self._metrics.remove()
        log.info("%s is no longer mounted at %s", ", ".join(self.shown_sources), self.mountpoint)

    def _after_start(self, device: str, ready: Callable[[], None]) -> None:
        """Report that the mount answers, then watch the sources until the end. Runs on a thread of its own.

        It must not access the mount: a thread that waits for it when the process is killed never ends, and neither does
        the process.
        """
        if not system.raise_read_ahead(device, self.options.read_ahead):
            log.info("%s: read-ahead stays at 128 KiB, as only root may raise it", self.mountpoint)
        log.info("%s is mounted at %s", ", ".join(self.shown_sources), self.mountpoint)
        ready()
        with suppress(GlassfsError):  # now, as the first reader would have to wait for it
            self.sources.root().watch()
        again: deque[tuple[float, set[str], Stale]] = deque()
        self._repeat(self._wake, partial(self._notify, again))

    def _repeat(self, event: threading.Event, do: Callable[[], float | None]) -> None:
        """Call ``do`` until the end, each time when ``event`` is set, or after so many seconds as it returned.

        Errors are logged: without these loops changes would not show, and requests would not end.
        """
        pause: float | None = settings.watch
        while not self._is_ending.is_set():
            event.wait(pause)
            event.clear()
            try:
                pause = do()
            except Exception as error:
                pause = settings.watch
                with suppress(MemoryError):
                    self.failures.errno_of(error)

    def _notify(self, again: deque[tuple[float, set[str], Stale]]) -> float | None:
        """Have the kernel forget what has changed: now, and once more at the time in ``again``."""
        now = time.monotonic()
        stale = [Stale(nodes=self.operations.unsettled())]
        while again and again[0][0] <= now:
            _, paths, before = again.popleft()
            stale += before, self.operations.stale(paths, is_first=False)
        changed, self._changed = self._changed, set()
        changed = changed.union(self.sources.containers.watcher.changes())
        if changed:
            for path in changed:
                log.info("%s has changed", f"{self.mountpoint}{path}")
            stale.append(self.operations.stale(changed))
            # Once more later: a request in progress may bring the old attributes back.
            again.append((now + settings.watch, changed, stale[-1]))
        for one in stale:
            is_more = self.engine.invalidate(one)
        work = self.cache.misses + self.cache.drops + len(self.operations.inodes)
        is_clean = self._memory.tick(work)
        if again or self._unused() < settings.rest_after:
            return settings.watch
        return settings.rest if is_more or not is_clean else None

    def _unused(self) -> float:
        """Return for how many seconds no request was in progress."""
        return time.monotonic() - self._used

    def _tick(self) -> None:
        """Run the engine's periodic work, on a thread of its own as the watch may wait for the kernel."""
        # The first request after a rest: what rested may have missed changes that no store reports.
        if self._unused() > settings.rest_after:
            self._wake.set()
            self._touched.set()
        self._used = time.monotonic()
        self.engine.tick()
        self._is_ending.wait(settings.watch)

    def _load(self) -> None:
        if not self._is_ending.wait(settings.loading):
            preload()
            self._is_loaded = True

    def _poll(self) -> float:
        """Compare what is shown with the stores, on a thread of its own as a store may hang."""
        # Dropping blocks frees memory of the allocator, which the watch returns to the system.
        drops, now = self.cache.drops, time.monotonic()
        if self._metrics is not None and now >= self._measured + settings.metrics:
            self._metrics.write()
            self._measured = now
        changed = self.sources.refresh()
        if changed:
            self._changed = self._changed.union(changed)
        if changed or drops != self.cache.drops:
            self._wake.set()
        return settings.watch if self._unused() < settings.rest_after else settings.rest

    def _status_text(self) -> bytes:
        return json.dumps(self.status(), indent=2).encode() + b"\n"

    def status(self) -> dict[str, Any]:
        """Return the content of ``.glassfs/status.json``."""
        inodes = self.operations.inodes
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mountpoint": self.mountpoint,
            "sources": [str(place.store.shown(place.path)) for place in self.sources.locations.values()],
            "options": self.options.shown() | {"own_mountpoint": self.is_own_mountpoint},
            "all_code_loaded": self._is_loaded,
            "uptime_seconds": round(time.time() - self.started, 1),
            "open_containers": [opened.container.sources[0].name for opened in self.sources.containers.all_open()],
            "nodes": {"directories": len(inodes), "references": inodes.held},
            "requests": self.engine.requests(),
            "cache": {
                "budget": self.cache.budget, "used": self.cache.used,
                "hits": self.cache.hits, "misses": self.cache.misses,
            },
            "errors": self.failures.count,
        }

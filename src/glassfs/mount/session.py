"""One mount, from opening its sources to the end: serving, watching the sources, telling the kernel what to forget.

``MountSession`` belongs to the thread that makes it and calls ``run``. Three more threads run beside the engine's:
``glassfs-watch`` notifies the kernel and is the only one that does, never under a lock or while a request is answered,
as a notification may wait for the kernel; ``glassfs-poll`` compares what is shown with the stores, which may hang;
``glassfs-clock`` ends requests that were interrupted.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from glassfs import __version__
from glassfs.cache import BlockCache
from glassfs.errors import GlassfsError
from glassfs.mount import allocator, privileges, system
from glassfs.mount.engines import MountPoint, load
from glassfs.mount.errors import Failures, MountError
from glassfs.mount.messages import Messages
from glassfs.mount.operations import SHORT, Operations, Stale
from glassfs.mount.options import MountOptions
from glassfs.mount.status import OwnDirectory
from glassfs.source.remote.url import shown as shown_name
from glassfs.tree import Audience, ContainerSettings, open_sources, views_named
from glassfs.tree.sources.usage import Usage

log = logging.getLogger(__name__)

WATCH_INTERVAL = 0.2


class MountSession:
    """One mount, from opening its sources to the end of the daemon."""

    def __init__(
        self, sources: Sequence[str], mountpoint: str, options: MountOptions, shown: Sequence[str] | None = None,
    ) -> None:
        self.failures = Failures()
        self.engine = load(self.failures, "debug" in options.flags)
        self.shown_sources = [shown_name(source) for source in shown or sources]
        self.mountpoint = system.real_path(mountpoint)
        self.options = options
        self.started = time.time()
        self.cache = BlockCache(options.cache_size, options.spool)
        settings = ContainerSettings(
            self.cache, options.max_open, views=views_named(options.views), has_catalogue=options.catalogue,
        )
        owner = os.geteuid(), os.getegid()
        audience = Audience("allow_other" in options.flags, owner)
        self._is_ending = threading.Event()
        self._wake = threading.Event()
        self.operations = Operations(
            lambda: self.sources.root(), lambda: OwnDirectory(self.sources, self.status, owner), options,
            lambda: self._usage(),
        )
        self.sources = open_sources(
            sources, settings, audience, options.connection(), on_change=self._wake.set,
            on_drop=self.operations.inodes.drop_nodes,
        )
        self._usage = Usage(self.sources.locations.values(), self.sources.made_of)
        self.operations.has_presumed = self.sources.has_presumed
        if not self.engine.takes_notice:
            self.operations.longest = SHORT
        self._memory = allocator.Memory()
        self._compared: set[str] = set()
        """What has changed by comparing, and the kernel was not told of yet; exchanged as a whole."""

    def run(self, ready: Callable[[], None]) -> None:
        """Serves until the file system is unmounted; ``ready`` is called once it answers. Raises MountError."""
        privileges.drop()
        allocator.tame()
        _tame_collector()

        def started() -> None:
            threading.Thread(target=self._after_start, args=(ready,), name="glassfs-watch", daemon=True).start()
            threading.Thread(target=self._tick, name="glassfs-clock", daemon=True).start()
            threading.Thread(target=self._poll, name="glassfs-poll", daemon=True).start()

        self._messages = Messages() if "debug" not in self.options.flags else None
        try:
            self.engine.serve(self.operations, MountPoint(self.mountpoint, self._fuse_options()), started)
        except MountError as error:
            said = self._messages.text() if self._messages else ""
            raise MountError(f"{self.mountpoint}: cannot be mounted: {said or error}") from None
        finally:
            self._is_ending.set()
            self._wake.set()
            self.sources.finish()
            self.failures.log_counts()
            if self._messages:
                self._messages.restore()

    def _fuse_options(self) -> dict[str, str | bool]:
        name = self.shown_sources[0] if len(self.shown_sources) == 1 else f"{len(self.shown_sources)} sources"
        options: dict[str, str | bool] = {
            "fsname": name.replace("\\", "\\\\").replace(",", "\\,"),
            "subtype": "glassfs",
            "ro": True,
            "default_permissions": True,
            "nosuid": True,
            "nodev": True,
            "noexec": True,
        }
        return options | dict.fromkeys(self.options.flags & {"allow_other", "allow_root", "auto_unmount"}, True)

    def _after_start(self, ready: Callable[[], None]) -> None:
        """On a thread of its own: tells that the mount answers, then watches the sources until the end.

        It does not look at the mount: a thread that waits for it when the process is killed could never end, and with
        it the process.
        """
        mounted = system.mount_at(self.mountpoint)
        if mounted is not None and not system.raise_read_ahead(mounted.device, self.options.read_ahead):
            log.info("the read-ahead of %s stays at 128 KiB: only root may raise it", self.mountpoint)
        if self._messages:
            self._messages.restore()
        log.info("%s is mounted at %s", ", ".join(self.shown_sources), self.mountpoint)
        ready()
        with suppress(GlassfsError):  # as the first who looks would have to wait for it
            self.sources.root().watch()
        self._watch()

    def _watch(self) -> None:
        """Until the end. Whatever goes wrong is logged: without the watch nothing new would be shown any more."""
        again: dict[str, float] = {}
        while not self._is_ending.is_set():
            self._wake.wait(WATCH_INTERVAL)
            self._wake.clear()
            try:
                self._look(again)
            except Exception as error:
                self.failures.errno_of(error)

    def _look(self, again: dict[str, float]) -> None:
        """What has changed, the kernel forgets: now, and "again" when that is due."""
        now = time.monotonic()
        due = {place for place, when in again.items() if when <= now}
        for place in due:
            del again[place]
        compared, self._compared = self._compared, set()
        for place in compared.union(self.sources.heard()):
            log.info("%s has changed", place or self.shown_sources[0])
            # Once more later: what somebody is looking at in this moment keeps its old attributes the first time.
            again[place] = now + WATCH_INTERVAL
            due.add(place)
        for place in due:
            self.engine.invalidate(self.operations.stale(place))
        self.engine.invalidate(Stale(nodes=self.operations.unsettled()))
        self._memory.tick(self.cache.misses + len(self.operations.inodes))

    def _tick(self) -> None:
        """On a thread of its own: the watch may have to wait for the kernel."""
        while not self._is_ending.wait(WATCH_INTERVAL):
            self.engine.tick()

    def _poll(self) -> None:
        """On a thread of its own, as it waits for sources that hang: compares what is shown with the stores."""
        while not self._is_ending.wait(WATCH_INTERVAL):
            try:
                changed = self.sources.refresh()
            except Exception as error:
                self.failures.errno_of(error)
                continue
            if changed:
                self._compared = self._compared.union(changed)
                self._wake.set()

    def status(self) -> dict[str, Any]:
        """For ``.glassfs/status.json``."""
        inodes = self.operations.inodes
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mountpoint": self.mountpoint,
            "sources": [str(place.store.shown(place.path)) for place in self.sources.locations.values()],
            "options": self.options.shown(),
            "libfuse": ".".join(map(str, self.engine.version)),
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


def _tame_collector() -> None:
    """Nodes come and go by the thousand, and are freed without the collector having to look at all of them."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

"""The folders that one local store watches, by path. Any thread.

inotify is loaded on the first request; without it nothing can be watched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from glassfs.source.contract import Path

if TYPE_CHECKING:
    from glassfs.source.watching import Watch


class Watched:
    """The watched folders of the store with its root at ``root``. It holds no reference to the store.

    ``has_ended`` is set when a watch has ended: another folder may have replaced the root.
    """

    def __init__(self, root: str) -> None:
        self.has_ended = False
        self._root = tuple(filter(None, root.split("/")))
        self._lock = threading.Lock()
        self._watches: dict[Path, Watch] = {}

    def watch(
        self, path: Path, notify: Callable[[Path, str], None], has_root: Callable[[tuple[int, int]], bool],
    ) -> bool:
        """Implement ``Store.watch``. ``has_root`` returns whether the store's root is the folder found at its path.

        The folder watched is the one there now, while the store might still read from a replaced one.
        """
        if self.is_watched(path):
            return True
        if sys.platform != "linux":
            return False
        try:
            # Import the name, not the module: while another thread's import fails, a partial module is visible.
            from glassfs.source.watching import pool
        except ImportError:
            return False
        watch = pool.watch((*self._root, *path), len(self._root), partial(self._notified, path, notify))
        if watch is None:
            return False
        is_right = has_root(watch.root)
        with self._lock:
            is_first = not self.is_watched(path)
            if is_right and is_first:
                self._watches[path] = watch
        if not (is_right and is_first):
            watch.release()
        return is_right and not (is_first and watch.is_over)

    def is_watched(self, path: Path) -> bool:
        known = self._watches.get(path)
        return known is not None and not known.is_over

    def close(self) -> None:
        with self._lock:
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.release()

    def _notified(self, path: Path, notify: Callable[[Path, str], None], name: str, is_over: bool) -> None:
        if is_over:
            self.has_ended = True
            with self._lock:
                if path in self._watches and self._watches[path].is_over:
                    del self._watches[path]
        notify(path, name)

"""The folders that one store of this system watches (``watching``), by their paths. Any thread.

Nothing of inotify is loaded before the first is asked for; where there is none, nothing can be watched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from glassfs.source.contract import Path

if TYPE_CHECKING:
    from glassfs.source.inotify import Watch


class Watched:
    """Of the store whose root is at ``place``, which it does not keep: one that nobody has any more watches nothing.

    ``has_ended`` is set when a watch has, as another folder may be where the root was.
    """

    def __init__(self, place: str) -> None:
        self.has_ended = False
        self._root = tuple(filter(None, place.split("/")))
        self._lock = threading.Lock()
        self._watches: dict[Path, Watch] = {}

    def watch(
        self, path: Path, told: Callable[[Path, str], None], has_root: Callable[[tuple[int, int]], bool],
    ) -> bool:
        """As a store's ``watch``. ``has_root`` is asked whether the store's root is the folder that was found there.

        What is watched is what is there now; what the store reads could still be what was there before.
        """
        known = self._watches.get(path)
        if known is not None and not known.is_over:
            known.was_used = True
            return True
        if sys.platform != "linux":
            return False
        try:
            # Not the module: while another thread finds out that it cannot be loaded, there is half of one.
            from glassfs.source.watching import pool
        except ImportError:
            return False
        watch = pool.watch((*self._root, *path), len(self._root), partial(self._heard, path, told))
        if watch is None:
            return False
        is_right = has_root(watch.root)
        with self._lock:
            known = self._watches.get(path)
            is_first = known is None or known.is_over
            if is_right and is_first:
                self._watches[path] = watch
        if not (is_right and is_first):
            watch.give_back()
        return is_right and not (is_first and watch.is_over)

    def close(self) -> None:
        with self._lock:
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.give_back()

    def _heard(self, path: Path, told: Callable[[Path, str], None], name: str, is_over: bool) -> None:
        if is_over:
            self.has_ended = True
            with self._lock:
                if path in self._watches and self._watches[path].is_over:
                    del self._watches[path]
        told(path, name)

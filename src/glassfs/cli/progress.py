"""How far a command is that copies a tree: bytes, rate, and the time that is left once it is known how much there is.

The sum is made by a thread of its own, so that nobody waits for it; a rate is shown until it is there. A file whose
size takes a pass over its data is added when it has been copied. ``advance`` and ``leave_out`` are for one thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from tqdm import tqdm

from glassfs.cli.common import nodes_from
from glassfs.errors import GlassfsError
from glassfs.tree import File, Tree


class Progress:
    """A bar on standard error; nothing at all unless ``is_shown``."""

    def __init__(self, tree: Tree, paths: Sequence[str], is_shown: bool) -> None:
        # None is made in vain: it has a lock that a worker process which is killed would leave behind in the system.
        self._bar = tqdm(unit="B", unit_scale=True, unit_divisor=1024, leave=False) if is_shown else None
        self._tree = tree
        self._paths = paths
        self._sum: int | None = None
        self._more = 0
        self._is_over = threading.Event()
        self._counting = threading.Thread(target=self._count, name="sum", daemon=True) if is_shown else None

    def __enter__(self) -> Progress:
        if self._counting is not None:
            self._counting.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        if self._counting is not None:
            self._counting.join()
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int) -> None:
        """So many bytes were copied."""
        if self._bar is not None:
            self._set_total(self._bar)
            self._bar.update(count)

    def leave_out(self, file: File) -> None:
        """The file need not be copied: it counts neither as work nor as speed."""
        if file.data.is_sized:
            self._more -= file.size

    def unsized(self, size: int) -> None:
        """A file of this size, unknown before, is being copied."""
        self._more += size

    def aside(self) -> AbstractContextManager[None]:
        """Lines may be written to standard error in here."""
        aside: AbstractContextManager[None] = tqdm.external_write_mode(file=sys.stderr)
        return aside

    def _set_total(self, bar: tqdm[Any]) -> None:
        if self._sum is not None:
            bar.total = self._sum + self._more

    def _count(self) -> None:
        found = 0
        for path in self._paths:
            try:
                for _, node in nodes_from(self._tree, path, lambda *_: None):
                    if self._is_over.is_set():
                        return
                    if isinstance(node, File) and node.data.is_sized:
                        found += node.size
            except (GlassfsError, OSError):
                continue
        self._sum = found

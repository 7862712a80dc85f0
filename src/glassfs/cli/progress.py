"""A progress bar: bytes, rate, and the time left once a background thread has summed up the sizes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from tqdm import tqdm

from glassfs.settings import settings


class Progress:
    """A bar on standard error; without ``sizes``, or unless ``is_shown`` (None: on a terminal), nothing.

    ``sizes`` yields the size of everything to do; a thread of its own consumes it, so that no work waits for the sum.
    The other methods are for one thread.
    """

    def __init__(self, sizes: Callable[[], Iterator[int]] | None = None, is_shown: bool | None = None) -> None:
        is_shown = sizes is not None and (sys.stderr.isatty() if is_shown is None else is_shown)
        # Created only if needed: it owns a lock that a killed worker process would leave behind in the system.
        self._bar = tqdm(unit="B", unit_scale=True, unit_divisor=1024, leave=False) if is_shown else None
        self._thread = threading.Thread(target=self._add_up, args=(sizes,), daemon=True) if is_shown else None
        self._sum: int | None = None
        self._correction = 0
        self._is_over = threading.Event()

    def __enter__(self) -> Progress:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(settings.progress_end)
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int) -> None:
        """Count so many bytes as done."""
        if self._bar is not None:
            if self._sum is not None:
                self._bar.total = self._sum + self._correction
            self._bar.update(count)

    def correct(self, count: int) -> None:
        """Add bytes to the sum that were not in ``sizes``; a negative number removes bytes that need no work."""
        self._correction += count

    def aside(self) -> AbstractContextManager[None]:
        """Hide the bar while lines are written to standard output or standard error."""
        return nullcontext() if self._bar is None else tqdm.external_write_mode(file=sys.stderr)

    def _add_up(self, sizes: Callable[[], Iterator[int]]) -> None:
        total = 0
        try:
            for size in sizes():
                if self._is_over.is_set():
                    return
                total += size
        except Exception:  # without a sum the bar shows a rate
            return
        self._sum = total

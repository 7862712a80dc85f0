"""What was found out about containers, kept on disk for the next process: a file in the user's cache.

It is a cache: whatever is in it can be found out again, so nothing here raises. One that is damaged is thrown away, and
one that cannot be used (another user may have put it there, there is no room, somebody holds it) is done without. Only
a thread of its own touches the file, as it may lie on a disk that hangs: who asks waits for a moment at most, and
where that was in vain nobody does until the disk has answered.
Any thread, and any process.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from glassfs.cache.catalogued import Kept, Key

if TYPE_CHECKING:
    from glassfs.cache.catalogue_file import CatalogueFile

SWITCH = "GLASSFS_CATALOGUE"
"""The variable of the environment that says ``no``."""
FOLDER = "glassfs"
BUDGET = 256 << 20
PATIENCE = 2.0
"""Seconds that somebody waits for the file, all in all, before it is done without."""
MOST_WAITING, MOST_BYTES = 64, 32 << 20
"""Things that wait to be written, and what they take; what comes on top of that is not kept."""
A_PART = 512
"""The memory that a part takes beside its data."""

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Catalogue:
    """The catalogue in ``folder``, which is made if need be, of up to ``budget`` bytes. None: there is none."""

    def __init__(self, folder: str | None, budget: int = BUDGET) -> None:
        self._folder = folder
        self._budget = budget
        self._lock = threading.Lock()
        self._tasks = _Tasks()
        self._process = 0
        self._late: threading.Event | None = None
        """Set when what somebody waited for in vain is done."""

    def find(self, keys: Sequence[Key], number: int = 0) -> dict[Key, Kept]:
        """Part ``number`` of each of these keys that is kept; of large ones only of those ``looked_for``."""
        return self._asked(lambda file: file.find(keys, number), {})

    def put(self, found: Mapping[Key, Sequence[Kept]]) -> None:
        """Keeps these, soon or never."""
        size = sum(len(part.head) + len(part.data) + A_PART for parts in found.values() for part in parts)
        self._give(lambda file: file.put(found), size=size)

    def close(self) -> None:
        """Waits a moment for what is to be written, and gives up the file until somebody asks again."""
        with self._lock:
            if self._process != os.getpid():
                return
            self._process = 0
            tasks = self._tasks
        done = threading.Event()
        with suppress(queue.Full):
            tasks.put((done, 0), timeout=PATIENCE)
            done.wait(PATIENCE)

    def _asked(self, ask: Callable[[CatalogueFile], Result], otherwise: Result) -> Result:
        done = threading.Event()
        answers: list[Result] = []

        def task(file: CatalogueFile) -> None:
            try:
                answers.append(ask(file))
            finally:
                done.set()

        if not self._give(task, PATIENCE):
            return otherwise
        if not done.wait(PATIENCE):
            self._late = done
        return answers[0] if answers else otherwise

    def _give(self, task: Callable[[CatalogueFile], object], patience: float = 0.0, size: int = 0) -> bool:
        """Whether the thread will do this, which takes so many bytes until then."""
        late = self._late
        if self._folder is None or (late is not None and not late.is_set()):
            return False
        with self._lock:
            if self._process != os.getpid():  # the first, or forked off since: a thread does not come along
                self._tasks = _Tasks()
                try:
                    threading.Thread(
                        target=_run, args=(self._folder, self._budget, self._tasks), name="glassfs-catalogue",
                        daemon=True,
                    ).start()
                except RuntimeError:  # no thread can be started
                    return False
                self._process = os.getpid()
                self._late = None
            tasks = self._tasks
        return tasks.offer(task, patience, size)


class _Tasks(queue.Queue[Any]):
    """What one thread is to do, each with the bytes that it takes until it is done."""

    def __init__(self) -> None:
        super().__init__(MOST_WAITING)
        self._counting = threading.Lock()
        self._bytes = 0

    def offer(self, task: Callable[[CatalogueFile], object], patience: float, size: int) -> bool:
        """Whether there is room for it."""
        with self._counting:
            if size and self._bytes and self._bytes + size > MOST_BYTES:
                return False
            self._bytes += size
        try:
            self.put((task, size), block=patience > 0, timeout=patience or None)
        except queue.Full:
            self.done(size)
            return False
        return True

    def done(self, size: int) -> None:
        with self._counting:
            self._bytes -= size


def user_folder() -> str | None:
    """Where the catalogue of the user belongs, if there is to be one and that can be told."""
    if os.environ.get(SWITCH, "").lower() in ("no", "0", "off"):
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, FOLDER) if os.path.isabs(base) else None


def _run(folder: str, budget: int, tasks: _Tasks) -> None:
    """The thread that has the file: it ends with an event, which it sets."""
    from glassfs.cache.catalogue_file import CatalogueFile  # SQLite is for those who need it

    file = CatalogueFile(folder, budget)
    while True:
        task, size = tasks.get()
        if isinstance(task, threading.Event):
            file.close()
            task.set()
            return
        try:
            task(file)
        except Exception as error:
            log.warning("the catalogue failed: %s: %s", type(error).__name__, error)
        del task  # what it refers to is not needed any more
        tasks.done(size)

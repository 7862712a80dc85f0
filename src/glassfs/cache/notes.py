"""Small things found out about what is made again and again, such as its checksums: a few integers each. Any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST_NOTES = 8192

Note = tuple[int, ...]


class Notes:
    """The notes that were used last, by keys like those of blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: OrderedDict[Hashable, Note] = OrderedDict()

    def __len__(self) -> int:
        return len(self._notes)

    def find(self, key: Hashable) -> Note | None:
        with self._lock:
            found = self._notes.get(key)
            if found is not None:
                self._notes.move_to_end(key)
            return found

    def put(self, key: Hashable, note: Note) -> None:
        with self._lock:
            self._notes[key] = note
            self._notes.move_to_end(key)
            if len(self._notes) > MOST_NOTES:
                self._notes.popitem(last=False)

    def forget(self, is_meant: Callable[[Hashable], bool]) -> None:
        with self._lock:
            for key in [key for key in self._notes if is_meant(key)]:
                del self._notes[key]

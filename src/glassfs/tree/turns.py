"""One at a time for each of many things. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Hashable


class Turns:
    """A lock for each key, which is there as long as somebody wants it: nobody waits for what others do elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Hashable, _Turn] = {}

    def of(self, key: Hashable) -> _Turn:
        """For a ``with``, around what only one thread at a time may do with what ``key`` stands for."""
        with self._lock:
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = _Turn(self, key)
            turn.wanted += 1
            return turn

    def give_back(self, turn: _Turn) -> None:
        with self._lock:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[turn.key]


class _Turn:
    """The lock of one key, and how many want it."""

    __slots__ = ("_held", "_turns", "key", "wanted")

    def __init__(self, turns: Turns, key: Hashable) -> None:
        self.key = key
        self.wanted = 0
        self._turns = turns
        self._held = threading.Lock()

    def __enter__(self) -> None:
        try:
            self._held.acquire()
        except BaseException:
            self._turns.give_back(self)
            raise

    def __exit__(self, *_: object) -> None:
        self._held.release()
        self._turns.give_back(self)

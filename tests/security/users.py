"""Ordinary users for tests that root runs: a function in a child process that has given up everything of root's.

The child is forked, so it needs no interpreter that the user may read, and it must not import what is not loaded yet.
What it returns or raises comes back through a pipe.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class User:
    """Numbers that need no entry in the system's tables."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def become(self) -> None:
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        os.chdir("/")


STRANGER = User(54321, 54321)


class Child:
    """``function(*arguments)`` in a process of its own, as ``user`` if there is one. Any function, also a closure."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, user: User | None = None) -> None:
        self._readable, writable = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._readable)
            _answer(writable, function, arguments, user)
        os.close(writable)
        self._is_waited_for = False

    def result(self, patience: float = 60.0) -> Any:
        """What the function returned. Fails if it raised, or took longer, after which it is killed."""
        data, end = b"", time.monotonic() + patience
        while True:
            ready, _, _ = select.select([self._readable], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.kill()
                raise AssertionError(f"the child did not end within {patience:g} s")
            part = os.read(self._readable, 1 << 20)
            if not part:
                break
            data += part
        self.kill()
        assert data, "the child ended without an answer"
        is_good, value = pickle.loads(data)
        assert is_good, value
        return value

    def kill(self) -> None:
        """Ends it if it has not ended; one that hangs in the kernel is left to init."""
        if self._is_waited_for:
            return
        self._is_waited_for = True
        os.close(self._readable)
        os.kill(self.pid, signal.SIGKILL)
        for _ in range(100):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.02)


def as_user(function: Callable[..., Any], *arguments: Any, user: User = STRANGER, patience: float = 60.0) -> Any:
    """Runs the function as that user and waits for what it returns."""
    return Child(function, *arguments, user=user).result(patience)


def _answer(pipe: int, function: Callable[..., Any], arguments: tuple[Any, ...], user: User | None) -> None:
    """Never returns: nothing of the test's own process may run twice."""
    try:
        if user is not None:
            user.become()
        answer = True, function(*arguments)
    except BaseException:
        answer = False, traceback.format_exc()
    try:
        with os.fdopen(pipe, "wb") as file:
            pickle.dump(answer, file)
    finally:
        os._exit(0)

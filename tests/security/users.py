"""Ordinary users for tests that root runs: call a function in a child process that has dropped root's privileges.

The child is forked, so the user need not be able to read the interpreter, but the child must not import new modules.
The result or exception comes back through a pipe.
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

from tests.waiting import SECONDS


@dataclass(frozen=True)
class User:
    """A uid, gid and groups, which need not be in /etc/passwd."""

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
    """Call ``function(*arguments)`` in a child process, as ``user`` if given. Closures are allowed."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, user: User | None = None) -> None:
        self._readable, writable = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._readable)
            _answer(writable, function, arguments, user)
        os.close(writable)
        self._is_waited_for = False

    def result(self, patience: float = SECONDS) -> Any:
        """Return what the function returned. Raises AssertionError if it raised, or after ``patience`` seconds."""
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
        """Kill the child if it still runs. One that hangs in the kernel is not reaped."""
        if self._is_waited_for:
            return
        self._is_waited_for = True
        os.close(self._readable)
        os.kill(self.pid, signal.SIGKILL)
        for _ in range(100):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.02)


def as_user(function: Callable[..., Any], *arguments: Any, user: User = STRANGER, patience: float = SECONDS) -> Any:
    """Call the function as that user and return its result."""
    return Child(function, *arguments, user=user).result(patience)


def _answer(pipe: int, function: Callable[..., Any], arguments: tuple[Any, ...], user: User | None) -> None:
    """Send the result and exit, so that nothing of the test's own process runs twice."""
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

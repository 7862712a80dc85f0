"""Ask mounts for their status in child processes, as a mount may never answer.

A thread that waits for a file system whose daemon hangs cannot be ended, not even by SIGKILL, and neither can its
process. So each question is asked by a child process, which is abandoned when its time is up. Call these functions
while the process has one thread.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from glassfs.mount import system
from glassfs.settings import settings
from glassfs.sizes import PIECE

Question = Callable[[], bytes]

GONE = "its daemon is gone; 'glassfs umount' removes it"
SILENT = "does not answer"
NOT_ALLOWED = "only root and the user who mounted it may see more"
FOREIGN = "its status cannot be read"


def statuses(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return each mount's status.json, or the reason why it cannot be read, as ``unreadable``.

    Any user who may mount can be at the other end, so callers must not trust the content.
    """
    return [_parsed(answer) for answer in ask([partial(_status, path) for path in paths])]


def ask(questions: Sequence[Question], seconds: float | None = None) -> list[bytes | None]:
    """Return the answer to each question, or None if it raised or took longer; by default, than a mount may take."""
    answers: list[bytes | None] = [None] * len(questions)
    with selectors.DefaultSelector() as selector:
        for number, question in enumerate(questions):
            child, pipe = _put(question)
            selector.register(pipe, selectors.EVENT_READ, (number, child, bytearray()))
        end = time.monotonic() + (settings.probe if seconds is None else seconds)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                number, child, said = key.data
                part = os.read(key.fd, PIECE)
                said += part
                if not part:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _, status = os.waitpid(child, 0)
                    answers[number] = bytes(said) if status == 0 else None
        for key in list(selector.get_map().values()):
            os.close(key.fd)
            # Not waited for: a child that hangs in the kernel ends when the kernel lets it.
            os.kill(key.data[1], signal.SIGKILL)
    return answers


def _put(question: Question) -> tuple[int, int]:
    """Start a child for the question; return its process id and the pipe that it answers through."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(question, readable, writable)
    os.close(writable)
    return child, readable


def _answer(question: Question, readable: int, writable: int) -> NoReturn:
    status = 1
    try:
        os.close(readable)
        # A reader of this program's output must not have to wait for a child that hangs.
        system.silence()
        answer = question()
        while answer:
            answer = answer[os.write(writable, answer) :]
        status = 0
    finally:
        os._exit(status)


def _status(path: str) -> bytes:
    """Return the status, or the reason why there is none, as JSON."""
    reason: str | None = GONE
    try:
        if not system.is_dead(path):
            with open(os.path.join(path, ".glassfs/status.json"), "rb") as file:
                return file.read(16 << 20)  # a longer one is not from glassfs
    except PermissionError:
        reason = NOT_ALLOWED
    except OSError as error:
        reason = error.strerror
    return json.dumps({"unreadable": reason}).encode()


def _parsed(answer: bytes | None) -> dict[str, Any]:
    if answer is None:
        return {"unreadable": SILENT}
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"unreadable": FOREIGN}

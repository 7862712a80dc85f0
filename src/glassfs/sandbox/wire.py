"""Messages between a container's sandbox and its worker: a kind, a length, and as many bytes. Any process.

A worker's first message is ``READY`` (JSON): the library is imported, and the process confined. Then the sandbox sends
requests (JSON). The worker answers each with any number of ``DATA`` and one ``ANSWER`` (JSON) or ``ERROR`` (text, a
verdict on the container); before that it sends ``READ`` for each range of the container that it needs, and gets
``BYTES`` or ``FAILED``. Instead of ``READY`` or an answer it may send ``NOT_NOW`` (text): the machine is the reason.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

from glassfs import __version__

READY, NOT_NOW = b"Y", b"N"
REQUEST, BYTES, FAILED = b"Q", b"B", b"F"
READ, DATA, ANSWER, ERROR = b"R", b"D", b"A", b"E"
HEADER = struct.Struct("<cI")
RANGE = struct.Struct("<QI")
"""Offset and size of a range that a worker reads."""

LARGEST_ANSWER = 16 << 20
LARGEST_ERROR = 1 << 10

START, END, DROP = b"S", b"E", b"D"
"""Commands to the server: start a worker with the attached socket; end one, and send how it ended to the attached
socket; end one. None has another answer, so that no caller waits for a server.
"""
COMMAND = struct.Struct("<cqq")
"""A command, the number that the caller gave the worker, and the size of its container."""
STATUS = struct.Struct("<i")
"""How a worker ended, as of waitpid(2)."""


def _code() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if files else ""


CODE = _code()
"""A digest of this package at the start of the process; "" in a frozen program, which has no such files."""


def greeting(process: int) -> dict[str, Any]:
    """Return what a worker says when it is ready."""
    return {"version": __version__, "code": CODE, "process": process}


def is_same_code(theirs: Any) -> bool:
    """Return whether a worker that greeted so runs the code that this process does: an upgrade may come between."""
    if not isinstance(theirs, dict) or theirs.get("version") != __version__:
        return False
    return not CODE or theirs.get("code") == CODE

"""Messages between a container's sandbox and its worker: a kind, a length, and as many bytes. Any process.

A worker's first message is ``READY`` (JSON: version of glassfs, process id): the library is imported, and the process
confined. Then the sandbox sends requests (JSON). The worker answers each with any number of ``DATA`` and one ``ANSWER``
(JSON) or ``ERROR`` (text, a verdict on the container); before that it sends ``READ`` for each range of the container
that it needs, and gets ``BYTES`` or ``FAILED``. Instead of ``READY`` or an answer it may send ``NOT_NOW`` (text): the
machine is the reason.
"""

from __future__ import annotations

import struct

READY, NOT_NOW = b"Y", b"N"
REQUEST, BYTES, FAILED = b"Q", b"B", b"F"
READ, DATA, ANSWER, ERROR = b"R", b"D", b"A", b"E"
HEADER = struct.Struct("<cI")
RANGE = struct.Struct("<QI")
"""Offset and size of a range that a worker reads."""

LARGEST_ANSWER = 16 << 20
LARGEST_ERROR = 1 << 10

START, END = b"S", b"E"
"""Commands to the server: start a worker with the attached socket; end one, and send how it ended to the attached
socket. The caller may have closed the other side of it: none has to wait for a server.
"""
COMMAND = struct.Struct("<cqqq")
"""A command, the number that the caller gave the worker, the size of its container, and the bytes of memory that it may
take beside those of every worker.
"""
STATUS = struct.Struct("<i")
"""How a worker ended, as of waitpid(2)."""

"""Messages between a container's sandbox and its worker: a kind, a length, and as many bytes. Any process.

The sandbox sends a request (JSON). The worker answers with any number of ``DATA`` and one ``ANSWER`` (JSON) or
``ERROR`` (text); before that it sends ``READ`` for each range of the container that it needs, and gets ``BYTES`` or
``FAILED``.
"""

from __future__ import annotations

import struct

REQUEST, BYTES, FAILED = b"Q", b"B", b"F"
READ, DATA, ANSWER, ERROR = b"R", b"D", b"A", b"E"
HEADER = struct.Struct("<cI")
RANGE = struct.Struct("<QI")
"""Offset and size of a range that a worker reads."""

LARGEST_READ = 1 << 20
LARGEST_DATA = 1 << 20
LARGEST_ANSWER = 16 << 20
LARGEST_ERROR = 1 << 10

START, END, DROP = b"S", b"E", b"D"
"""Commands to the server: start a worker with the attached socket, end the worker with a process id and say how it
ended, and end one without a reply.
"""
COMMAND = struct.Struct("<cq")
REPLY = struct.Struct("<q")
"""The process id of a worker, or its status as of waitpid(2); -1 if there is none."""

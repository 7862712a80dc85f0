"""Read and write a report: a file with one line of JSON per container, in order of completion.

A line is ``{"path", "version", "ok", "faults"}``, with ``"omitted"`` if the container has what is not shown, and
``"command"`` unless that is ``verify``: a report belongs to one command. A container is recognized by its path, however
typed, and its version. A killed program leaves at most one incomplete line, which the next run removes. A lock on the
file ensures a single writer. One thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import xxhash

from glassfs import outputs
from glassfs.datasets.batch.contract import BatchError
from glassfs.names import raw
from glassfs.source import is_url

VERIFY = "verify"
MOST_LINE_BYTES = 8 << 20
"""Limit on a line that is parsed; of a longer one, the container is processed again."""
_BEGIN = b'{"path": "'


class ReportLine(NamedTuple):
    """The numbers of ``faults`` and of what is ``omitted`` in an earlier line."""

    faults: int
    omitted: int


class Report:
    """The report ``name`` of a ``command``. If ``is_resumed``, its lines are kept. Raises GlassfsError if it cannot."""

    def __init__(self, name: str, command: str, is_resumed: bool = False) -> None:
        self._name, self._command = name, command
        self._known: dict[bytes, ReportLine] = {}
        self._file = outputs.locked(name)
        try:
            self._begin(is_resumed)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def known(self, path: str, version: str) -> ReportLine | None:
        """Return the line for this version of a container, if there was one at the start."""
        return self._known.get(_key(path, version))

    def write(self, path: str, version: str, faults: Sequence[str], omitted: Sequence[str] = ()) -> None:
        """Append a line."""
        line: dict[str, Any] = {"path": path, "version": version, "ok": not faults, "faults": list(faults)}
        if omitted:
            line["omitted"] = list(omitted)
        if self._command != VERIFY:
            line["command"] = self._command
        # One write for each line, without a buffer: the file has it when the caller goes on, whatever ends the program.
        rest = memoryview(f"{json.dumps(line)}\n".encode())
        with outputs.writing(self._name):
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]

    def _begin(self, is_resumed: bool) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if not size:
            return
        # A report of another run is not overwritten: it may have taken days.
        if not is_resumed:
            raise BatchError("this report exists already; --resume continues it", self._name)
        whole = end = 0
        is_at_start = True
        # The file that is locked is read, not what has its name now: only what was checked may be truncated.
        self._file.seek(0)
        for piece in iter(partial(self._file.readline, MOST_LINE_BYTES), b""):
            # A line that is too long comes in pieces, of which only one that begins and ends it can be parsed.
            is_line, is_at_start = is_at_start, piece.endswith(b"\n")
            line = _parsed(piece) if is_line and is_at_start else None
            # Only a report may be truncated; a program killed at its first line may have left the beginning of one.
            if line is None and not end and (is_at_start or piece[: len(_BEGIN)] != _BEGIN[: len(piece)]):
                raise BatchError("is not a report of glassfs; name another file", self._name)
            end += len(piece)
            whole = end if is_at_start else whole
            if line is not None:
                command, key, known = line
                if command != self._command:
                    raise BatchError(f"is a report of {command[:20]!r}, not of {self._command!r}", self._name)
                self._known[key] = known
        if whole < size:
            with outputs.writing(self._name):
                os.ftruncate(self._file.fileno(), whole)


def _parsed(raw: bytes) -> tuple[str, bytes, ReportLine] | None:
    """Return the command, key and contents of a line; None if it is not a line of a report."""
    with suppress(ValueError, RecursionError):  # also of text that is not Unicode
        found = json.loads(raw)
        match isinstance(found, dict) and {"command": VERIFY, "omitted": []} | found:
            case {
                "path": str(path), "version": str(version), "ok": bool(), "faults": list(faults),
                "command": str(command), "omitted": list(omitted),
            }:
                return command, _key(path, version), ReportLine(len(faults), len(omitted))
    return None


def _key(path: str, version: str) -> bytes:
    # So that ``a.kdb``, ``./a.kdb`` and the absolute path are one container.
    if not is_url(path):
        # Not normalized further: only the system knows where ``folder/..`` leads.
        whole = path if path.startswith("/") else f"{os.getcwd()}/{path}"
        path = "/".join(name for name in whole.split("/") if name not in ("", "."))
    return xxhash.xxh128_digest(raw(f"{path}\0{version}"))


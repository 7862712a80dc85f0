"""A report: a file with a line of JSON for each container, as they are done.

A line is ``{"path", "version", "ok", "faults"}``, and ``"command"`` where that is another one than ``verify``: a report
is of one command. Where rows of a table were made of the container the line says as well how they call it and how many
there are, ``{"container", "rows"}``. A container is known again by its path, however that was typed, and its version.

A line is written at once, at the end of the file. So whenever the program is killed there are whole lines, and at most
one more that is torn, which the next one cuts off. One program writes a report at a time: it holds a lock on the file.
What is known of the lines that were there is a few words each. One thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import xxhash

from glassfs.batch.contract import BatchError
from glassfs.batch.locking import is_locked
from glassfs.errors import NotAllowed, NotFound
from glassfs.names import raw
from glassfs.source import is_url

VERIFY = "verify"
_BEGIN = b'{"path": "'


class Line(NamedTuple):
    """What is said of one version of a container."""

    path: str
    version: str
    ok: bool
    faults: Sequence[str]
    command: str
    container: str = ""
    rows: int = 0


class Known(NamedTuple):
    """What a line from before said: how many ``faults`` and ``rows``, and a hash of what these call the container."""

    faults: int
    rows: int
    container: int

    def has_rows(self, container: str, rows: int) -> bool:
        """Whether it had so many of this name."""
        return self.rows == rows and self.container == _hash(container)


class Report:
    """The file at ``name``, of a ``command``. If it ``is_resumed``, what it says is kept.

    Raises BatchError where it cannot be that.
    """

    def __init__(self, name: str, command: str, is_resumed: bool = False) -> None:
        self._name, self._command = name, command
        self._known: dict[bytes, Known] = {}
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except FileNotFoundError as error:
            raise NotFound("the folder for the report is not there", name) from error
        except PermissionError as error:
            raise NotAllowed("the report cannot be written", name) from error
        except OSError as error:
            raise BatchError(f"the report cannot be written: {error.strerror}", name) from error
        self._file: BinaryIO = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
        try:
            self._begin(is_resumed)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Report:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def known_lines(self) -> int:
        """How many lines there were from the beginning."""
        return len(self._known)

    def known(self, path: str, version: str) -> Known | None:
        """What was said of this version of a container, if there was a line for it from the beginning."""
        return self._known.get(_key(path, version))

    def write(
        self, path: str, version: str, faults: Sequence[str], container: str = "", rows: int | None = None,
    ) -> None:
        """A line more."""
        said: dict[str, Any] = {"path": path, "version": version, "ok": not faults, "faults": list(faults)}
        if self._command != VERIFY:
            said["command"] = self._command
        if rows is not None:
            said |= {"container": container, "rows": rows}
        rest = memoryview(f"{json.dumps(said)}\n".encode())
        with self._writing():
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]

    def _begin(self, is_resumed: bool) -> None:
        if is_locked(self._file):
            raise BatchError("another program is writing this report", self._name)
        size = os.fstat(self._file.fileno()).st_size
        if not size:
            return
        if not is_resumed:
            raise BatchError("there is a report already; --resume goes on with it", self._name)
        self._demand_report()
        whole = 0
        with open(self._name, "rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                whole += len(raw)
                line = _parsed(raw)
                if line is None:
                    continue
                if line.command != self._command:
                    raise BatchError(f"is a report of {line.command!r}, not of {self._command!r}", self._name)
                self._known[_key(line.path, line.version)] = Known(len(line.faults), line.rows, _hash(line.container))
        if whole < size:
            with self._writing():
                os.ftruncate(self._file.fileno(), whole)

    def _demand_report(self) -> None:
        """Nothing is cut off a file that something else has made."""
        with open(self._name, "rb") as file:
            first = file.readline()
        is_torn = not first.endswith(b"\n") and first[: len(_BEGIN)] == _BEGIN[: len(first)]
        if not is_torn and _parsed(first) is None:
            raise BatchError("is not a report of glassfs", self._name)

    def _writing(self) -> _Writing:
        return _Writing(self._name)


class _Writing:
    """What the system refuses in here is told with the name of the report."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise BatchError(f"the report cannot be written: {error.strerror}", self._name) from error


def _parsed(raw: bytes) -> Line | None:
    said: Any = None
    with suppress(ValueError, RecursionError):
        said = json.loads(raw)
    if not isinstance(said, dict):
        return None
    path, version, ok, faults = (said.get(name) for name in Line._fields[:4])
    command = said.get("command", VERIFY)
    container, rows = said.get("container", ""), said.get("rows", 0)
    if not (isinstance(path, str) and isinstance(version, str) and isinstance(command, str)):
        return None
    if not (isinstance(ok, bool) and isinstance(faults, list) and isinstance(container, str) and isinstance(rows, int)):
        return None
    return Line(path, version, ok, [str(fault) for fault in faults], command, container, rows)


def _hash(text: str) -> int:
    return xxhash.xxh64_intdigest(raw(text))


def _key(path: str, version: str) -> bytes:
    if not is_url(path):
        # No more than this: what "folder/.." leads to is for the system to say.
        whole = path if path.startswith("/") else f"{os.getcwd()}/{path}"
        path = "/".join(name for name in whole.split("/") if name not in ("", "."))
    return xxhash.xxh128_digest(raw(f"{path}\0{version}"))

"""Run a command over many containers: select its shard, skip what the report knows, work on the rest, report.

A report is a file with one line of JSON per container, in order of completion: ``{"path", "version", "ok", "faults"}``,
with ``"omitted"`` if the container has what is not shown, and ``"command"`` unless that is ``verify``: a report belongs
to one command. A container is recognized by its path, however typed, and its version. A killed program leaves at most
one incomplete line, which the next run removes. A lock on the file ensures a single writer. One thread.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import xxhash

from glassfs import outputs
from glassfs.datasets.batch.found import BatchError, Problem, SearchHit, Unlisted, Work
from glassfs.datasets.batch.mapping import Cluster, Done, Mapping, Processes, Workers, cores, here
from glassfs.errors import LeftOut
from glassfs.names import raw
from glassfs.source import absolute, is_url

VERIFY = "verify"
MOST_LINE_BYTES = 8 << 20
"""Limit on a line that is parsed; of a longer one, the container is processed again."""
_BEGIN = b'{"path": "'


class Shard(NamedTuple):
    """Part ``number`` (from 0) of ``parts``: a hash of each container's path below the folder decides."""

    number: int = 0
    parts: int = 1

    @classmethod
    def parsed(cls, text: str) -> Shard:
        """Parse ``I/N``. Raises ValueError."""
        match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if match is None:
            raise ValueError("is not of the form I/N, such as 0/3")
        found = cls(int(match[1]), int(match[2]))
        if found.number >= found.parts:
            raise ValueError("is out of range: with N parts, I is 0 to N-1")
        return found

    def has(self, key: str) -> bool:
        """Return whether the container at this path below the named folder belongs to this part."""
        return xxhash.xxh64_intdigest(raw(key)) % self.parts == self.number


@dataclass(frozen=True)
class RunPlan:
    """The options of a ``command``: ``jobs`` processes (0: one per core) or a ``scheduler``, a shard, a report."""

    command: str
    jobs: int = 1
    scheduler: str = ""
    shard: Shard = Shard()  # noqa: RUF009
    report: str = ""
    is_resumed: bool = False

    @property
    def is_here(self) -> bool:
        """Whether this process does the work."""
        return not self.scheduler and self.jobs == 1

    @property
    def is_plain(self) -> bool:
        """Whether no option for many containers was given."""
        return self.is_here and self.shard == Shard() and not self.report

    def workers(self) -> AbstractContextManager[Workers | None]:
        """Start the workers for a ``with``; None if this process does the work."""
        if self.is_here:
            return nullcontext()
        return Cluster(self.scheduler) if self.scheduler else Processes(self.jobs or cores())

    def opened_report(self) -> AbstractContextManager[Report | None]:
        return closing(Report(self.report, self.command, self.is_resumed)) if self.report else nullcontext()


@dataclass
class BatchRun:
    """A run of a command. ``containers``, ``faults`` and ``omitted`` count its results and those in the ``report``.

    ``on_unlisted`` is called with folders that cannot be listed, and with what is left out of folders. They have no
    line in a report and are tried again each time. ``on_skipped`` is called with what the report knows already.
    """

    plan: RunPlan
    workers: Workers | None
    report: Report | None
    on_unlisted: Callable[[Unlisted], None]
    on_skipped: Callable[[SearchHit], None]
    containers: int = 0
    faults: int = 0
    omitted: int = 0

    def outcomes(
        self, found: Iterable[SearchHit | Unlisted], work: Work, is_ordered: bool = False,
        is_still: Callable[[SearchHit], bool] = lambda found: True,
    ) -> Iterator[Done]:
        """Yield the outcomes for all files of this shard. Those in parts require ``is_ordered``.

        An outcome is in the report when the caller asks for the next one, unless the container could not be examined
        now. Earlier lines of the report count only if ``is_still`` agrees.
        """
        items = self._items(found, is_still)
        workers = self.workers
        faults: list[Problem] = []
        is_several = False
        for item, outcome in here(work, items) if workers is None else Mapping(work, workers, is_ordered).all(items):
            # The caller shows the outcome before it is noted: an interruption may repeat a container, never lose one.
            yield item, outcome
            faults += outcome.faults
            is_several = is_several or outcome.is_several
            if outcome.rest is None:
                self.containers += outcome.is_container
                omitted = sum(fault.is_omitted for fault in faults)
                self.omitted += omitted
                self.faults += len(faults) - omitted
                # Without a line in the report, the next run tries the container again.
                is_noted = outcome.is_container and not any(fault.is_passing for fault in faults)
                if self.report is not None and is_noted:
                    # Several files have no version that a listing shows: without one the container is read again.
                    version = "" if is_several else item.version
                    lines = [[str(fault) for fault in faults if fault.is_omitted is kind] for kind in (False, True)]
                    self.report.write(item.name, version, *lines)
                faults, is_several = [], False

    def _items(
        self, found: Iterable[SearchHit | Unlisted], is_still: Callable[[SearchHit], bool],
    ) -> Iterator[SearchHit]:
        is_remote = self.workers is not None and self.workers.is_remote
        for one in found:
            if isinstance(one, Unlisted):
                is_omitted = isinstance(one.error, LeftOut)
                self.omitted += is_omitted
                self.faults += not is_omitted
                self.on_unlisted(one)
            elif self.plan.shard.has(one.key):
                # A container counts as done in the version that it has now, under the path that it has now.
                known = None if self.report is None else self.report.known(one.name, one.version)
                if known is None or not is_still(one):
                    yield one._replace(source=absolute(one.source)) if is_remote else one
                else:
                    self.containers += 1
                    self.faults += known.faults
                    self.omitted += known.omitted
                    self.on_skipped(one)


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

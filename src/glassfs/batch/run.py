"""One command over many containers: whose turn they are, what is known already, the work on the others, the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from glassfs.batch.contract import Fault, Found, Item, Work
from glassfs.batch.found import Unlisted
from glassfs.batch.mapping import Done, Mapping, here
from glassfs.batch.report import Report
from glassfs.batch.shards import Shard
from glassfs.batch.workers import Cluster, Processes, Workers, cores
from glassfs.source import absolute


@dataclass(frozen=True)
class Plan:
    """What a person asked of a ``command``.

    That is ``jobs`` processes (0: one each core) or a ``scheduler``, a part of all, a report.
    """

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
        """Whether nothing was asked for that is about many containers."""
        return self.is_here and self.shard == Shard() and not self.report

    @property
    def threads(self) -> int:
        """Those that may read one container, 0 for one each core: who works at the same time shares the cores."""
        if self.is_here:
            return 0
        return 1 if self.scheduler else max(1, cores() // (self.jobs or cores()))

    @contextmanager
    def workers(self) -> Iterator[Workers | None]:
        """Those who are to do it; none of them where this process is."""
        if self.is_here:
            yield None
            return
        with Cluster(self.scheduler) if self.scheduler else Processes(self.jobs or cores()) as workers:
            yield workers

    @contextmanager
    def opened_report(self) -> Iterator[Report | None]:
        if not self.report:
            yield None
            return
        with Report(self.report, self.command, self.is_resumed) as report:
            yield report


class Run:
    """The counts of what was done, with what a ``report`` knew from before: ``containers`` and ``faults``.

    ``unlisted`` is told of folders that cannot be looked into. They have no line in a report, as they are no containers
    and are tried again each time. ``skipped`` is told of what the report knows already.
    """

    def __init__(
        self, plan: Plan, workers: Workers | None, report: Report | None, unlisted: Callable[[Unlisted], None],
        skipped: Callable[[Found], None],
    ) -> None:
        self.containers = 0
        self.faults = 0
        self._plan = plan
        self._workers = workers
        self._report = report
        self._unlisted_is = unlisted
        self._skipped_is = skipped

    def outcomes(
        self, found: Iterable[Found | Unlisted], work: Work, is_ordered: bool = False,
        is_still: Callable[[Found], bool] = lambda found: True,
    ) -> Iterator[Done]:
        """What comes of the files whose turn it is. That of one comes in parts only if it ``is_ordered``.

        What was done is in the report once the next outcome is asked for, but for what could not be looked at now: that
        is tried again when the report is gone on with. What the report said before of a container counts if it
        ``is_still`` so.
        """
        items = self._items(found, is_still)
        workers = self._workers
        faults: list[Fault] = []
        is_several, rows = False, None
        for done in here(work, items) if workers is None else Mapping(work, workers, is_ordered).all(items):
            yield done
            faults += done.outcome.faults
            is_several = is_several or done.outcome.is_several
            if done.outcome.rows is not None:
                rows = (rows or 0) + done.outcome.rows
            if done.is_last:
                self.containers += done.outcome.is_container
                self.faults += len(faults)
                if done.outcome.is_container and not any(fault.is_passing for fault in faults):
                    self._note(done.item.found, faults, is_several, rows)
                faults, is_several, rows = [], False, None

    def _note(self, found: Found, faults: list[Fault], is_several: bool, rows: int | None) -> None:
        if self._report is not None:
            # Of several files there is no version that can be compared at listing: without one it is read again.
            version = "" if is_several else found.version
            self._report.write(found.name, version, [str(fault) for fault in faults], found.path, rows)

    def _items(self, found: Iterable[Found | Unlisted], is_still: Callable[[Found], bool]) -> Iterator[Item]:
        is_elsewhere = self._workers is not None and self._workers.is_elsewhere
        for one in found:
            if isinstance(one, Unlisted):
                self.faults += 1
                self._unlisted_is(one)
            elif self._plan.shard.has(one.key):
                known = None if self._report is None else self._report.known(one.name, one.version)
                if known is None or not is_still(one):
                    yield Item(one._replace(source=absolute(one.source)) if is_elsewhere else one)
                else:
                    self.containers += 1
                    self.faults += known.faults
                    self._skipped_is(one)

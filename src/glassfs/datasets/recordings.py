"""The recordings of the containers of a joined table, each opened in the version that the table has. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from glassfs.content import Container, Recording
from glassfs.datasets.files import File
from glassfs.errors import Changed
from glassfs.tree.containers.containers import Containers


class Recordings:
    """What opens containers by their paths. ``file_of`` and ``demand_readable`` raise Changed for a container that is
    not what it was, or that must not be read any more.
    """

    def __init__(
        self, containers: Containers, file_of: Callable[[str], File], demand_readable: Callable[[str], None],
    ) -> None:
        self._containers = containers
        self._file_of = file_of
        self.demand_readable = demand_readable

    @contextmanager
    def recordings(self, container: str, is_kept: bool) -> Iterator[Callable[[int], Recording]]:
        """Provide what returns a recording by its number. See ``Table.recordings``."""
        self.demand_readable(container)
        file = self._file_of(container)
        if is_kept:
            lease = self._containers.leased(file.location, file.version, f"/{container}")
            with lease:
                yield _recordings(self._containers.opened(lease).container, container)
        else:
            with self._containers.glimpsed(file.location, file.version) as (opened, _):
                yield _recordings(opened, container)

    def found(self, container: str, name: bytes) -> bytes | None:
        """Return what was kept of a container. See ``Table.found``."""
        file = self._file_of(container)
        is_lasting = file.location.store.has_lasting_versions
        return self._containers.kept.find(file.stamp, name) if is_lasting else None

    def keep(self, container: str, name: bytes, value: bytes) -> None:
        """Keep what was found in a container. See ``Table.keep``."""
        file = self._file_of(container)
        if file.location.store.has_lasting_versions:
            self._containers.kept.keep(file.stamp, file.mtime_ns, name, value)


def _recordings(opened: Container, path: str) -> Callable[[int], Recording]:
    table = opened.episodes()
    if table is None or table.recording is None:
        raise Changed("has no episodes any more", path)
    return table.recording

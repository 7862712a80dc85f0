"""Verdicts on files: a container or not, remembered while the files that they rest on are unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glassfs.errors import GlassfsError, Unavailable
from glassfs.source import Entry, Path, Store, Version
from glassfs.tree.containers.lease import ContainerLease
from glassfs.tree.nodes import Origin


class Verdict(NamedTuple):
    """The verdict on a file, with the entries of all files that it is made of, its own first.

    ``refusal`` says why the file is not shown as a container; "" if it does not look like one. For a container it is
    None, and there is a ``lease``, and the ``origin`` of its directory if that was made already.
    """

    refusal: str | None
    entries: Sequence[Entry]
    lease: ContainerLease | None = None
    origin: Origin | None = None


class Finding(NamedTuple):
    """A verdict on one version of a file, and the other files that it rests on.

    ``others`` are the further files of a container. ``asked`` are the files that a refused one asked for, with their
    stamps; "" for a file that is missing or cannot be opened.
    """

    version: Version
    refusal: str | None
    format: str = ""
    others: Sequence[tuple[Path, Entry]] = ()
    asked: Sequence[tuple[Path, str]] = ()
    tables: Sequence[str] = ()
    """The joined tables to which the container may give rows."""

    @property
    def is_presumed(self) -> bool:
        """Whether the file looks like a container, and was not opened as one."""
        return self.refusal is None and not self.format

    def others_now(self, store: Store) -> Sequence[Entry] | None:
        """Return current entries of the further files, or None if the finding no longer holds."""
        now = []
        for path, entry in self.others:
            try:
                current = store.entry(path)
            except Unavailable:
                raise
            except GlassfsError:
                return None
            if current.version != entry.version:
                return None
            now.append(current)
        return now if all(_stamp(store, path) == stamp for path, stamp in self.asked) else None


def _stamp(store: Store, path: Path) -> str:
    """Return the stamp of a file, "" if it is missing or cannot be opened."""
    try:
        return store.entry(path).stamp
    except Unavailable:
        raise
    except GlassfsError:
        return ""

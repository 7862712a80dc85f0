"""Pick episodes by a condition, for ``glassfs export --where``: where each is, its name in the target, their table."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from glassfs.cli.common import complain, name_of, report
from glassfs.cli.episodes import Rows
from glassfs.cli.exporting import Written
from glassfs.cli.many import found_under
from glassfs.cli.target import Target
from glassfs.content.episodes import POSITION
from glassfs.content.pieces import ContainerPiece
from glassfs.content.summary import CONTAINER, EPISODES
from glassfs.datasets.batch.contract import BatchSettings, SearchHit, WorkItem
from glassfs.datasets.batch.mapping import here
from glassfs.datasets.joined import joined_of
from glassfs.datasets.table import PARQUET, ParquetWriter, records
from glassfs.errors import LeftOut, NotADirectory, NotFound
from glassfs.library.finding import followed
from glassfs.names import component, raw
from glassfs.sizes import PIECE
from glassfs.tree import Directory, Tree

TABLE = "/episodes.parquet"
ATTRIBUTES = "/attributes.json"
ENDING = ".attributes.json"
_GAP = re.compile(r"[\W_]+")


@dataclass
class Picked:
    """Episodes: ``places`` are their paths in the tree and in the target. ``failures`` counts unread containers.

    ``omitted`` counts what is left out of folders.
    """

    places: dict[str, str] = field(default_factory=dict)
    pieces: list[ContainerPiece] = field(default_factory=list)
    failures: int = 0
    omitted: int = 0

    def write_table(self, target: Target) -> Written:
        """Write the table of the episodes beside them, and return how much is written and missing."""
        with tempfile.TemporaryFile() as file:
            table = ParquetWriter(file, None)
            table.write(self.pieces)
            table.end()
            size = file.tell()
            file.seek(0)
            pieces = [memoryview(piece) for piece in iter(lambda: file.read(PIECE), b"")]
            target.write(TABLE, 0o444, time.time_ns(), pieces)
        return Written(1, size, self.failures, self.omitted)


def picked_episodes(tree: Tree, source: str, settings: BatchSettings, where: str) -> Picked:
    """Return the episodes in a source that satisfy a condition. Containers that cannot be read are reported.

    Raises ClickException if there is none.
    """
    picked = Picked()

    def items() -> Iterator[WorkItem]:
        for hit in found_under([source], settings.connection).all():
            if isinstance(hit, SearchHit):
                yield WorkItem(hit)
            else:
                report(hit.name, hit.error)
                is_omitted = isinstance(hit.error, LeftOut)
                picked.omitted += is_omitted
                picked.failures += not is_omitted

    for done in here(Rows(settings, PARQUET, where), items()):
        for fault in done.outcome.faults:
            complain(f"{done.item.found.name}: {fault}")
            picked.failures += 1
        for piece in done.outcome.data or ():
            above = "/" if done.item.found.is_named else f"/{piece.path}"
            directory = _directory_of(tree, above)
            picked.pieces.append(piece)
            for row in records(piece):
                path = f"{above.rstrip('/')}/{directory}/{row[POSITION]}" if directory else above
                picked.places[path] = f"/{_name(row)}"
                picked.places |= _attributes(tree, above.rstrip("/"), path, row)
    if not picked.places:
        raise click.ClickException(f"{name_of(source)}: no episode satisfies: {where}")
    return picked


def _directory_of(tree: Tree, container: str) -> str:
    """Return the name of the directory with an episode at each position; "" if the container is an episode itself."""
    node = tree.lookup(container)
    table = joined_of(node, EPISODES) if isinstance(node, Directory) else None
    return component(table.directory) if table is not None and table.directory else ""


def _attributes(tree: Tree, container: str, path: str, row: dict[str, object]) -> dict[str, str]:
    """Return the places of the attributes that belong to an episode in a group: its own, of groups above, of the file.

    Episodes that are no links have theirs inside.
    """
    # Episodes of HDF5 are links to their groups, whose attributes are beside them and not inside.
    goal = followed(tree, path)[0]
    if goal == path:
        return {}
    whole = component(raw(str(row[CONTAINER])))
    found = {f"{container}/meta{ATTRIBUTES}": f"/{whole}~attributes.json", f"{goal}{ENDING}": f"/{_name(row)}{ENDING}"}
    names = goal[len(container) + 1 :].split("/")[:-1]
    for depth in range(1, len(names) + 1):
        found[f"{container}/{'/'.join(names[:depth])}{ENDING}"] = f"/{whole}~{'~'.join(names[:depth])}{ENDING}"
    return {start: place for start, place in found.items() if _is_there(tree, start)}


def _is_there(tree: Tree, path: str) -> bool:
    try:
        tree.node(path)
    except (NotFound, NotADirectory):
        return False
    return True


def _name(row: dict[str, object]) -> str:
    """Return a name that tells container, position and task; all are different, as ``~`` is not in a task's words."""
    task = _GAP.sub("-", str(row["language_instruction"] or "").lower())[:60].strip("-")
    return component(raw(str(row[CONTAINER])), f"~{row[POSITION]}{'-' * bool(task)}{task}")

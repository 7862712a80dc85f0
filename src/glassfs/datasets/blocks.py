"""The blocks of joined tables: a few thousand rows each, which consist of pieces of several containers. Any thread.

Blocks are in the block cache, and rebuilt from their containers after eviction.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import xxhash

from glassfs.content import Rendered
from glassfs.content.data import Data
from glassfs.content.join import BLOCK_BYTES, FROM_JSON, JoinedBlock, JoinedRows, Layout, joined_block
from glassfs.content.pieces import PIECE_ROWS, ContainerPiece
from glassfs.content.summary import EPISODE_ROWS, EPISODES, FEATURES, Columns
from glassfs.datasets.files import Gap, SnapshotFile
from glassfs.datasets.rights import Rights
from glassfs.datasets.rows import RowReader, WantedPiece
from glassfs.errors import Damaged
from glassfs.names import raw
from glassfs.sizes import PIECE
from glassfs.tree.containers.containers import Containers


class BlockPart(NamedTuple):
    """A piece of a file's rows in a block: its number, first row, row count, and first block in the container's table.

    The bits of ``columns`` are the numbers of its columns in the joined table.
    """

    file: int
    number: int
    first: int
    rows: int
    block: int
    columns: int


class TableBlock(NamedTuple):
    """A block of a joined table: its key in the cache, its parts, the columns at its beginning, its size in bytes."""

    key: str
    parts: tuple[BlockPart, ...]
    columns: Columns
    size: int


class BlockTable:
    """One joined table: pieces are added, then ``finish`` makes its ``rows``. Never changed after that."""

    rows: JoinedRows

    def __init__(self, name: str, files: Sequence[SnapshotFile], containers: Containers, omitted: int = 0) -> None:
        self.name = name
        # Episodes have their columns before any container brings some.
        self.layout = Layout(EPISODE_ROWS if name == EPISODES else ())
        self.blocks: list[TableBlock] = []
        self.sizes: list[Sequence[int]] = []
        self.omitted = omitted
        """Containers with rows that not every user may read."""
        self._files = files
        self._containers = containers
        self._clear()

    def add(self, file: int, number: int, placed: ContainerPiece) -> None:
        """Add a piece to the last block, or to a new one if there is no space."""
        piece = placed.piece
        fits = self._rows + piece.rows <= PIECE_ROWS and self._size + len(piece.data) <= BLOCK_BYTES
        if self._parts and not fits:
            self._close()
        # The layout is widened before the block is complete: the block begins with the columns as they are at its end.
        part = BlockPart(file, number, placed.first, piece.rows, piece.block, self.layout.add(piece.columns))
        self._parts.append(part)
        self._placed.append(placed)
        self._rows += piece.rows
        self._size += len(piece.data)

    def finish(self, gaps: Sequence[Gap], unlisted: int) -> None:
        """Make the rows of what was added. ``unlisted`` is the number of gaps that not every user may know of."""
        if self._parts:
            self._close()
        columns = 0
        counts = [sum(part.rows for part in block.parts) for block in self.blocks]
        for block in self.blocks:
            for part in block.parts:
                # Columns of containers that have no rows left, or none at all, are not shown: others may not know their
                # names.
                columns |= part.columns
        error = sentence(gaps, self.name)
        if self.layout.is_cut:
            error = "; ".join(filter(None, [error, "columns are left out: there are too many"]))
        shown, features = self.layout.shown(columns), None
        if self.name == EPISODES:
            shown = self.layout.shown(-1)
            features = shown.pop(FEATURES)
        omitted = self.omitted + unlisted
        self.rows = JoinedRows(counts, self._block, self.sizes, shown, features, omitted, error)

    @property
    def shown(self) -> set[int]:
        """The numbers of the files with rows."""
        return {part.file for block in self.blocks for part in block.parts}

    def _close(self) -> None:
        """Complete the last block."""
        columns = self.layout.columns
        key = self._key(columns)
        data = self._kept(key, partial(joined_block, self._placed, columns), self._size)
        self.sizes.append(array("Q", JoinedBlock(data).sizes))
        self.blocks.append(TableBlock(key, tuple(self._parts), columns, data.size))
        self._clear()

    def _key(self, columns: Columns) -> str:
        """Return the key of the block of the parts so far."""
        # Stamps change with each version and each change of attributes, so equal keys mean equal bytes, also for
        # snapshots that were taken at different times. The number of a file differs between them and is not in the key.
        files = [self._files[part.file] for part in self._parts]
        described = (f"{file.path}\0{file.stamp}\0{part[1:]}" for file, part in zip(files, self._parts, strict=True))
        return hashed([str(columns), *described])

    def _clear(self) -> None:
        self._parts: list[BlockPart] = []
        self._placed: list[ContainerPiece] = []
        self._rows = self._size = 0

    def _block(self, number: int) -> Data:
        block = self.blocks[number]
        return self._kept(block.key, partial(self._made_again, block), block.size, block.size)

    def _kept(self, key: str, make: Callable[[], bytes], pieces: int, size: int | None = None) -> Data:
        """Return the data of a block, made of pieces of so many bytes."""
        return Rendered(self._containers.services.cache, (key, self.name), make, size, PIECE + FROM_JSON * pieces)

    def _made_again(self, block: TableBlock) -> bytes:
        wanted = [WantedPiece(self._files[part.file], self.name, part.number, part.block) for part in block.parts]
        placed = []
        for part, piece in zip(block.parts, RowReader(self._containers).again(wanted), strict=True):
            path = self._files[part.file].path
            if piece is None or piece.rows != part.rows:
                raise Damaged("has other rows than before", path)
            placed.append(ContainerPiece(path, part.first, piece))
        return joined_block(placed, block.columns)


class JoinedTables(NamedTuple):
    """The joined tables of a snapshot by name. Never changed, so that no thread sees half of a change.

    ``files`` are those with rows or gaps, by number. ``rights`` are those to what a shared table shows.
    """

    tables: Mapping[str, BlockTable]
    files: Mapping[int, SnapshotFile]
    gaps: Sequence[Gap]
    rights: Rights | None

    def lost(self) -> set[int]:
        """Return the numbers of the files that not every user may read any more."""
        return self.rights.lost() & self.files.keys() if self.rights is not None else set()


def hashed(words: Iterable[str]) -> str:
    digest = xxhash.xxh128()
    for word in words:
        digest.update(raw(word) + b"\0\0")
    return digest.hexdigest()


def sentence(all_gaps: Sequence[Gap], table: str) -> str:
    """Return what a table lacks, and why; of very many gaps the first ones, so that it fits an extended attribute."""
    gaps = [gap for gap in all_gaps if not gap.tables or table in gap.tables]
    texts = [f"{gap.path or '.'}: {gap.error.without_source}"[:160] for gap in gaps[:16]]
    return "; ".join([*texts, *([f"and {len(gaps) - 16:,} more"] if len(gaps) > 16 else [])])

"""The blocks of joined tables: a few thousand rows each, which consist of pieces of several containers. Any thread.

Blocks are in the block cache, and rebuilt from their containers after eviction.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import xxhash

from glassfs.content import Rendered
from glassfs.content.data import Data
from glassfs.content.join import (
    BLOCK_BYTES,
    FROM_JSON,
    JoinedRows,
    Layout,
    block_without,
    joined_block,
    sizes_of,
)
from glassfs.content.pieces import PIECE_ROWS, ContainerPiece
from glassfs.content.summary import EPISODE_ROWS, EPISODES, FEATURES
from glassfs.datasets.files import Gap, SourceFile
from glassfs.datasets.rights import Rights
from glassfs.datasets.rows import RowReader, WantedPiece
from glassfs.errors import Damaged, GlassfsError
from glassfs.names import raw
from glassfs.sizes import PIECE
from glassfs.tree.containers.containers import Containers

Files = Sequence[SourceFile] | Mapping[int, SourceFile]


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
    """A block of a joined table: its key in the cache, its parts, and the columns at its beginning."""

    key: str
    parts: tuple[BlockPart, ...]
    head: bytes


class BlockTable:
    """One joined table: pieces are added, then ``finish`` makes its ``rows``. Never changed after that."""

    rows: JoinedRows

    def __init__(self, name: str, files: Files, containers: Containers, layout: Layout | None = None) -> None:
        self.name = name
        # Episodes have their columns before any container brings some.
        self.layout = layout or Layout(EPISODE_ROWS if name == EPISODES else ())
        self.blocks: list[TableBlock] = []
        self.sizes: list[Sequence[int]] = []
        self.omitted = 0
        self._files = files
        self._containers = containers
        self._clear()

    def add(self, file: int, number: int, placed: ContainerPiece) -> None:
        """Add a piece to the last block, or to a new one if there is no space."""
        piece = placed.piece
        fits = self._rows + piece.rows <= PIECE_ROWS and self._size + len(piece.data) <= BLOCK_BYTES
        if self._parts and not fits:
            self._close()
        part = BlockPart(file, number, placed.first, piece.rows, piece.block, self.layout.add(piece.columns))
        self._parts.append(part)
        self._placed.append(placed)
        self._rows += piece.rows
        self._size += len(piece.data)

    def finish(self, gaps: Sequence[Gap], omitted: int) -> None:
        """Make the rows of what was added. ``omitted`` is the number of containers that not every user may read."""
        if self._parts:
            self._close()
        columns = rows = 0
        for block in self.blocks:
            for part in block.parts:
                columns |= part.columns
                rows += part.rows
        error = sentence(gaps, self.name)
        if self.layout.is_cut:
            error = "; ".join(filter(None, [error, "columns are left out: there are too many"]))
        shown, features = self.layout.shown(columns), None
        if self.name == EPISODES:
            shown = self.layout.shown(-1)
            features = shown.pop(FEATURES)
        self.rows = JoinedRows(rows, len(self.blocks), self._block, self.sizes, shown, features, omitted, error)

    def copy_into(self, left: BlockTable, lost: set[int]) -> list[Gap]:
        """Add all blocks to another table, without the rows of some files. Only blocks that have rows of these change.

        Returns gaps for rows that have changed since: the next snapshot has them.
        """
        gaps = []
        for number, block in enumerate(self.blocks):
            parts = tuple(part for part in block.parts if part.file not in lost)
            try:
                if parts == block.parts:
                    left.blocks.append(block)
                    left.sizes.append(self.sizes[number])
                elif parts:
                    names = {self._files[part.file].path for part in block.parts if part.file in lost}
                    made = block._replace(parts=parts, key=_key(self._files, parts, block.head))
                    make = partial(block_without, self._block(number), names)
                    sizes = array("Q", sizes_of(self._kept(made.key, make, sum(self.sizes[number]))))
                    left.sizes.append(sizes)
                    left.blocks.append(made)
            except GlassfsError as error:
                gaps.append(Gap(self._files[parts[0].file].path, error, tables=(self.name,)))
        return gaps

    def _close(self) -> None:
        """Complete the last block."""
        head = self.layout.head
        key = _key(self._files, self._parts, head)
        data = self._kept(key, partial(joined_block, self._placed, head), self._size)
        self.sizes.append(array("Q", sizes_of(data)))
        self.blocks.append(TableBlock(key, tuple(self._parts), head))
        self._clear()

    def _clear(self) -> None:
        self._parts: list[BlockPart] = []
        self._placed: list[ContainerPiece] = []
        self._rows = self._size = 0

    def _block(self, number: int) -> Data:
        block = self.blocks[number]
        return self._kept(block.key, partial(self._made_again, block), sum(self.sizes[number]))

    def _kept(self, key: str, make: Callable[[], bytes], size: int) -> Data:
        """Return the data of a block, made of pieces of so many bytes."""
        return Rendered(self._containers.services.cache, (key, self.name), make, cost=PIECE + FROM_JSON * size)

    def _made_again(self, block: TableBlock) -> bytes:
        wanted = [WantedPiece(self._files[part.file], self.name, part.number, part.block) for part in block.parts]
        placed = []
        for part, piece in zip(block.parts, RowReader(self._containers).again(wanted), strict=True):
            path = self._files[part.file].path
            if piece is None or piece.rows != part.rows:
                raise Damaged("has other rows than before", path)
            placed.append(ContainerPiece(path, part.first, piece))
        return joined_block(placed, block.head)


class JoinedTables(NamedTuple):
    """The joined tables of a snapshot by name. Never changed, so that no thread sees half of a change.

    ``files`` are those with rows or gaps, by number. ``rights`` are those to what a shared table shows.
    """

    tables: Mapping[str, BlockTable]
    files: Mapping[int, SourceFile]
    gaps: Sequence[Gap]
    rights: Rights | None

    def lost(self) -> set[int]:
        """Return the numbers of the files that not every user may read any more."""
        return self.rights.lost() & self.files.keys() if self.rights is not None else set()

    def without(self, lost: set[int], containers: Containers) -> JoinedTables:
        """Return the tables of all other containers."""
        names = {self.files[number].path for number in lost}
        gaps = [gap for gap in self.gaps if gap.path not in names]
        tables: dict[str, BlockTable] = {}
        for name, table in self.tables.items():
            tables[name] = BlockTable(name, self.files, containers, table.layout)
            gaps += table.copy_into(tables[name], lost)
        for name, table in self.tables.items():
            shown = {part.file for block in table.blocks for part in block.parts}
            tables[name].finish(gaps, table.rows.omitted + len(lost & shown))
        files = {number: file for number, file in self.files.items() if number not in lost}
        return JoinedTables(tables, files, gaps, self.rights)


def _key(files: Files, parts: Sequence[BlockPart], head: bytes) -> str:
    """Return the key of a block of these parts."""
    described = (f"{files[part.file].path}\0{files[part.file].stamp}\0{part[1:]}" for part in parts)
    return hashed(itertools.chain([head.decode()], described))


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

"""Joined tables of a snapshot: rows in blocks, in memory or, if there are many, in a file. Any thread reads them."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content.data import Data, Memory, SizedData
from glassfs.content.join import BLOCK_BYTES, FROM_JSON, JoinedBlock, JoinedRows, Layout, joined_block
from glassfs.content.pieces import PIECE_ROWS, ContainerPiece
from glassfs.content.summary import EPISODE_ROWS, EPISODES, FEATURES
from glassfs.datasets.files import Gap, SnapshotFile
from glassfs.errors import NoSpool, TooLarge
from glassfs.sizes import PIECE, human_size
from glassfs.source import Path

SPOOL_SHARE = 4
"""The rows of a snapshot may take one part of so many of the bytes that all files of blocks may."""

NAMED = 16
"""Gaps that a table names."""


class RowStore:
    """The blocks of some tables: the first MiB in memory, all others in an unnamed file. One thread adds."""

    def __init__(self, cache: BlockCache) -> None:
        self.cache = cache
        self._size = 0
        self._file: IO[bytes] | None = None

    def add(self, block: bytes) -> Data:
        """Raises NoSpool if the file cannot be written, and TooLarge for too many bytes."""
        self._size += len(block)
        if self._size <= PIECE:
            return Memory(block)
        most = self.cache.spool_size // SPOOL_SHARE
        if self._size > most:
            raise TooLarge(f"rows beyond {human_size(most)} in all are left out: a larger spool_size allows more")
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self.cache.spool_directory)  # noqa: SIM115
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(block)
            self._file.flush()
        except OSError as error:
            folder = self.cache.spool_directory or tempfile.gettempdir()
            raise NoSpool(f"rows cannot be kept in the spool folder: {error.strerror}", folder) from error
        return _StoredBlock(self._file, start, len(block))


class _StoredBlock(SizedData):
    """A block in a file, which is open as long as one of its blocks is in use."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        super().__init__(size)
        self._file, self._start = file, start

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if os.preadv(self._file.fileno(), [buffer], self._start + offset) != len(buffer):
            raise NoSpool("the file of rows was cut")


class BlockTable:
    """One joined table: pieces are added, then ``close`` and ``finish`` make its ``rows``. Never changed after that.

    ``omitted`` is the number of containers with rows that not every user may read.
    """

    rows: JoinedRows

    def __init__(self, name: str, store: RowStore) -> None:
        self.name = name
        self.omitted = 0
        # Episodes have their columns before any container brings some.
        self._layout = Layout(EPISODE_ROWS if name == EPISODES else ())
        self._store = store
        self._blocks: list[Data] = []
        self._counts: list[int] = []
        self._sizes: list[Sequence[int]] = []
        self._clear()

    def add(self, placed: ContainerPiece) -> None:
        """Add a piece with rows to the last block, or to a new one if there is no space."""
        piece = placed.piece
        fits = self._count + piece.rows <= PIECE_ROWS and self._size + len(piece.data) <= BLOCK_BYTES
        if not fits:
            self.close()
        # The layout is widened before the block is complete: the block begins with the columns as they are at its end.
        self._layout.add(piece.columns)
        self._placed.append(placed)
        self._count += piece.rows
        self._size += len(piece.data)

    def close(self) -> None:
        """Complete the last block. If it cannot be kept, this raises why, and its rows are left out."""
        placed, count, size = self._placed, self._count, self._size
        self._clear()
        if placed:
            with self._store.cache.measuring(PIECE + FROM_JSON * size):
                data = self._store.add(joined_block(placed, self._layout.columns))
            self._blocks.append(data)
            self._counts.append(count)
            self._sizes.append(array("Q", JoinedBlock(data).sizes))

    def finish(self, gaps: Sequence[Gap] = (), unlisted: int = 0) -> None:
        """Make the rows of all blocks. ``unlisted`` is the number of gaps that not every user may know of."""
        gaps = [gap for gap in gaps if not gap.tables or self.name in gap.tables]
        # Of very many gaps the first ones, so that the text fits an extended attribute.
        lacking = [f"{gap.path or '.'}: {gap.error.without_source}"[:160] for gap in gaps[:NAMED]]
        if len(gaps) > NAMED:
            lacking.append(f"and {len(gaps) - NAMED:,} more")
        if self._layout.is_cut:
            lacking.append("columns are left out: there are too many")
        shown = self._layout.shown()
        features = shown.pop(FEATURES) if self.name == EPISODES else None
        omitted = self.omitted + unlisted
        self.rows = JoinedRows(self._blocks, self._counts, self._sizes, shown, features, omitted, "; ".join(lacking))

    def _clear(self) -> None:
        self._placed: list[ContainerPiece] = []
        self._count = self._size = 0


class JoinedTables(NamedTuple):
    """The joined tables of a snapshot by name. Never changed, so that no thread sees half of a change.

    ``files`` are those with rows or gaps, ``parts`` the further files of containers, both by path.
    """

    tables: Mapping[str, BlockTable]
    files: Mapping[str, SnapshotFile]
    gaps: Sequence[Gap]
    parts: Mapping[str, Sequence[Path]]

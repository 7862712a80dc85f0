"""Blocks whose extents overlap, and the streaming writers' known fault among them (docs/formats/wshard.md §13).

The streaming writers of April 2026 append a piece of every block at each flush, but index each block as one extent
from its first piece on. Sizes and checksums fit, the values are those of the neighbours. Where every channel was
given in every step the pieces follow from the index alone and are put together again; otherwise such blocks are
refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from glassfs.cache import BlockCache
from glassfs.codec import compression
from glassfs.codec.checksum import Crc32c
from glassfs.content import Data, Decoded, Extent, Parted, Regular
from glassfs.formats.wshard.index import Entry, Index
from glassfs.source import Source

LARGEST_ALIGNMENT = 64
_LAST_OF_A_ROUND = [b"reward", b"done", b"time/ticks"]
_REWARD_SIZE = 4


class Pieces(NamedTuple):
    """A block in ``rounds`` pieces of ``width`` bytes, ``stride`` bytes apart, and a shorter one at ``last``."""

    first: int
    width: int
    stride: int
    rounds: int
    last: int


class Overlaps(NamedTuple):
    """What becomes of the blocks that share bytes, by their numbers in the index.

    ``repaired`` ones are read from their pieces, ``refused`` ones cannot be read, ``doubtful`` ones stand or fall
    with their checksum. ``witnesses`` are the extents as indexed: their checksums cover most bytes of the pieces.
    """

    repaired: dict[int, Pieces]
    refused: set[int]
    doubtful: set[int]
    witnesses: list[Data]


def find_overlaps(
    index: Index, cache: BlockCache, steps_of: Callable[[Entry], int | None], length: int | None,
    is_streamed: Callable[[], bool],
) -> Overlaps:
    """Compares all extents.

    ``steps_of`` tells the steps that a block has by its description, ``length`` those of the episode, ``is_streamed``
    whether a streaming writer made the file; it is asked only where extents overlap.
    """
    entries = [entry for entry in index if entry.stored and index.impossible(entry) is None]
    entries.sort(key=lambda entry: (entry.offset, entry.end, entry.number))
    sharing = _sharing(entries)
    if not sharing:
        return Overlaps({}, set(), set(), [])
    repaired = _rounds(entries, steps_of, length)
    if repaired:
        witnesses: list[Data] = [
            Decoded(cache, Extent(index.source, entry.offset, entry.stored), compression.NONE, entry.stored,
                    f"{entry.label} (as indexed)", Crc32c(entry.crc))
            for entry in entries if entry.number in repaired and entry.crc
        ]
        return Overlaps(repaired, set(), set(), witnesses)
    running_over = sum(
        before.end > after.offset and not _is_same(before, after) for before, after in pairwise(entries)
    )
    if running_over > 1 or is_streamed():
        return Overlaps({}, sharing, set(), [])
    # One block that runs over others is a wrong entry. Its checksum tells, and so do those of the others.
    unchecked = {entry.number for entry in entries if entry.number in sharing and not entry.crc}
    return Overlaps({}, unchecked, sharing - unchecked, [])


def _sharing(entries: Sequence[Entry]) -> set[int]:
    """The numbers of blocks that have some, but not all bytes in common with another."""
    found: set[int] = set()
    reaching: Entry | None = None
    for entry in entries:
        if reaching is not None and entry.offset < reaching.end and not _is_same(entry, reaching):
            found.update((entry.number, reaching.number))
        if reaching is None or entry.end > reaching.end:
            reaching = entry
    return found


def _is_same(one: Entry, other: Entry) -> bool:
    return (one.offset, one.end) == (other.offset, other.end)


def _rounds(
    entries: Sequence[Entry], steps_of: Callable[[Entry], int | None], length: int | None,
) -> dict[int, Pieces]:
    """Where the pieces of interleaved blocks are; empty if the index does not prove it."""
    data = [entry for entry in entries if not entry.is_metadata]
    if [entry.name for entry in data[-3:]] != _LAST_OF_A_ROUND:
        return {}
    reward, done, ticks = data[-3:]
    flush = (done.offset - reward.offset) // _REWARD_SIZE
    steps = reward.stored // _REWARD_SIZE
    if not 0 < flush < steps or length not in (None, steps):
        return {}
    first = data[0].offset
    widths = [after.offset - before.offset for before, after in pairwise(data)]
    widths.append(ticks.stored * flush // steps)
    for entry, width in zip(data, widths, strict=True):
        proven = entry.codec == compression.NONE and steps_of(entry) == steps
        if not proven or entry.stored % steps or width != flush * (entry.stored // steps):
            return {}
    end = first + sum(entry.stored for entry in data)
    behind = min((entry.offset for entry in entries if entry.is_metadata), default=end + LARGEST_ALIGNMENT)
    if not end <= behind < end + LARGEST_ALIGNMENT:
        return {}
    stride = sum(widths)
    rounds, left = divmod(steps, flush)
    return {
        entry.number: Pieces(
            entry.offset, width, stride, rounds, first + rounds * stride + (entry.offset - first) * left // flush
        )
        for entry, width in zip(data, widths, strict=True)
    }


class Interleaved(Parted):
    """``size`` bytes in pieces. Given only after the extents that cover them, as indexed, were found undamaged."""

    __slots__ = ("_bounds", "_is_vouched_for", "_lock", "_pieces", "_source", "_witnesses")

    def __init__(self, source: Source, pieces: Pieces, size: int, witnesses: Sequence[Data]) -> None:
        self._source = source
        self._pieces = pieces
        self._bounds = Regular(pieces.width, size)
        self._witnesses = witnesses
        self._is_vouched_for = False
        self._lock = threading.Lock()

    @property
    def bounds(self) -> Regular:
        return self._bounds

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if not self._is_vouched_for:
            self._ask_witnesses()
        super().read_into(buffer, offset)

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        first, _, stride, rounds, last = self._pieces
        start = first + number * stride if number < rounds else last
        self._source.read_into(buffer, start + offset)

    def _ask_witnesses(self) -> None:
        with self._lock:
            for witness in self._witnesses:
                witness.read(witness.size - 1, 1)  # the end of a block is given only after the check of the whole
            self._is_vouched_for = True

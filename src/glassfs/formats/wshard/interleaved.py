"""Overlapping blocks, and a known fault of streaming writers that causes them (docs/formats/wshard.md §13).

The streaming writers of April 2026 append a piece of every block at each flush, but index each block as one extent from
its first piece. Sizes and checksums fit, but the bytes are those of other blocks. If every channel was written in every
step, the pieces follow from the index alone and are reassembled; otherwise such blocks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from glassfs.cache import BlockCache
from glassfs.codec import compression
from glassfs.codec.checksum import CRC32C, Checksum
from glassfs.content import Data, Decoded, Extent, Parted, Regular
from glassfs.formats.wshard.index import BlockEntry, Index
from glassfs.source import Source

ALIGNMENTS = (0, 16, 32, 64)
_LAST_OF_A_ROUND = [b"reward", b"done", b"time/ticks"]


class Overlaps(NamedTuple):
    """How blocks that share bytes are handled, by their numbers in the index.

    ``repaired`` blocks are read from their pieces, ``refused`` ones are unreadable, and ``doubtful`` ones depend on
    their checksum.
    """

    repaired: Mapping[int, Interleaved]
    refused: Set[int]
    doubtful: Set[int]


NONE = Overlaps({}, frozenset(), frozenset())


def find_overlaps(
    index: Index, cache: BlockCache, steps_of: Callable[[BlockEntry], int | None], length: int | None,
    is_streamed: Callable[[], bool],
) -> Overlaps:
    """Compare all extents.

    ``steps_of`` returns the steps of a block by its description, ``length`` is the steps of the episode, and
    ``is_streamed`` returns whether a streaming writer made the file; it is called only if extents overlap.
    """
    entries = [entry for entry in index.entries if entry.stored and index.impossible(entry) is None]
    entries.sort(key=lambda entry: (entry.offset, entry.end, entry.number))
    sharing = _sharing(entries)
    if not sharing:
        return NONE
    repaired = _repaired(index, cache, entries, steps_of, length)
    if repaired:
        return NONE._replace(repaired=repaired)
    # A wrong entry overlaps its neighbor. If several blocks run into the next one, a streaming writer has interleaved
    # them, whatever the metadata say, and no checksum fits any of them.
    running_over = sum(
        before.end > after.offset and not _is_same(before, after) for before, after in pairwise(entries)
    )
    if running_over > 1 or is_streamed():
        return NONE._replace(refused=sharing)
    # One block that overlaps others is a wrong entry; checksums show which blocks are intact.
    unchecked = {entry.number for entry in entries if entry.number in sharing and not entry.crc}
    return Overlaps({}, unchecked, sharing - unchecked)


def _sharing(entries: Sequence[BlockEntry]) -> set[int]:
    """Return the numbers of blocks that share some but not all bytes with another block."""
    found: set[int] = set()
    reaching: BlockEntry | None = None
    for entry in entries:
        if reaching is not None and entry.offset < reaching.end and not _is_same(entry, reaching):
            found.update((entry.number, reaching.number))
        if reaching is None or entry.end > reaching.end:
            reaching = entry
    return found


def _is_same(one: BlockEntry, other: BlockEntry) -> bool:
    return (one.offset, one.end) == (other.offset, other.end)


def _repaired(
    index: Index, cache: BlockCache, entries: Sequence[BlockEntry], steps_of: Callable[[BlockEntry], int | None],
    length: int | None,
) -> dict[int, Interleaved]:
    """Return interleaved blocks, or none if the index does not prove what their pieces are."""
    data = [entry for entry in entries if not entry.is_metadata]
    if [entry.name for entry in data[-3:]] != _LAST_OF_A_ROUND:
        return {}
    reward, done, ticks = data[-3:]
    # A reward has four bytes, and is in every step.
    flush, steps = (done.offset - reward.offset) // 4, reward.stored // 4
    if not 0 < flush < steps or length not in (None, steps):
        return {}
    first = data[0].offset
    widths = [after.offset - before.offset for before, after in pairwise(data)]
    widths.append(ticks.stored * flush // steps)
    for entry, width in zip(data, widths, strict=True):
        proven = entry.codec == compression.NONE and steps_of(entry) == steps
        if not proven or entry.stored % steps or width != flush * (entry.stored // steps):
            return {}
    # All blocks have the same steps, and each piece the same number of them, so that pieces of a round are as far apart
    # as the first ones. Together they must fill the file up to the metadata: otherwise some step lacks a channel.
    end = first + sum(entry.stored for entry in data)
    behind = min((entry.offset for entry in entries if entry.is_metadata), default=end + max(ALIGNMENTS))
    if not end <= behind < end + max(ALIGNMENTS):
        return {}
    stride = sum(widths)
    rounds, left = divmod(steps, flush)
    last = first + rounds * stride
    # The extents as indexed: their checksums cover most bytes of the pieces.
    witnesses = [
        Decoded(cache, Extent(index.source, entry.offset, entry.stored), compression.NONE, entry.stored,
                f"{entry.label} (as indexed)", Checksum(CRC32C, entry.crc))
        for entry in data if entry.crc
    ]
    return {
        entry.number: Interleaved(
            index.source, entry.stored, width, range(entry.offset, entry.offset + rounds * stride, stride),
            last + (entry.offset - first) * left // flush, witnesses,
        )
        for entry, width in zip(data, widths, strict=True)
    }


class Interleaved(Parted):
    """``size`` bytes in pieces of ``width`` bytes at ``starts``, and a shorter one at ``last``.

    Readable if the ``witnesses`` pass their checksums.
    """

    bounds: Sequence[int] = ()

    def __init__(
        self, source: Source, size: int, width: int, starts: Sequence[int], last: int, witnesses: Sequence[Data],
    ) -> None:
        self.bounds = Regular(width, size)
        self._source, self._starts, self._last, self._witnesses = source, starts, last, witnesses

    def read_into(self, buffer: memoryview, offset: int) -> None:
        for witness in self._witnesses:
            witness.read(witness.size - 1, 1)  # reading the end of a block checks the whole, the first time
        super().read_into(buffer, offset)

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        start = self._starts[number] if number < len(self._starts) else self._last
        self._source.read_into(buffer, start + offset)

"""One WShard file as contents: each block is an array, JSON, or bytes.

Opening reads header, index, names, meta/channels and meta/episode. Episodes are immutable; any thread may use them.
Damage of a single block is raised when the block is read.

``faults`` covers the traps of docs/formats/wshard.md §17 without a checksum: header against file, names, overlaps,
gaps, descriptions against sizes. What no reader uses is not compared: hashes of names, flags without a meaning, and
the SHA-256 of later writers (§16), whose blocks have checksums as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from itertools import chain, pairwise
from typing import Any, NamedTuple

from glassfs.codec import compression
from glassfs.codec.checksum import CRC32C, Checksum, Covers
from glassfs.content import (
    TIME,
    Array,
    Blob,
    Concatenated,
    Content,
    Data,
    Decoded,
    Extent,
    Fault,
    Gathered,
    Json,
    Location,
    Made,
    Member,
    Unreadable,
    booleans,
    layout_faults,
)
from glassfs.content.data import SizedData
from glassfs.content.dtypes import BFLOAT16, widened
from glassfs.errors import Damaged, TooLarge
from glassfs.formats.registry import Opening
from glassfs.formats.wshard import metadata
from glassfs.formats.wshard.index import BlockEntry, Index, Role
from glassfs.lazy import np
from glassfs.once import once

CHANNELS, EPISODE, WSHARD = b"meta/channels", b"meta/episode", b"meta/wshard"


class WShardEpisode:
    """The blocks of one container. ``damaged_metadata`` gives the unusable metadata blocks and the reasons."""

    def __init__(self, index: Index, opening: Opening) -> None:
        self.index = index
        self.cache = opening.cache
        self.allowance = opening.allowance
        self._source = index.source
        self.damaged_metadata: dict[bytes, str] = {}
        with self.json(CHANNELS) as channels, self.json(EPISODE) as episode:
            self.metadata = metadata.BlockShapes(channels, episode, self.allowance)

    @contextmanager
    def json(self, name: bytes) -> Iterator[Any]:
        """Provide the JSON value of a metadata block within its memory budget. It is None, and noted, if damaged."""
        entry = self.index.named.get(name)
        with self.allowance.temporary(self.cache) as room:
            value = None
            try:
                if entry is not None:
                    value = metadata.parse(self._block(entry), room)
            except (Damaged, TooLarge) as error:
                self.damaged_metadata[name] = error.reason
            yield value

    @once
    def overlaps(self) -> Overlaps:
        """Which blocks share bytes, and how each is handled."""
        return _overlaps(self)

    @once
    def rate(self) -> float:
        """Steps per second, 0 if unknown."""
        if self.metadata.rate is not None:
            return self.metadata.rate
        with self.json(WSHARD) as found:
            return metadata.rate(found) or 0.0

    def blocks(self) -> Iterator[Member]:
        """Yield all blocks under their names, in the order of the index."""
        for entry in self.index.entries:
            yield Member(entry.path, self.content(entry))

    def content(self, entry: BlockEntry) -> Content:
        """Return a block's content by docs/formats/wshard.md §9. It need not be readable."""
        key = entry.name or b""
        size, reason = entry.size, self.index.impossible(entry)
        fitted = None if entry.is_metadata else self.metadata.fit(key, size)
        if reason is not None and (fitted is None or fitted[1] != self.metadata.length or size > 1 << 60):
            # Nothing confirms the size in the index, or file systems cannot show it, so use the available bytes; at
            # least one, as an empty file would read without error.
            size = max(1, min(entry.stored, self._source.size - entry.offset))
            fitted = None
        data = self.data(entry, size)
        if entry.is_metadata:
            return Json(key, data)
        if fitted is not None:
            return self._array(key, data, *fitted)
        # Nothing describes the block. A residual says by its name what its bits are; anything else stays bytes.
        layout = None if reason is not None else self._residual(key, data)
        if layout is not None:
            return Array(key, UnpackedBits(data, layout), "|b1", layout.shape, "bits", axis=self._axis(layout.shape[0]))
        return Blob(key, data)

    def _array(self, key: bytes, data: Data, description: metadata.StepShape, steps: int) -> Array:
        type_name, shape, modality = description
        if type_name == "bool":
            data = booleans(data, data.size)
        elif type_name == "bf16":
            data = widened(data, BFLOAT16)
        dtype = metadata.DTYPES[type_name]
        axis = self._axis(steps)
        return Array(key, data, dtype, (steps, *shape), type_name, modality, fps=lambda: self.rate, axis=axis)

    def _axis(self, steps: int) -> str:
        """Return what the first axis counts: T, unless it contradicts the episode's length."""
        return TIME if self.metadata.length in (None, steps) else ""

    def _residual(self, name: bytes, data: Data) -> BitLayout | None:
        """Return the layout of a residual block; None for other blocks, and if the layout is ambiguous."""
        found = RESIDUAL.fullmatch(name)
        if found is None:
            return None
        channel = found[1]
        # The steps of the channel's signal are more reliable than the episode's length.
        signal = self.index.named.get(b"signal/" + channel)
        steps = None if signal is None else self._steps(signal)
        steps = self.metadata.length if steps is None else steps
        if steps is None:
            return None
        try:
            return layout_of(data, steps, self.metadata.width(channel))
        except Damaged:
            return None

    def data(self, entry: BlockEntry, size: int) -> Data:
        """Return the stored values of a block, unconverted, or ``size`` unreadable bytes.

        At least one of these: an empty file would be read without an error.
        """
        try:
            data = self._block(entry)
        except Damaged as error:
            return Unreadable(max(1, size), error)
        if entry.number in self.overlaps.refused:
            reason = "shares bytes with other blocks, and the owner is unknown"
            return Unreadable(size, self._source.damage(reason, entry.label))
        # The index of a streamed file gives the first piece of each block and the right sizes: the other pieces follow
        # from the layout of all blocks.
        return self.overlaps.repaired.get(entry.number, data)

    def _block(self, entry: BlockEntry) -> Data:
        """Return the block as its entry describes it. Raises Damaged if that is impossible."""
        reason = self.index.impossible(entry)
        if reason is not None or entry.codec is None:
            raise self._source.damage(reason or "is compressed with an unknown codec", entry.label)
        extent = Extent(self._source, entry.offset, entry.stored)
        if entry.codec == compression.NONE and not entry.crc:
            return extent
        # Some writers compute it over the raw bytes, others over the stored ones, without marking which
        # (docs/formats/wshard.md §6); 0 means none.
        crc = Checksum(CRC32C, entry.crc, Covers.RAW | Covers.STORED) if entry.crc else None
        return Decoded(self.cache, extent, entry.codec, entry.size, entry.label, crc)

    def _steps(self, entry: BlockEntry) -> int | None:
        fitted = self.metadata.fit(entry.name or b"", entry.size)
        return None if fitted is None else fitted[1]

    def facts(self) -> dict[str, Any]:
        """Return facts from the header and meta/episode."""
        header = self.index.header
        found: dict[str, Any] = {
            "version": header.version,
            "role": Role(header.role).name,
            "blocks": len(self.index.entries),
            "total_file_size": header.total_size,
        }
        found |= self.metadata.names
        if self.metadata.length is not None:
            found["length_T"] = self.metadata.length
        if self.overlaps.repaired:
            found["repaired"] = True
        return found

    def faults(self) -> Iterator[Fault]:
        """Yield every error that reading all blocks does not reveal."""
        return chain(self._entry_faults(), self._extent_faults(), self.metadata.faults, self._block_faults())

    def _entry_faults(self) -> Iterator[Fault]:
        header, size = self.index.header, self.index.source.size
        if header.total_size != size:
            yield Fault("header", f"total_file_size is {header.total_size}, but the file has {size} bytes")
        for entry in self.index.entries:
            if entry.codec == compression.NONE and entry.original != entry.stored:
                yield Fault(entry.label, f"declares {entry.original} bytes, but has {entry.stored}, uncompressed")
            if entry.name is None:
                yield Fault(entry.label, "its name lies outside the names")
            elif self.index.named[entry.name] is not entry:
                yield Fault(entry.label, "is the name of several blocks")

    def _extent_faults(self) -> Iterator[Fault]:
        overlaps, index = self.overlaps, self.index
        for number in sorted(overlaps.refused | overlaps.doubtful):
            yield Fault(index.entries[number].label, "shares bytes with other blocks")
        entries = [entry for entry in index.entries if entry.stored]
        entries.sort(key=lambda entry: (entry.offset, entry.end))
        for before, after in pairwise(entries):
            if (before.offset, before.end) == (after.offset, after.end):
                yield Fault(after.label, f"is stored in the same bytes as {before.label}")
        if overlaps.repaired or any(index.impossible(entry) for entry in entries):
            return  # the bytes of these blocks would count as gaps
        # Blocks are aligned, so that gaps of less than an alignment are padding. Longer ones hold bytes that no reader
        # sees, such as blocks of an index that was overwritten.
        header = index.header
        end = min(header.total_size, index.source.size)
        first = entries[0].offset if entries else end  # streaming writers reserve bytes before it for a longer index
        parts = [(0, first, "the names"), *((entry.offset, entry.end, entry.label) for entry in entries)]
        parts.append((header.schema_offset or end, end, "the schema"))
        yield from layout_faults(parts, end, self.allowance.part(), may_share=True, padding=max(ALIGNMENTS))

    def _block_faults(self) -> Iterator[Fault]:
        """Yield metadata that are not valid JSON, and blocks that do not fit their description."""
        for entry in self.index.entries:
            if entry.name is None or self.index.impossible(entry) is not None:
                continue
            if entry.is_metadata:
                with suppress(TooLarge), self.allowance.temporary(self.cache) as room:
                    try:
                        metadata.parse(self.data(entry, entry.size), room, is_strict=True)
                    except Damaged as error:
                        yield Fault(entry.label, error.reason)
                continue
            content, length = self.content(entry), self.metadata.length
            if isinstance(content, Array) and content.known_shape is not None:
                if length not in (None, content.known_shape[0]):
                    yield Fault(entry.label, f"has {content.known_shape[0]} steps, but the episode has {length}")
            elif self.metadata.is_described(entry.name):
                known = self.metadata.blocks.get(entry.name, [None])
                reason = f"{entry.size} bytes are not a whole number of steps" if known else "its dtype is unknown"
                yield Fault(entry.label, reason)


# Residual blocks: one bit per value, column by column (§12). The size of a block decides which of three layouts it has,
# with the channel's width if known, and finally the lengths that a prefixed block repeats.

RESIDUAL = re.compile(rb"residual/(.+)/sign2nddiff", re.DOTALL)
"""Of a residual block, with that of its channel."""
MOST_COLUMNS = 1 << 16


class BitLayout(NamedTuple):
    """``columns`` of ``steps`` bits, each after ``prefix`` bytes that hold its length in bytes."""

    steps: int
    columns: int
    prefix: int

    @property
    def column_size(self) -> int:
        return -(-self.steps // 8)

    @property
    def size(self) -> int:
        return self.columns * (self.prefix + self.column_size)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.steps,) if self.columns == 1 else (self.steps, self.columns)


def layout_of(data: Data, steps: int, width: int | None) -> BitLayout | None:
    """Return the layout of a block, or None if none fits its size.

    Reads the first lengths only if both the plain and the prefixed layout fit; this may raise Damaged.
    """
    # One column without a prefix is what the specification describes; the other two layouts are those of writers. A
    # size that two layouts explain is decided by the lengths that a prefixed block repeats.
    column_size = -(-steps // 8)
    fitting = [BitLayout(steps, 1, 0)] if data.size == column_size else []
    for prefix in () if fitting else (4, 0):
        columns = data.size // (column_size + prefix or 1) if width is None else width
        layout = BitLayout(steps, columns, prefix)
        if layout.size == data.size and 0 < columns <= MOST_COLUMNS:
            fitting.append(layout)
    if len(fitting) > 1:
        prefixed, step = fitting[0], fitting[0].prefix + column_size
        places = range(0, min(prefixed.columns, 16) * step, step)  # of the first columns
        if any(int.from_bytes(data.read(place, prefixed.prefix), "little") != column_size for place in places):
            return fitting[1]
    return fitting[0] if fitting else None


class UnpackedBits(SizedData, Made):
    """The bits as bytes 0 and 1, row by row: ``steps`` rows of ``columns``."""

    unit: int = 1

    def __init__(self, data: Data, layout: BitLayout) -> None:
        super().__init__(layout.steps * layout.columns)
        self.unit = layout.columns
        self._data = data
        self._layout = layout

    def location(self) -> Location | None:
        return self._data.location()

    def make(self, first: int, count: int) -> memoryview:
        _, columns, prefix = self._layout
        size = self._layout.column_size
        start, end = first // 8, -(-(first + count) // 8)
        skipped = first - start * 8
        rows = np.empty((count, columns), np.uint8)
        for column in range(columns):
            place = column * (prefix + size)
            if prefix and int.from_bytes(self._data.read(place, prefix), "little") != size:
                raise Damaged(f"column {column} of a residual is not {size} bytes long")
            packed = np.frombuffer(self._data.read(place + prefix + start, end - start), np.uint8)
            rows[:, column] = np.unpackbits(packed, bitorder="little")[skipped : skipped + count]
        return rows.reshape(-1).data


# Overlapping blocks, and a known fault of streaming writers that causes them (§13). Those of April 2026 append a piece
# of every block at each flush, but index each block as one extent from its first piece. Sizes and checksums fit, but
# the bytes are those of other blocks. If every channel was written in every step, the pieces follow from the index
# alone and are reassembled; otherwise such blocks are refused.

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


NO_OVERLAPS = Overlaps({}, frozenset(), frozenset())


def _overlaps(episode: WShardEpisode) -> Overlaps:
    """Compare all extents of an episode."""
    index = episode.index
    entries = [entry for entry in index.entries if entry.stored and index.impossible(entry) is None]
    entries.sort(key=lambda entry: (entry.offset, entry.end, entry.number))
    sharing = _sharing(entries)
    if not sharing:
        return NO_OVERLAPS
    repaired = _repaired(episode, entries)
    if repaired:
        return NO_OVERLAPS._replace(repaired=repaired)
    # A wrong entry overlaps its neighbor. If several blocks run into the next one, a streaming writer has interleaved
    # them, whatever the metadata say, and no checksum fits any of them.
    running_over = sum(
        before.end > after.offset and not _is_same(before, after) for before, after in pairwise(entries)
    )
    with episode.json(WSHARD) as found:
        is_streamed = not isinstance(found, dict) or found.get("streaming")  # also if that is unknown
    if running_over > 1 or is_streamed:
        return NO_OVERLAPS._replace(refused=sharing)
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


def _repaired(episode: WShardEpisode, entries: Sequence[BlockEntry]) -> dict[int, Interleaved]:
    """Return interleaved blocks, or none if the index does not prove what their pieces are."""
    data = [entry for entry in entries if not entry.is_metadata]
    if [entry.name for entry in data[-3:]] != _LAST_OF_A_ROUND:
        return {}
    reward, done, ticks = data[-3:]
    # A reward has four bytes, and is in every step.
    flush, steps = (done.offset - reward.offset) // 4, reward.stored // 4
    if not 0 < flush < steps or episode.metadata.length not in (None, steps):
        return {}
    first = data[0].offset
    widths = [after.offset - before.offset for before, after in pairwise(data)]
    widths.append(ticks.stored * flush // steps)
    for entry, width in zip(data, widths, strict=True):
        proven = entry.codec == compression.NONE and episode._steps(entry) == steps
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
    source = episode.index.source
    # The extents as indexed: their checksums cover most bytes of the pieces.
    witnesses = [
        Decoded(episode.cache, Extent(source, entry.offset, entry.stored), compression.NONE, entry.stored,
                f"{entry.label} (as indexed)", Checksum(CRC32C, entry.crc))
        for entry in data if entry.crc
    ]
    return {
        entry.number: Interleaved([
            Gathered(Extent(source, entry.offset, rounds * stride), 0, width, stride, rounds),
            Extent(source, last + (entry.offset - first) * left // flush, entry.stored - rounds * width),
        ], witnesses)
        for entry, width in zip(data, widths, strict=True)
    }


class Interleaved(Concatenated):
    """A block from its pieces, readable if the ``witnesses`` pass their checksums."""

    def __init__(self, pieces: Sequence[Data], witnesses: Sequence[Data]) -> None:
        super().__init__(pieces)
        self._witnesses = witnesses

    def read_into(self, buffer: memoryview, offset: int) -> None:
        for witness in self._witnesses:
            witness.read(witness.size - 1, 1)  # reading the end of a block checks the whole, the first time
        super().read_into(buffer, offset)

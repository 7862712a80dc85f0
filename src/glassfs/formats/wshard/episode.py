"""One WShard file as contents: each block is an array, JSON, or bytes.

Opening reads header, index, names, meta/channels and meta/episode. Episodes are immutable; any thread may use them.
Damage of a single block is raised when the block is read.

``faults`` covers the traps of docs/formats/wshard.md §17 without a checksum: header against file, names, overlaps,
gaps, descriptions against sizes. What no reader uses is not compared: hashes of names, flags without a meaning, and
the SHA-256 of later writers (§16), whose blocks have checksums as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, pairwise
from typing import Any

from glassfs.cache import BlockCache
from glassfs.codec import compression
from glassfs.codec.checksum import CRC32C, Checksum, Covers
from glassfs.content import (
    TIME,
    Array,
    Blob,
    Content,
    Data,
    Decoded,
    Extent,
    Fault,
    Json,
    Member,
    Unreadable,
    booleans,
    layout_faults,
)
from glassfs.content.allowance import Allowance
from glassfs.content.dtypes import BFLOAT16, widened
from glassfs.errors import Damaged, TooLarge
from glassfs.formats.wshard import metadata, residual
from glassfs.formats.wshard.index import BlockEntry, Index, Role
from glassfs.formats.wshard.interleaved import ALIGNMENTS, Overlaps, find_overlaps
from glassfs.once import once

CHANNELS, EPISODE, WSHARD = b"meta/channels", b"meta/episode", b"meta/wshard"


class WShardEpisode:
    """The blocks of one container. ``damaged_metadata`` gives the unusable metadata blocks and the reasons."""

    def __init__(self, index: Index, cache: BlockCache, allowance: Allowance) -> None:
        self.index = index
        self.cache = cache
        self.allowance = allowance
        self._source = index.source
        self.damaged_metadata: dict[bytes, str] = {}
        with self.json(CHANNELS) as channels, self.json(EPISODE) as episode:
            self.metadata = metadata.BlockShapes(channels, episode, allowance)

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
        return find_overlaps(self.index, self.cache, self._steps, self.metadata.length, self._is_streamed)

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
            axis = self._axis(layout.shape[0])
            return Array(key, residual.UnpackedBits(data, layout), "|b1", layout.shape, "bits", axis=axis)
        return Blob(key, data)

    def _array(self, key: bytes, data: Data, description: metadata.StepShape, steps: int) -> Array:
        type_name, shape, modality = description
        if type_name == "bool":
            data = booleans(data, data.size)
        elif type_name == "bf16":
            data = widened(data, BFLOAT16)
        dtype = metadata.DTYPES[type_name][0]
        axis = self._axis(steps)
        return Array(key, data, dtype, (steps, *shape), type_name, modality, fps=lambda: self.rate, axis=axis)

    def _axis(self, steps: int) -> str:
        """Return what the first axis counts: T, unless it contradicts the episode's length."""
        return TIME if self.metadata.length in (None, steps) else ""

    def _residual(self, name: bytes, data: Data) -> residual.BitLayout | None:
        """Return the layout of a residual block; None for other blocks, and if the layout is ambiguous."""
        found = residual.NAME.fullmatch(name)
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
            return residual.layout_of(data, steps, self.metadata.width(channel))
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

    def _is_streamed(self) -> bool:
        """Return whether a streaming writer made the file; True if unknown."""
        with self.json(WSHARD) as found:
            return not isinstance(found, dict) or bool(found.get("streaming"))

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

"""One WShard file as contents: which block is an array of what, which is JSON, which only bytes.

Reads header, index, names, meta/channels and meta/episode at opening, nothing else. Immutable after that; any thread.
What is wrong with one block is found when it is read (Damaged), or known already and then raised by its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from glassfs.cache import BlockCache
from glassfs.codec import compression
from glassfs.codec.checksum import Covers, Crc32c
from glassfs.content import Array, Blob, Content, Converted, Data, Decoded, Extent, Json, Member, Unreadable, booleans
from glassfs.errors import Damaged
from glassfs.formats.wshard import metadata, residual
from glassfs.formats.wshard.index import Entry, Index
from glassfs.formats.wshard.interleaved import Interleaved, Overlaps, find_overlaps

CHANNELS, EPISODE, WSHARD = b"meta/channels", b"meta/episode", b"meta/wshard"
UNNAMED = b"unnamed"
LARGEST_SHOWN = 1 << 60  # of a block that is not there: a file's size has 63 bits
UNKNOWN_CODEC = "is compressed with an unknown codec"


class Episode:
    """The blocks of one container. ``damaged_metadata`` tells which of the blocks read at opening are unusable."""

    def __init__(self, index: Index, cache: BlockCache) -> None:
        self.index = index
        self.cache = cache
        self._source = index.source
        self.damaged_metadata: dict[bytes, str] = {}
        found = index.find(CHANNELS, EPISODE)
        with metadata.room_for(cache, sum(entry.size for entry in found.values())):
            self.metadata = metadata.Metadata(*(self._value(found.get(name)) for name in (CHANNELS, EPISODE)))

    @property
    def error(self) -> str | None:
        """What of the episode cannot be shown under a name of its own."""
        unnamed = sum(entry.name is None for entry in self.index)
        return f"blocks without a usable name: {unnamed}" if unnamed else None

    @contextmanager
    def json(self, name: bytes) -> Iterator[Any]:
        """The JSON value of a metadata block while it is looked at; None, and a note, where it is damaged."""
        entry = self.index.find(name).get(name)
        with metadata.room_for(self.cache, entry.size if entry else 0):
            yield self._value(entry)

    @cached_property
    def overlaps(self) -> Overlaps:
        """Which blocks share bytes, and what becomes of them."""
        return find_overlaps(self.index, self.cache, self._steps, self.metadata.length, self._is_streamed)

    def rate(self) -> float:
        """Steps a second, 0 where nobody knows."""
        return self._rate

    @cached_property
    def _rate(self) -> float:
        if self.metadata.rate is not None:
            return self.metadata.rate
        with self.json(WSHARD) as found:
            return metadata.rate(found) or 0.0

    def blocks(self) -> Iterator[Member]:
        """All blocks under their names, in the order of the index."""
        for entry in self.index:
            name = (UNNAMED, b"%d" % entry.number) if entry.name is None else tuple(entry.name.split(b"/"))
            yield Member(name, self.content(entry))

    def contents(self) -> Iterator[Content]:
        """All blocks."""
        return map(self.content, self.index)

    def content(self, entry: Entry) -> Content:
        """What a block is, by docs/formats/wshard.md §9. It need not be readable."""
        key = entry.name or b""
        size, reason = entry.size, self.index.impossible(entry)
        fitted = None if entry.is_metadata else self.metadata.fit(key, size)
        if reason is not None and (fitted is None or fitted[1] != self.metadata.length or size > LARGEST_SHOWN):
            # Nothing confirms the size that the index gives: the bytes that are there count. An empty file would
            # read well, so there is one byte at least.
            size = max(1, min(entry.stored, self._source.size - entry.offset))
            fitted = None
        data = self._data(entry, size)
        if entry.is_metadata:
            return Json(key, data)
        if fitted is not None:
            description, steps = fitted
            return _array(key, data, description, (steps, *description.shape), self.rate)
        layout = None if reason is not None else self._residual(key, data)
        if layout is not None:
            return Array(key, residual.UnpackedBits(data, layout), "|b1", layout.shape, "bits")
        return Blob(key, data)

    def _residual(self, name: bytes, data: Data) -> residual.Layout | None:
        """How the bits of a residual block lie, or None for other blocks and where that is not clear."""
        channel = residual.channel_of(name)
        steps = None if channel is None else self._channel_steps(channel)
        if channel is None or steps is None:
            return None
        try:
            return residual.layout_of(data, steps, self.metadata.width(channel))
        except Damaged:
            return None

    def raw(self, entry: Entry) -> Data:
        """The bytes of a block, without what a view makes of them."""
        return self._data(entry, entry.size)

    def _data(self, entry: Entry, size: int) -> Data:
        reason = self.index.impossible(entry)
        if reason is None and entry.codec is None:
            reason = UNKNOWN_CODEC
        if reason is None and entry.number in self.overlaps.refused:
            reason = "shares bytes with other blocks, and nothing tells whose they are"
        if reason is not None:
            return Unreadable(size, self._source.damage(reason, entry.label))
        pieces = self.overlaps.repaired.get(entry.number)
        if pieces is not None:
            return Interleaved(self._source, pieces, size, self.overlaps.witnesses)
        return self._block(entry)

    def _block(self, entry: Entry) -> Data:
        """The block as its entry says."""
        reason = self.index.impossible(entry)
        if reason is not None or entry.codec is None:
            raise self._source.damage(reason or UNKNOWN_CODEC, entry.label)
        extent = Extent(self._source, entry.offset, entry.stored)
        if entry.codec == compression.NONE and not entry.crc:
            return extent
        # Some writers compute it over the raw bytes, some over the stored ones, and nothing tells which
        # (docs/formats/wshard.md §6); 0 means that there is none.
        crc = Crc32c(entry.crc, Covers.RAW | Covers.STORED) if entry.crc else None
        return Decoded(self.cache, extent, entry.codec, entry.size, entry.label, crc)

    def _value(self, entry: Entry | None) -> Any:
        if entry is None or entry.name is None:
            return None
        try:
            return metadata.parse(self._block(entry))
        except Damaged as error:
            self.damaged_metadata[entry.name] = error.reason
            return None

    def _steps(self, entry: Entry) -> int | None:
        fitted = self.metadata.fit(entry.name or b"", entry.size)
        return None if fitted is None else fitted[1]

    @cached_property
    def _signals(self) -> dict[bytes, Entry]:
        return {entry.name: entry for entry in reversed(list(self.index)) if entry.name is not None}

    def _channel_steps(self, channel: bytes) -> int | None:
        """The steps of the channel itself, which are more to be believed than the episode's length."""
        signal = self._signals.get(b"signal/" + channel)
        steps = None if signal is None else self._steps(signal)
        return self.metadata.length if steps is None else steps

    def _is_streamed(self) -> bool:
        """True also where nothing tells."""
        with self.json(WSHARD) as found:
            return not isinstance(found, dict) or bool(found.get("streaming"))


def _array(
    key: bytes, data: Data, description: metadata.Description, shape: tuple[int, ...], rate: Callable[[], float],
) -> Array:
    type_name, _, modality = description
    if type_name == "bool":
        data = booleans(data, data.size)
    elif type_name == "bf16":
        data = Converted(data, 2, 4, 2 * data.size, _widened)
    return Array(key, data, metadata.DTYPES[type_name][0], shape, type_name, modality, fps=rate)


def _widened(raw: bytes) -> bytes:
    """bfloat16 as float32: the stored halves are the upper ones."""
    import numpy as np

    halves = np.zeros((len(raw) // 2, 2), "<u2")
    halves[:, 1] = np.frombuffer(raw, "<u2")
    return halves.tobytes()

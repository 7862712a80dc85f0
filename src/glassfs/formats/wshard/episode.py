"""One WShard file as contents: each block is an array, JSON, or bytes.

Opening reads header, index, names, meta/channels and meta/episode. Episodes are immutable; any thread may use them.
Damage of a single block is raised when the block is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    Guessed,
    Json,
    Member,
    Unreadable,
    booleans,
)
from glassfs.content.allowance import Allowance
from glassfs.content.dtypes import BFLOAT16, widened
from glassfs.errors import Damaged, TooLarge
from glassfs.formats.wshard import metadata, residual
from glassfs.formats.wshard.index import BlockEntry, Index
from glassfs.formats.wshard.interleaved import Overlaps, find_overlaps
from glassfs.once import once

CHANNELS, EPISODE, WSHARD = b"meta/channels", b"meta/episode", b"meta/wshard"
_PREDICTIONS = (b"omen/", b"uncert/")


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
        # Nothing describes the block. A residual says by its name what its bits are, and a prediction is probably like
        # the channel that it predicts; anything else stays bytes.
        layout = None if reason is not None else self._residual(key, data)
        if layout is not None:
            axis = self._axis(layout.shape[0])
            return Array(key, residual.UnpackedBits(data, layout), "|b1", layout.shape, "bits", axis=axis)
        likely = None if reason is not None else self._likely(entry)
        return Blob(key, data) if likely is None else Guessed(key, data, self._array(key, data, *likely))

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

    def _likely(self, entry: BlockEntry) -> tuple[metadata.StepShape, int] | None:
        """Guess the description and the steps of a prediction that has none (docs/formats/wshard.md §9), or None."""
        name = entry.name or b""
        if not name.startswith(_PREDICTIONS) or self.metadata.is_described(name):
            return None
        channel = name.partition(b"/")[2]
        for _ in range(8):  # the names of model and kind, after the channel, may contain slashes
            channel = channel.rpartition(b"/")[0]
            signal = self.index.named.get(b"signal/" + channel)
            if signal is not None and signal.size == entry.size:
                return self.metadata.fit(b"signal/" + channel, entry.size)
        return self.metadata.fit_latent(name, entry.size)

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

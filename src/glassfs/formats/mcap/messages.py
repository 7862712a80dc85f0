"""The messages of one topic in their order: by log time, those of one time by their places in the file.

Messages of a topic are spread over the chunks. One pass over those that have some makes the topic's index: a block of
the cache with a row for each message, of a size that follows from the counts of the recording. Any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Converted, Data, Rendered, Slice, Unreadable
from glassfs.errors import Damaged, TooLarge
from glassfs.formats.mcap.recording import FIELDS, INDEX_ENTRY, INDEX_HEAD, ROW, Chunk, Recording, messages_in
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE

TIMES = [("log_time", "<i8"), ("publish_time", "<i8"), ("sequence", "<u4")]
"""Columns of a topic, and their dtypes."""
PLACED = [*ROW, ("chunk", "<u4")]
UNREADABLE = (1 << 64) - 1
"""The size of messages of which only the message index of a damaged chunk knows."""
GAP = 64 << 10
"""Bytes between two messages that are read with them: another read would take longer."""


class Messages:
    """The messages on some channels. ``key`` is that of the topic, for keys of the cache."""

    def __init__(self, recording: Recording, cache: BlockCache, channels: Collection[int]) -> None:
        self.cache, self.key = cache, (recording.source.version, "topic", *channels)
        self._recording, self._channels = recording, sorted(channels)
        self._chunks = [chunk for chunk in recording.chunks if chunk.counts.keys() & set(channels)]
        self.count = sum(chunk.counts.get(channel, 0) for chunk in self._chunks for channel in channels)
        self._index = Rendered(cache, (*self.key, "index"), self._indexed, np.dtype(PLACED).itemsize * self.count)

    @property
    def mean_size(self) -> int:
        """The mean size of readable messages in bytes. Takes a pass over the index. Raises Damaged."""
        sizes = self.rows(0, self.count)["size"]
        sizes = sizes[sizes != UNREADABLE]
        return int(sizes.sum()) // max(1, len(sizes))

    def column(self, name: str) -> Data:
        """Return ``log_time``, ``publish_time`` or ``sequence`` of all messages, as int64 or uint32.

        Reading raises Damaged for messages of damaged chunks, and for times that int64 does not have.
        """
        unit = np.dtype(dict(FIELDS)[name]).itemsize
        return Converted(
            self._index, np.dtype(PLACED).itemsize, unit, unit * self.count, partial(self._values, name),
        )

    def _values(self, name: str, raw: bytes) -> bytes:
        rows = np.frombuffer(raw, PLACED)
        for row in rows[rows["size"] == UNREADABLE][:1]:
            self.chunk(row)
        values = rows[name]
        if values.dtype.itemsize == 8 and (values >> 63).any():
            raise Damaged(f"{name} of a message is 2^63 or more")
        return bytes(values.tobytes())

    def payload(self, number: int) -> Data:
        """Return the data of a message, unreadable ones of a damaged chunk. Raises Damaged without an index."""
        row = self.rows(number, number + 1)[0]
        try:
            return Slice(self.chunk(row), int(row["start"]), int(row["size"]))
        except Damaged as damage:
            return Unreadable(1, damage)

    def each(self, first: int, end: int) -> Iterator[memoryview]:
        """Yield the data of a batch of messages in order, each valid until the next one is taken. Raises Damaged."""
        rows, at = self.rows(first, end), 0
        starts, ends = rows["start"].tolist(), (rows["start"] + rows["size"]).tolist()
        while at < len(rows):
            start, after = starts[at], at + 1
            # Messages that lie one behind another are read at once.
            while after < len(rows) and rows["chunk"][after] == rows["chunk"][at] and (
                0 <= starts[after] - ends[after - 1] <= GAP and ends[after] - start <= PIECE
            ):
                after += 1
            chunk, size = self.chunk(rows[at]), ends[after - 1] - start
            self.demand_small(size)
            data = memoryview(chunk.read(start, size))
            for number in range(at, after):
                work.check()
                yield data[starts[number] - start : ends[number] - start]
            at = after

    def demand_small(self, size: int) -> None:
        """Raise TooLarge for a message that takes too much memory to be decoded."""
        if size > self.cache.budget // 4:
            raise TooLarge(f"a message of {size} bytes is too large to be decoded: a larger cache_size allows more")

    def rows(self, first: int, end: int) -> NDArray[Any]:
        """Return what the index says of messages."""
        width = np.dtype(PLACED).itemsize
        return np.frombuffer(self._index.read(first * width, (end - first) * width), PLACED)

    def chunk(self, row: Any) -> Data:
        """Return the chunk of a message. Raises Damaged if it cannot be read."""
        chunk = self._chunks[row["chunk"]]
        data = self._recording.chunk_data(chunk)
        if row["size"] == UNREADABLE:
            data.read(0, min(1, data.size))
            part = f"the chunk at {chunk.start}"
            raise self._recording.source.damage("has other messages than its indexes say", part)
        return data

    def _indexed(self) -> bytearray:
        if self._index.cost > self.cache.budget:  # a small file may declare any number, with holes for their indexes
            raise TooLarge(f"its {self.count} messages are too many for the cache: a larger cache_size allows more")
        made = bytearray(self._index.size)
        placed, reached = np.frombuffer(made, PLACED), 0
        for number, chunk in enumerate(self._chunks):
            work.check()
            rows = self._rows_in(chunk)
            part = placed[reached : reached + len(rows)]
            for name, _ in ROW:
                part[name] = rows[name]
            part["chunk"] = number
            reached += len(rows)
        placed[:] = placed[np.argsort(placed["log_time"], kind="stable")]
        return made

    def _rows_in(self, chunk: Chunk) -> NDArray[Any]:
        """Return rows of the topic in a chunk: of a damaged one only what its message indexes say."""
        wanted = {channel: chunk.counts[channel] for channel in self._channels if channel in chunk.counts}
        total, width = sum(chunk.counts.values()), np.dtype(ROW).itemsize
        try:
            data = self._recording.chunk_data(chunk)
            key = (self._recording.source.version, "messages", chunk.start)
            # All topics share the walk through a chunk.
            walked = Rendered(self.cache, key, lambda: messages_in(data, total).tobytes(), total * width)
            rows = np.frombuffer(walked.read(0, walked.size), ROW)
            rows = rows[np.isin(rows["channel"], self._channels)]
            if len(rows) == sum(wanted.values()):
                return rows
        except Damaged:
            pass
        rows = np.zeros(sum(wanted.values()), ROW)
        rows["size"] = UNREADABLE
        rows["channel"] = np.repeat(list(wanted), list(wanted.values()))
        end = chunk.start + chunk.size
        for channel, count in chunk.counts.items():  # in the order of the indexes
            begin, end = end + INDEX_HEAD, end + INDEX_HEAD + count * INDEX_ENTRY
            if channel in wanted and end <= self._recording.source.size:
                entries = self._recording.source.read(begin, end - begin)
                rows["log_time"][rows["channel"] == channel] = np.frombuffer(entries, "<u8")[::2]
        return rows

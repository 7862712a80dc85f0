"""Recognize sequential readers of an object, and how many pages to fetch ahead for each.

A page is reported once, when a good part of it was read, so the size and order of reads do not matter. Not
thread-safe: the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WINDOW = 64
"""Pages fetched ahead of a reader at most. A seek over as many is still the same reader."""
SHORT = 3
"""Pages read in sequence before pages are fetched ahead: the reader may want something small, such as an image."""
BACK = 4
"""Pages before the next one that still belong to the same reader: several threads read out of order."""
MOST_STREAMS = 16


class Stream:
    """A reader that wants page ``next`` next; ``score`` is how many pages it has read in sequence.

    ``promise`` is added to the score when the reader goes on: after a seek it may be another reader.
    """

    __slots__ = ("next", "promise", "score", "used_at")

    def __init__(self, after: int, used_at: int, promise: int = 0) -> None:
        self.next = after
        self.score = 0
        self.promise = promise
        self.used_at = used_at

    def distance(self, page: int) -> int:
        """Return the distance of a page from the reader's position; a huge number if it is another reader's."""
        distance = page - self.next
        return abs(distance) if -BACK <= distance <= WINDOW else 1 << 62

    @property
    def pages(self) -> range:
        """The pages that are fetched for this reader."""
        return range(max(0, self.next - BACK), self.next + WINDOW)


class ReadAhead:
    """The last readers of one object."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._clock = 0

    def follow(self, pages: Sequence[int]) -> tuple[int, int, Iterable[int]]:
        """Note that ``pages``, ascending and close together, were read.

        Returns the page to fetch ahead from, how many pages, and the pages that were fetched ahead and will hardly be
        read. After a first read the number of pages is 0, however large the read was.
        """
        self._clock += 1
        after = pages[-1] + 1
        stream = min(self._streams, key=lambda one: one.distance(pages[0]), default=None)
        if stream is None or stream.distance(pages[0]) > WINDOW:
            return after, 0, self._add(Stream(after, self._clock))
        gap = pages[0] - stream.next
        if gap > min(BACK, stream.score):
            # A seek, or another reader: the sequence so far counts less, and this read is no evidence yet.
            promise = max((stream.score - 1) // 2, stream.score - gap, 0)
            return after, 0, [*stream.pages, *self._add(Stream(after, self._clock, promise))]
        stream.used_at = self._clock
        stream.score = min(WINDOW, stream.score + stream.promise + len(pages))
        stream.promise = 0
        previous, stream.next = stream.next, max(stream.next, after)
        count = min(WINDOW, max(0, 2 * (stream.score - SHORT)))
        return stream.next, count, range(max(0, previous - BACK), max(0, stream.next - BACK))

    def forget(self) -> Iterable[int]:
        """Forget all readers; return the pages that were fetched for them."""
        streams, self._streams = self._streams, []
        return [page for stream in streams for page in stream.pages]

    def _add(self, stream: Stream) -> Iterable[int]:
        """Add a reader, and drop the one used least recently if there are too many, not sequential ones first."""
        previous = self._streams
        self._streams = [*previous, stream]
        if len(previous) < MOST_STREAMS:
            return ()
        least = min(previous, key=lambda one: (one.score > 0, one.used_at))
        self._streams.remove(least)
        return least.pages

"""Who reads an object on and on, and how far ahead of them it is worth to fetch: numbers of pages, no bytes.

A page is told of once, when so much of it was read that it was not looked at in passing; so what counts is how much is
read, and not in how many calls, in which order or how often. Readers at several places are told apart. Not for several
threads at once: whoever has a ``Streams`` has a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WINDOW = 64
"""Pages that are fetched ahead of a reader at most. A seek over as many is still the same reader."""
SHORT = 3
"""Pages that somebody may read on without being worth anything: what he wants may end there, as a picture does."""
BACK = 4
"""Pages before the next one that still belong to the same reader: who reads with several threads reads out of order."""
STREAMS = 16


class Stream:
    """Somebody who will want page ``next``; ``score`` is how many pages he has read on before it.

    ``promise`` is what he is credited with as soon as he reads on: who reads somewhere else next may be another one.
    """

    __slots__ = ("next", "promise", "score", "used")

    def __init__(self, after: int, used: int, promise: int = 0) -> None:
        self.next = after
        self.score = 0
        self.promise = promise
        self.used = used

    def distance(self, page: int) -> int:
        """How far the page lies from where he is, or more than any number if that is too far."""
        distance = page - self.next
        return abs(distance) if -BACK <= distance <= WINDOW else 1 << 62


class Streams:
    """The readers of one object, those of them that were here last."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._clock = 0

    def follow(self, pages: Sequence[int]) -> tuple[int, int, Iterable[int]]:
        """Somebody has read ``pages``, ascending and close together, in one go.

        Returns the first page that he may want next, how many from there on he is worth, and those which were fetched
        ahead for somebody and will hardly be wanted any more. A first read is worth nothing, however large it is.
        """
        self._clock += 1
        after = pages[-1] + 1
        stream = min(self._streams, key=lambda one: one.distance(pages[0]), default=None)
        if stream is None or stream.distance(pages[0]) > WINDOW:
            return after, 0, self._begin(Stream(after, self._clock))
        gap = pages[0] - stream.next
        if gap > min(BACK, stream.score):
            # A seek, or somebody else: what was read before it counts less, and what is read there is no sign yet.
            promise = max((stream.score - 1) // 2, stream.score - gap, 0)
            passed = [*_around(stream), *self._begin(Stream(after, self._clock, promise))]
            return after, 0, passed
        stream.used = self._clock
        stream.score = min(WINDOW, stream.score + stream.promise + len(pages))
        stream.promise = 0
        former, stream.next = stream.next, max(stream.next, after)
        worth = min(WINDOW, max(0, 2 * (stream.score - SHORT)))
        return stream.next, worth, range(max(0, former - BACK), max(0, stream.next - BACK))

    def forget(self) -> Iterable[int]:
        """Nobody reads any more. Returns the pages that were worth to be fetched."""
        streams, self._streams = self._streams, []
        return [page for stream in streams for page in _around(stream)]

    def _begin(self, stream: Stream) -> Iterable[int]:
        """One more. If there are too many, who was here longest ago is forgotten, those first who have not read on."""
        former = self._streams
        self._streams = [*former, stream]
        if len(former) < STREAMS:
            return ()
        least = min(former, key=lambda one: (one.score > 0, one.used))
        self._streams.remove(least)
        return _around(least)


def _around(stream: Stream) -> range:
    return range(max(0, stream.next - BACK), stream.next + WINDOW)

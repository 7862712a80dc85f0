"""Members of an archive as contents: arrays, and files unchanged (docs/formats/npz.md §7). Any thread."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from glassfs.codec import NONE
from glassfs.codec.compression import decompress_prefix
from glassfs.content import (
    EPISODE_COLUMNS,
    TIME,
    Array,
    Group,
    Member,
    Nested,
    Part,
    Series,
    Slice,
    Table,
    array_as_stored,
    episodes_table,
    with_recording,
)
from glassfs.content.allowance import OBJECT
from glassfs.content.dtypes import parsed
from glassfs.content.episodes import EPISODES_KEY, is_camera, recording_in, steps_of
from glassfs.content.features import features_of
from glassfs.errors import LASTING, Damaged, NotInstalled
from glassfs.formats.npz import header
from glassfs.formats.npz.archive import CODECS, Archive, LazyMember, ZipEntry
from glassfs.formats.registry import Opening
from glassfs.once import once
from glassfs.sizes import PIECE

SUFFIX = b".npy"
FIRST = b"is_first.npy"
EPISODE = b"action.npy", b"reward.npy", FIRST
"""Members of one length that make an archive a recording of DreamerV3, of one episode or several (§8)."""
AT_ONCE = 64
"""Episodes in a block of their table."""
LOOKED_AT = 1 << 10
"""Bytes of a member read to find its header, which has 128 unless the type is a structure."""
MOST_DESCRIBED = 1 << 14
"""Members of an archive whose headers are read, one by one; in larger ones all members are files only."""


class ArchiveContents:
    """The contents of the archive in ``opening``. Raises Damaged."""

    def __init__(self, opening: Opening) -> None:
        self.archive = Archive(opening)
        self._headers: dict[ZipEntry, header.ArrayHeader | None] = {}

    @once
    def steps(self) -> int | None:
        """The steps of the recording, None if the archive is none."""
        signals = [self.archive.named[name] for name in EPISODE if name in self.archive.named]
        if len(signals) < len(EPISODE) or not self._is_described or self.archive.named[FIRST].size > PIECE:
            return None
        headers = map(self._header, signals)
        lengths = {one.shape[0] if one is not None and one.shape else 0 for one in headers}
        return lengths.pop() if len(lengths) == 1 and 0 not in lengths else None

    @property
    def _is_described(self) -> bool:
        return len(self.archive.entries) <= MOST_DESCRIBED

    @once
    def starts(self) -> array[int]:
        """The first step of each episode, and the end; empty if the archive is no recording.

        Reads ``is_first``. If that cannot be read, all steps are one episode.
        """
        found = array("I")
        if self.steps is None:
            return found
        import numpy as np

        flags = self._member(self.archive.named[FIRST]).content
        found.append(0)
        if isinstance(flags, Array) and flags.data.size and parsed(flags.dtype).kind in "biuf":
            # Flags that cannot be read make one episode of all steps.
            with suppress(Damaged):
                values = np.frombuffer(flags.data.whole(), parsed(flags.dtype)).reshape(self.steps, -1)
                found.frombytes((1 + np.flatnonzero(values[1:].any(1))).astype(found.typecode).tobytes())
        found.append(self.steps)
        return found

    def members(self) -> Iterator[Member]:
        """Yield all members, and what describes the episode if the archive is one, or the episodes in it."""
        if len(self.starts) == 2:
            yield from self._episode(0)
            return
        yield from self._members()
        table = self.episodes()
        if table is not None:
            groups = Series(
                EPISODES_KEY, table.rows, lambda number: Group(b"%d" % number, partial(self._episode, number)),
                has_groups=True,
            )
            yield Member((EPISODES_KEY,), groups)
            yield Member((EPISODES_KEY,), table)

    def episodes(self) -> Table | None:
        """Return the table of the episodes, None if the archive has none."""
        count = len(self.starts) - 1
        if count < 1:
            return None

        def numbers(block: int) -> range:
            return range(block * AT_ONCE, min(count, (block + 1) * AT_ONCE))

        columns = {name: dtype for name, dtype in EPISODE_COLUMNS.items() if name != "episode_id"}
        return episodes_table(
            count, lambda block: list(map(self._record, numbers(block))), -(-count // AT_ONCE), columns, self._cost,
            EPISODES_KEY if count > 1 else b"", recording=lambda row: recording_in(self._episode(row)),
            features=lambda block: [
                features_of(self._signals(number), self._length(number)) for number in numbers(block)
            ],
        )

    def _episode(self, number: int) -> Iterator[Member]:
        return with_recording(partial(self._signals, number), partial(self._record, number), self._length(number))

    def _length(self, number: int) -> int:
        return self.starts[number + 1] - self.starts[number]

    def _signals(self, number: int) -> Iterator[Member]:
        """Yield what an episode has: all members if there is one, else the rows of arrays that have its steps."""
        if len(self.starts) == 2:
            yield from self._members()
            return
        first, steps = self.starts[number], self._length(number)
        for name, content in self._members():
            if isinstance(content, Array) and content.axis == TIME:
                row, shape = content.data.size // (self.steps or 1), content.resolved_shape
                rows = Slice(content.data, first * row, steps * row)
                yield Member(name, Array(content.key, rows, content.dtype, (steps, *shape[1:]), axis=TIME))

    def _members(self) -> Iterator[Member]:
        return map(self._member, self.archive.entries)

    def _member(self, entry: ZipEntry) -> Member:
        """Return an array, or the file if it is none, or cannot be read."""
        name = entry.name
        if name.endswith(b"/") and not (entry.size or entry.crc):
            return Member(_path(name[:-1]), Group(name, tuple))
        described = self._header(entry) if self._is_described and name.endswith(SUFFIX) else None
        if described is None:
            return Member(_path(name), self._file(entry))
        key, file = name.removesuffix(SUFFIX), LazyMember(self.archive, entry)
        items = Slice(file, described.length, described.nbytes)
        cache, ident = self.archive.cache, (self.archive.source.version, entry.offset)
        array = array_as_stored(cache, ident, key, items, described.dtype, described.shape, described.order)
        array.file = file
        if described.shape and described.shape[0] == self.steps:
            array.axis = TIME
        return Member(_path(key), array)

    def _file(self, entry: ZipEntry) -> Part:
        data = LazyMember(self.archive, entry)
        if not self._is_described:
            return Part(entry.name, data)
        # Entries may contradict one another about the same bytes.
        ident = f"{entry.offset}:{entry.stored}:{entry.size}:{entry.method}:{entry.crc}"
        return Nested(entry.name, data, self.archive.source, ident, entry.stored, partial(self._first_bytes, entry))

    def _first_bytes(self, entry: ZipEntry, size: int) -> bytes:
        """Return the first bytes of a member, about ``size`` of them at most. Raises Damaged."""
        _, head = self.archive.locate(entry, size)
        codec = CODECS[entry.method]
        return bytes(head if codec == NONE else decompress_prefix(codec, head, size))

    def _header(self, entry: ZipEntry) -> header.ArrayHeader | None:
        """Return the header of an array, or None if the member is no array."""
        if entry not in self._headers:
            try:
                self._headers[entry] = self._read_header(entry)
            except (Damaged, NotInstalled):
                self._headers[entry] = None
        return self._headers[entry]

    def _read_header(self, entry: ZipEntry) -> header.ArrayHeader | None:
        # The header of an array is in the first bytes of nearly every member: one read finds the local header and the
        # header of the array.
        given = self._first_bytes(entry, LOOKED_AT)
        length = header.length_of(given)
        if length is None or length > entry.size:
            return None
        if len(given) < length:
            given = self._first_bytes(entry, 2 * length)
        return header.parsed(given[:length], entry.size) if len(given) >= length else None

    def _record(self, number: int) -> dict[str, Any]:
        """Return what is known of an episode: values for EPISODE_COLUMNS."""
        signals: list[str] = []
        cameras: list[str] = []
        found: dict[str, Any] = dict.fromkeys(name for name in EPISODE_COLUMNS if name != "episode_id")
        for name, content in islice(self._signals(number), MOST_DESCRIBED):
            if isinstance(content, Array) and content.axis == TIME:
                text = b"/".join(name).decode("utf-8", "replace")
                if is_camera(content):
                    cameras.append(text)
                elif steps_of(content) is not None:
                    signals.append(text)
                if name == (b"action",) and found["action_dim"] is None:
                    found["action_dim"] = math.prod(content.resolved_shape[1:])
                if name == (b"reward",) and found["total_reward"] is None:
                    found["total_reward"] = _sum(content)
        position = {"position": number} if len(self.starts) > 2 else {}
        return found | position | {"num_frames": self._length(number), "channels": signals, "cameras": cameras}

    def _cost(self, block: int) -> int:
        """Return the memory for some rows, each of which may have all names; rewards are summed as wider numbers."""
        names = sum(len(entry.name) for entry in self.archive.entries)
        return min(AT_ONCE, len(self.starts) - 1) * (512 + names) * OBJECT + 4 * PIECE


def _path(name: bytes) -> tuple[bytes, ...]:
    """Return the components of a name: keys of NumPy with slashes are paths (§5)."""
    return tuple(name.split(b"/", 255))  # the rest is one component: no path is longer


def _sum(array: Array) -> float | None:
    """Return the sum of one number per step, None if it cannot be read or is no number."""
    import numpy as np

    dtype = parsed(array.dtype)
    if len(array.resolved_shape) != 1 or dtype.kind not in "fiub" or array.data.size > PIECE:
        return None
    try:
        found = float(np.frombuffer(array.data.whole(), dtype).sum(dtype=np.float64))
    except LASTING:
        return None
    return found if math.isfinite(found) else None

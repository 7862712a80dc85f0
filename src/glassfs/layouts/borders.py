"""The borders of episodes in flat arrays, found in the arrays that a layout names. Any thread.

Finding them reads whole arrays of flags, so they are kept in the catalogue: later processes read no flags.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from glassfs import work
from glassfs.content import Array, Group, dtypes
from glassfs.content.allowance import Allowance
from glassfs.errors import TooLarge
from glassfs.layouts.aligned import items_of
from glassfs.layouts.form import ENDS, FIRST, Layout
from glassfs.layouts.recording import flattened, path_of
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE, human_size


class KeptFacts(Protocol):
    """An open container (``formats.registry.Opening``): the memory that may be taken, and what is kept of it on disk.
    """

    @property
    def allowance(self) -> Allowance: ...

    def found(self, name: bytes) -> bytes | None:
        """Return what ``keep`` stored under a name, perhaps in another process."""

    def keep(self, name: bytes, value: bytes) -> None: ...


def borders_of(root: Group, layout: Layout, opened: KeptFacts) -> tuple[array[int], int]:
    """Return the first step of each episode and the end of the last one, and how many rows the arrays have.

    Raises Damaged if a flag cannot be read, and TooLarge.
    """
    arrays = {path_of(name): one for name, one in flattened(root) if isinstance(one, Array)}
    rows = {path: one.known_shape[0] for path, one in arrays.items() if one.known_shape}
    total = next((rows[path] for path in (*layout.count, *layout.places) if path in rows), 0)
    found = array("I" if total < 1 << 32 else "Q", [0])
    # Arrays of other lengths are no steps of one recording.
    counted = (pattern for pattern in layout.match if layout.kind != ENDS)
    if not total or any(rows.get(one.text, 0 if one.is_literal else total) != total for one in counted):
        return found, 0
    name = b"borders 1 %b %d" % (layout.digest, total)
    kept = opened.found(name) or b""
    ends = np.frombuffer(kept if not len(kept) % found.itemsize else b"", f"u{found.itemsize}")
    if not len(ends) or not _are_ends(ends, total):
        ends = _ends(arrays, layout, total, opened.allowance.part()).astype(f"u{found.itemsize}")
        opened.keep(name, ends.tobytes())
    opened.allowance.take(found.itemsize * len(ends), "episodes")
    found.frombytes(ends.tobytes())
    return found, total


def _are_ends(ends: NDArray[Any], total: int) -> bool:
    """Return whether these can be the ends of episodes: they rise up to ``total`` steps at most."""
    return bool(ends[0] > 0 and ends[-1] <= total and (ends[1:] > ends[:-1]).all())


def _ends(arrays: Mapping[str, Array], layout: Layout, total: int, allowance: Allowance) -> NDArray[Any]:
    """Return the end of each episode, none if the arrays contradict each other."""
    flags = [arrays[path] for path in layout.places if path in arrays]
    if layout.kind == ENDS:
        ends = items_of(flags[0]) if flags else None
        if ends is None or ends.dtype.kind not in "iu":
            return np.zeros(0, "i8")
        ends = ends.ravel()
        return ends if len(ends) and _are_ends(ends, total) else ends[:0]
    # A flag at the last step of an episode is one before the first step of the next.
    shift = 0 if layout.kind == FIRST else 1
    steps = [step + shift for one in flags for step in _flagged(one, total, allowance)]
    inner = np.unique(np.concatenate(steps)) if steps else np.zeros(0, "i8")
    return np.append(inner[(inner > 0) & (inner < total)], total)


def _flagged(flag: Array, total: int, allowance: Allowance) -> Iterator[NDArray[Any]]:
    """Yield the steps at which a flag is true, those of some bytes at a time. Raises TooLarge."""
    dtype, shape = dtypes.parsed(flag.dtype), flag.known_shape
    if dtype.kind not in "biuf" or not shape or shape[0] != total:
        return
    # A small compressed file may declare any number of flags, and each of them may be true.
    if flag.data.size > 4 * allowance.size:
        raise TooLarge(f"flags of {human_size(flag.data.size)} are too many to be read")
    row = flag.data.size // total
    at_once = max(1, PIECE // max(1, row))
    for first in range(0, total, at_once):
        work.check()
        count = min(at_once, total - first)
        values = np.frombuffer(flag.data.read(first * row, count * row), dtype).reshape(count, -1)
        found = first + np.flatnonzero(values.any(1))
        allowance.take(found.nbytes, "episodes")
        yield found

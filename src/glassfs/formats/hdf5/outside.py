"""What a container has in other datasets and files: virtual datasets and external links (§12). Any thread.

Other files are siblings that the container names, opened with it: its rights are those of all, and a change of one of
them ends its version. Only those count that every reader of the container may read. A worker never sees two files: what
is in another one comes from a worker of its own, and is put together here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from glassfs import names, work
from glassfs.cache import BlockCache
from glassfs.content import Data
from glassfs.errors import DeviceFailed, GlassfsError, Refused, Unavailable
from glassfs.formats.hdf5.chunks import Grid, Shape
from glassfs.formats.hdf5.description import VirtualPart
from glassfs.formats.hdf5.elements import together
from glassfs.formats.registry import Opening
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.source import Source


class OtherFiles:
    """The files that a container names: opened siblings, and why others are not."""

    def __init__(self, opening: Opening, named: Iterable[bytes] = ()) -> None:
        self._opening = opening
        self._own = "".join(opening.path[-1:])
        plain = dict.fromkeys(map(_plain, named))
        self._found = {name: self._opened(name) for name in plain if name not in ("", self._own)}

    @property
    def sources(self) -> list[Source]:
        """Those that are part of the container, in the order of their names in it."""
        return [found for found in self._found.values() if isinstance(found, Source)]

    def is_own(self, name: bytes) -> bool:
        """Return whether a name is that of the container itself."""
        return name == b"." or _plain(name) == self._own != ""

    def opening(self, name: bytes) -> Opening:
        """Return what is needed to read such a file as a container. Raises Refused with the reason."""
        own, plain = self._opening, _plain(name)
        found = self._found.get(plain, "is named too far from the root, or with too many others")
        if not plain:
            found = "is not in the folder of this file"
        if isinstance(found, str):
            raise Refused(f"{names.component(name)}: {found}")
        return Opening(found, own.cache, own.store, (*own.path[:-1], plain), findings=own.findings)

    def _opened(self, name: str) -> Source | str:
        """Open a sibling, or return why it is no part of the container, which is complete without it."""
        own, before = self._opening, len(self._opening.asked)
        try:
            own.allowance.take(PIECE // 64, "other files")
            source = own.sibling(name)
        except (DeviceFailed, Unavailable):
            raise
        except GlassfsError as error:
            del own.asked[before:]
            return error.reason
        if not source.entry.is_readable_as(own.source.entry):
            del own.asked[before:]
            source.close()
            return "may not be read by every user who may read this file"
        # There may be more of them than descriptors.
        source.park()
        source.keep()
        return source


def _plain(name: bytes) -> str:
    """Return the file name that a container means, "" if it is outside of the folder."""
    plain = names.text(name.removeprefix(b"./"))
    return "" if "/" in plain or "\0" in plain or plain in (".", "..") else plain


class SourcePart(NamedTuple):
    """Elements ``to`` of a virtual dataset: the elements ``of`` an array of ``shape``, which ``data`` has."""

    to: tuple[range, ...]
    of: tuple[range, ...]
    shape: Shape
    data: Data


def source_part(part: VirtualPart, shape: Shape, source: Shape, data: Data) -> SourcePart:
    """Return a part of a virtual dataset of ``shape``: elements of an array of the shape ``source``.

    Raises Refused if it cannot be read axis by axis, or exceeds one of the two.
    """
    to, of = (tuple(map(range, shape)) if part.to is None else part.to,
              tuple(map(range, source)) if part.of is None else part.of)
    for axes, lengths in ((to, shape), (of, source)):
        if len(axes) != len(lengths) or any(axis and axis[-1] >= n for axis, n in zip(axes, lengths, strict=True)):
            raise Refused("one of its parts exceeds a dataset")
    if [len(axis) for axis in to if len(axis) != 1] != [len(axis) for axis in of if len(axis) != 1]:
        raise Refused("one of its parts has another shape than its source")
    return SourcePart(to, of, source, data)


class VirtualGrid(Grid):
    """The elements of a virtual dataset: those of its parts, of two at one place the later; ``fill`` where none is."""

    def __init__(self, cache: BlockCache, shape: Shape, item: int, parts: Sequence[SourcePart], fill: bytes) -> None:
        # So much is put together at once.
        super().__init__(cache, shape, together(shape, (1,) * len(shape), item, PIECE), item)
        self._parts, self._fill = parts, fill or bytes(item)
        self._dtype = f"u{item}" if item in (1, 2, 4, 8) else f"V{item}"

    def _copy(self, buffer: memoryview, start: Shape, shape: Shape, low: Shape, counts: Shape) -> None:
        inside: Any = (..., *(slice(a - b, a - b + n) for a, b, n in zip(low, start, counts, strict=True)))
        target = np.frombuffer(buffer, self._dtype).reshape(shape)[inside]
        target[...] = np.frombuffer(self._fill, self._dtype)[0]
        for one in self._parts:
            parts = [
                slice(len(range(axis.start, min(at, axis.stop), axis.step)),
                      len(range(axis.start, min(at + count, axis.stop), axis.step)))
                for axis, at, count in zip(one.to, low, counts, strict=True)
            ]
            places = [axis[part] for axis, part in zip(one.to, parts, strict=True)]
            if all(places):
                # Axes of one element may be anywhere on either side; the others are in the same order.
                longer = iter([part for part, axis in zip(parts, one.to, strict=True) if len(axis) != 1])
                wanted = [axis if len(axis) == 1 else axis[next(longer)] for axis in one.of]
                box: Any = (..., *(
                    slice(axis[0] - at, axis[-1] - at + 1, axis.step) for axis, at in zip(places, low, strict=True)
                ))
                target[box] = self._gathered(one, wanted).reshape(target[box].shape)

    def _gathered(self, one: SourcePart, wanted: list[range]) -> NDArray[Any]:
        """Return the elements of a source at these places of each axis."""
        item, counts = self.item, tuple(map(len, wanted))
        strides = [item * prod(one.shape[axis + 1 :]) for axis in range(len(wanted))]
        # What is between the wanted elements of the last axes is read with them, if it is not much.
        most, span, outer = max(PIECE, 4 * item * prod(counts)), item, len(wanted)
        while outer and span + (wanted[outer - 1][-1] - wanted[outer - 1][0]) * strides[outer - 1] <= most:
            outer -= 1
            span += (wanted[outer][-1] - wanted[outer][0]) * strides[outer]
        first = sum(axis[0] * stride for axis, stride in zip(wanted[outer:], strides[outer:], strict=True))
        steps = [axis.step * stride for axis, stride in zip(wanted[outer:], strides[outer:], strict=True)]
        found = np.empty((prod(counts[:outer]), *counts[outer:]), self._dtype)
        for number, place in enumerate(product(*wanted[:outer])):
            work.check()
            offset = first + sum(at * stride for at, stride in zip(place, strides, strict=False))
            with self._cache.measuring(span):
                raw = one.data.read(offset, span)
                found[number] = np.ndarray(counts[outer:], self._dtype, raw, 0, steps)
        return found

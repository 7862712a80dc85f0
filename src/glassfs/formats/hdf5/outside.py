"""What a container has in other datasets and files: virtual datasets and external links (§12). Any thread.

Other files are siblings that the container names, opened with it: its rights are those of all, and a change of one of
them ends its version. Only those count that every reader of the container may read. A worker never sees two files: what
is in another one comes from a worker of its own, and is put together here.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from operator import itemgetter

from glassfs import names
from glassfs.content import Concatenated, Data
from glassfs.content.data import Slice
from glassfs.errors import DeviceFailed, GlassfsError, Refused, Unavailable
from glassfs.formats.hdf5.chunks import Shape, filled, is_run, linear
from glassfs.formats.hdf5.description import VirtualPart
from glassfs.formats.registry import Opening
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


def placed(part: VirtualPart, shape: Shape, source: Shape, data: Data, item: int) -> tuple[int, Data]:
    """Return the offset of a part of a virtual dataset of ``shape``, and its bytes: ``data`` has an array ``source``.

    Elements have ``item`` bytes. Raises Refused if the part exceeds one of the two, or is not contiguous in both.
    """
    (to, count), (of, wanted) = _run(part.to, shape), _run(part.of, source)
    if count != wanted:
        raise Refused("one of its parts has another number of elements than its source")
    return to * item, Slice(data, of * item, count * item)


def _run(axes: tuple[range, ...] | None, shape: Shape) -> tuple[int, int]:
    """Return the number of the first element of a box in C order, and how many it has. Raises Refused."""
    axes = tuple(map(range, shape)) if axes is None else axes
    if len(axes) != len(shape) or any(axis and axis[-1] >= n for axis, n in zip(axes, shape, strict=True)):
        raise Refused("one of its parts exceeds a dataset")
    counts = tuple(map(len, axes))
    if not is_run(counts, shape) or any(axis.step > 1 < len(axis) for axis in axes):
        raise Refused("one of its parts is not contiguous")
    return linear([axis.start for axis in axes], shape), prod(counts)


def put_together(parts: Iterable[tuple[int, Data]], size: int, fill: bytes) -> Data:
    """Return ``size`` bytes: parts at their offsets, and elements ``fill`` where none is. Raises Refused."""
    found, end = list[Data](), 0
    for start, data in sorted(parts, key=itemgetter(0)):
        if start < end:
            raise Refused("its parts overlap")
        found += filled(fill, start - end), data
        end = start + data.size
    return Concatenated([*found, filled(fill, size - end)])

"""What refers to other objects and files, and MATLAB (docs/formats/hdf5.md, §6, §7, §12, §13). Only workers import it.

A worker opens no other file: it says which ones the container names, and which elements of these a dataset has.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t

from glassfs.sandbox.hdf5_values import MOST_TEXT, Id, attribute_value, declared

MOST_LINKS = 100_000
"""Links of a group: each becomes a name in a listing. Objects of a container whose paths are found for references."""
Link = tuple[bytes, int, int]
"""The name of a link, its kind, and for a hard one the address of its object."""
MOST_NAMED = 1_000
"""Links near the root that are looked through, other files that these name, and parts of a virtual dataset."""

# h5py makes references only of values that it has read itself.
_region = declared("H5Rget_region", Id, Id, ctypes.c_int, ctypes.c_char_p)
_dereferenced = declared("H5Rdereference2", Id, Id, Id, ctypes.c_int, ctypes.c_char_p)


class Referred:
    """The objects of a file to which references lead, by their addresses. Each has the first path that is found."""

    def __init__(self, file: Any) -> None:
        self._root = h5o.open(file, b"/")
        self._paths = {h5o.get_info(self._root).addr: b"/"}
        self._queue = deque([b""])
        """Paths of objects that may be groups, whose members are not known yet."""

    def texts(self, kind: Any, raw: bytes | memoryview) -> Iterator[bytes]:
        """Yield what references of a type refer to: a path, that of a region with its selection, or b"" for nothing."""
        size = kind.get_size()
        is_region = bool(kind.equal(h5t.STD_REF_DSETREG))
        for at in range(0, len(raw), size):
            value = bytes(raw[at : at + size])
            if not any(value):
                yield b""
            elif is_region:
                yield self._region_text(value)
            else:
                yield self._text(int.from_bytes(value, "little"))

    def _text(self, address: int) -> bytes:
        """Return the path of the object at an address, if it is among the first ``MOST_LINKS``."""
        # The library would search the whole file for each reference. Groups near the root are looked through first,
        # as most references lead to what is there, such as ``#refs#`` of MATLAB and the dimensions of netCDF.
        while address not in self._paths and self._queue and len(self._paths) < MOST_LINKS:
            self._look_through(self._queue.popleft())
        return self._paths.get(address, b"object at %d" % address)

    def _look_through(self, path: bytes) -> None:
        def add(name: bytes, link: Any) -> bool | None:
            if link.type == h5l.TYPE_HARD and link.u not in self._paths:
                below = path + b"/" + name
                self._paths[link.u] = below
                self._queue.append(below)
            return True if len(self._paths) >= MOST_LINKS else None

        with suppress(Exception):  # what cannot be opened or listed has no members that a reference could lead to
            group = h5o.open(self._root, path or b"/")
            if isinstance(group, h5g.GroupID):
                group.links.iterate(add, info=True)

    def _region_text(self, value: bytes) -> bytes:
        raw = ctypes.create_string_buffer(value, len(value))
        found = _dereferenced(self._root.id, 0, 1, raw)
        if found > 0:
            dataset = h5d.DatasetID(found)
            space = _region(self._root.id, 1, raw)
            if space > 0:
                return self._text(h5o.get_info(dataset).addr) + selection_text(h5s.SpaceID(space)).encode()
        return b"object of a damaged reference"


def selection_text(space: Any) -> str:
    """Return the box around a selection as Python writes it: ``[0:4, 1:9]``; with ``…`` if that has further elements.
    """
    selected = space.get_select_npoints()
    bounds = list(zip(*space.get_select_bounds(), strict=True)) if selected else []
    is_box = selected == prod(last + 1 - first for first, last in bounds)
    box = ", ".join(f"{first}:{last + 1}" for first, last in bounds)
    return f"[{box}]" if is_box or not selected else f"[{box}]…"


def links_of(group: Any, most: int) -> list[Link]:
    """Return the links in a group in the order of their names; of more than ``most`` only one more than that."""
    found: list[Link] = []

    def add(name: bytes, link: Any) -> bool | None:
        found.append((name, link.type, link.u))
        return len(found) > most or None

    group.links.iterate(add, info=True)
    return found


def named_files(file: Any, few: int) -> list[str]:
    """Return the names of other files in links and datasets near the root, as text in Latin-1.

    Objects in groups of more than ``few`` are not opened, and as many objects at most.
    """
    found: list[str] = []
    groups, left = [h5o.open(file, b"/")], MOST_NAMED
    for group in groups:
        with suppress(Exception):  # as listing the group will show
            links = links_of(group, left)
            count = len(links)
            left -= count
            for name, kind, _ in links if left >= 0 else ():
                if kind == h5l.TYPE_EXTERNAL:
                    found.append(_text_of(group.links.get_val(name)[0]))
                elif kind == h5l.TYPE_HARD and count <= few:
                    few -= 1
                    one = h5o.open(group, name)
                    if isinstance(one, h5g.GroupID):
                        groups.append(one)
                    elif isinstance(one, h5d.DatasetID) and one.get_create_plist().get_layout() == h5d.VIRTUAL:
                        found += [part["file"] for part in mappings(one)]
    return list(dict.fromkeys(found))[:MOST_NAMED]


def _text_of(name: Any) -> str:
    """Return a name, which h5py gives as bytes or as text, as text in Latin-1."""
    return (name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")).decode("latin-1")


def mappings(dataset: Any) -> list[dict[str, Any]]:
    """Describe which elements of other datasets a virtual one has. Raises ValueError if these cannot be described."""
    properties = dataset.get_create_plist()
    count = properties.get_virtual_count()
    if count > MOST_NAMED:
        raise ValueError(f"has {count} parts, of which at most {MOST_NAMED} are put together")
    return [
        {
            "file": _text_of(properties.get_virtual_filename(number)),
            "target": _text_of(properties.get_virtual_dsetname(number)),
            "to": _axes(properties.get_virtual_vspace(number)), "of": _axes(properties.get_virtual_srcspace(number)),
        }
        for number in range(count)
    ]


def _axes(space: Any) -> list[list[int]] | None:
    """Return the first selected element of each axis, the distance to the next one, and their number; None for all."""
    kind = space.get_select_type()
    if kind == h5s.SEL_ALL:
        return None
    if kind != h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        raise ValueError("has parts that are no regular boxes")
    found = []
    for start, step, count, block in zip(*space.get_regular_hyperslab(), strict=True):
        if h5s.UNLIMITED in (count, block):
            raise ValueError("grows with its sources")
        if count > 1 and 1 < block < step:
            raise ValueError("has parts in blocks with gaps between them")
        found.append([start, step, count] if count > 1 and block == 1 else [start, 1, count * block])
    return found


def described_matlab(dataset: Any, described: dict[str, Any]) -> dict[str, Any]:
    """Return the class that MATLAB gave a dataset; and dimensions if these are its values, as it is an empty array."""
    found: dict[str, Any] = {}
    with suppress(OSError, RuntimeError, ValueError, LookupError):  # as reading the attributes will show
        found["matlab"] = str(attribute_value(h5a.open(dataset, b"MATLAB_class"), [MOST_TEXT]))[:100]
        is_small = len(dataset.shape) == 1 and dataset.shape[0] <= 32 and described["layout"] != "virtual"
        if is_small and described["type"]["class"] == "number" and h5a.exists(dataset, b"MATLAB_empty"):
            values = np.zeros(dataset.shape, np.uint64)
            dataset.read(h5s.ALL, h5s.ALL, values)
            sizes = values.tolist()
            if 0 in sizes and prod(size or 1 for size in sizes) < 1 << 56:  # which NumPy can have
                found["empty"] = sizes
    return found

"""Objects in a file, as h5py says it (docs/formats/hdf5.md): datasets like most, described with few calls of the
library; types that were seen before; which chunks are stored; what refers to other objects and files; MATLAB. Only
workers import this module.

An identifier of h5py is an object of Python, which takes longer to make than what is then asked of most datasets. A
worker opens no other file: it says which ones the container names, and which elements of these a dataset has.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np
from h5py import h5a, h5d, h5g, h5i, h5l, h5o, h5s, h5t

from glassfs.sandbox.hdf5_values import MOST_TEXT, Id, attribute_value, declared, described_type

MOST_TYPES = 32
"""Types of a container that are recognized: describing one takes ten times as long."""
_UNDEFINED = (1 << 64) - 1
_Number = ctypes.c_uint64

_open, _class = declared("H5Oopen_by_addr", Id, Id, _Number), declared("H5Iget_type", ctypes.c_int, Id)
_close = declared("H5Idec_ref", ctypes.c_int, Id)
_facts = declared("H5Oget_info2", ctypes.c_int, Id, ctypes.c_void_p, ctypes.c_uint)
_type, _equal = declared("H5Dget_type", Id, Id), declared("H5Tequal", ctypes.c_int, Id, Id)
_space = declared("H5Dget_space", Id, Id)
_axes = declared("H5Sget_simple_extent_dims", ctypes.c_int, Id, ctypes.c_void_p, ctypes.c_void_p)
_offset, _stored = declared("H5Dget_offset", _Number, Id), declared("H5Dget_storage_size", _Number, Id)
_index_type = declared("H5Dget_chunk_index_type", ctypes.c_int, Id, ctypes.POINTER(ctypes.c_int))
_options = declared("H5Pget_chunk_opts", ctypes.c_int, Id, ctypes.POINTER(ctypes.c_uint))
_stored_size = declared(
    "H5Dget_chunk_storage_size", ctypes.c_int, Id, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64),
)


class _Facts(ctypes.Structure):
    """``H5O_info1_t``, of which the library fills in what it is asked for: H5O_INFO_BASIC and H5O_INFO_NUM_ATTRS."""

    _fields_ = (
        ("file", ctypes.c_ulong), ("address", _Number), ("type", ctypes.c_int), ("names", ctypes.c_uint),
        ("times", _Number * 4), ("attributes", _Number), ("rest", _Number * 16),
    )


class PlainDatasets:
    """The datasets of a container that begins at ``base`` of its file, and their types."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._known: list[tuple[Any, int, str, dict[str, Any]]] = []
        self._facts, self._axes = _Facts(), (_Number * 32)()
        self._places = ctypes.addressof(self._facts), ctypes.addressof(self._axes)

    def type_of(self, kind: Any, bits: str) -> dict[str, Any]:
        """Describe a type, the first ones only once."""
        found = self._find(kind.id, bits)
        if found is not None:
            return found[1]
        described = described_type(kind, 0, bits)
        if len(self._known) < MOST_TYPES:
            self._known.append((kind, kind.get_size(), bits, described))
        return described

    def _find(self, kind: int, bits: str) -> tuple[int, dict[str, Any]] | None:
        """Return size and description of a type; None if it is not known."""
        for known, size, letter, described in self._known:
            if letter == bits and _equal(kind, known.id) > 0:
                return size, described
        return None

    def described(self, group: int, address: int) -> dict[str, Any] | None:
        """Describe the dataset at an address, as a link in a group has it; None for what is not as most are.

        Most have a known type, axes, one name, no attributes, and stored values that are contiguous.
        """
        opened = [_open(group, address)]
        try:
            if opened[0] < 0 or _class(opened[0]) != h5i.DATASET or _facts(opened[0], self._places[0], 1 | 4) < 0:
                return None
            # All but contiguous ones have no offset; without stored values it may lie before the container.
            offset, stored = _offset(opened[0]), _stored(opened[0])
            is_plain = self._facts.names == 1 and not self._facts.attributes
            if not is_plain or not stored or not self._base <= offset < _UNDEFINED:
                return None
            opened += _type(opened[0]), _space(opened[0])
            kind, axes = self._find(opened[1], "u"), _axes(opened[2], self._places[1], None)
            if kind is None or axes < 1:
                return None
            shape = self._axes[:axes]
            return {
                "kind": "dataset", "type": kind[1], "size": kind[0], "shape": shape, "stored": stored, "offset": offset,
            }
        finally:
            for one in opened:
                if one >= 0:
                    _close(one)


class IndexType(IntEnum):
    """Indexes of chunks (``H5D_chunk_index_t``)."""

    OLD_TREE = 0
    EXTENSIBLE_ARRAY = 4


def are_listed(dataset: Any, properties: Any) -> bool:
    """Return whether the library lists the chunks of a dataset as it reads them. Raises ValueError."""
    options = ctypes.c_uint()
    if _options(properties.id, options) < 0:
        raise ValueError("has unknown options of chunks")
    # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS: no mask says which filters those at the edge have. And in an extensible
    # array the axis that grows is the first one, but the library lists places as if it were not.
    is_array = _type_of_index(dataset) == IndexType.EXTENSIBLE_ARRAY
    limits = dataset.get_space().get_simple_extent_dims(True) if is_array else ()
    return not options.value & 2 and h5s.UNLIMITED not in limits[1:]


def stored_chunks(dataset: Any, most: int) -> bytes:
    """Return number, offset, size and filter mask of each stored chunk, as 64-bit integers, by rising numbers.

    A chunk's number counts the chunks of the whole dataset in C order. The size of a chunk that the library lists, but
    does not find by its key, is 0. Raises ValueError if there are more than ``most``, if they are listed in another
    order or place, or if two of them overlap.
    """
    chunks = dataset.get_num_chunks()
    if chunks > most:
        raise ValueError(f"has {chunks} chunks, of which at most {most} can be listed: a larger cache_size allows more")
    if not chunks:
        return b""
    found, others = array("Q"), array("Q")

    def add(chunk: Any) -> None:
        found.extend(chunk.chunk_offset)
        others.extend((0, chunk.byte_offset, chunk.size, chunk.filter_mask))

    dataset.chunk_iter(add)
    steps = dataset.get_create_plist().get_chunk()
    places = np.frombuffer(found, np.uint64).reshape(-1, len(steps))
    rows = np.frombuffer(others, np.uint64).reshape(-1, 4)
    # Places are elements, of which the first of a chunk is a multiple of its shape.
    along, rest = np.divmod(places, np.array(steps, np.uint64))
    grid = [-(-length // step) for length, step in zip(dataset.shape, steps, strict=True)]
    if rest.any() or (along >= np.array(grid, np.uint64)).any():
        raise ValueError("lists a chunk outside of its shape")
    rows[:, 0] = numbers = np.ravel_multi_index(tuple(along.astype(np.int64).T), grid)
    # The library searches a tree for a chunk, and does not find one out of order.
    if (numbers[1:] <= numbers[:-1]).any():
        raise ValueError("does not list its chunks in their order")
    if _type_of_index(dataset) == IndexType.OLD_TREE:
        # It searches a tree of version 1 by the keys of the upper nodes, which neither order nor checksum protects.
        first, step = places.ctypes.data, places.strides[0]
        starts = range(first, first + places.nbytes, step)
        lost = [_size_at(dataset, at) != size for at, size in zip(starts, rows[:, 2].tolist(), strict=True)]
        rows[lost, 2] = 0
    # Sorted by offset, a chunk that begins before the end of the previous one overlaps it. No writer shares bytes
    # between chunks: one of the two places is wrong, and nothing says which.
    ordered = rows[np.argsort(rows[:, 1], kind="stable")]
    if (ordered[1:, 1] - ordered[:-1, 1] < ordered[:-1, 2]).any():
        raise ValueError("lists two chunks that overlap in the file")
    return rows.tobytes()


def stored_size(dataset: Any, start: list[int]) -> int:
    """Return the bytes of the chunk that begins at ``start``, 0 if it is not stored."""
    return _size_at(dataset, (ctypes.c_uint64 * len(start))(*start))


def _type_of_index(dataset: Any) -> int:
    index = ctypes.c_int()
    if _index_type(dataset.id, index) < 0:
        raise ValueError("has an unknown index of chunks")
    return index.value


def _size_at(dataset: Any, start: Any) -> int:
    size = ctypes.c_uint64()
    return size.value if _stored_size(dataset.id, start, size) >= 0 else 0


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
        with suppress(Exception):  # what cannot be opened or listed has no members that a reference could lead to
            group = h5o.open(self._root, path or b"/")
            if isinstance(group, h5g.GroupID):
                for name, kind, address in links_of(group, MOST_LINKS - len(self._paths)):
                    if kind == h5l.TYPE_HARD and address not in self._paths:
                        self._paths[address] = below = path + b"/" + name
                        self._queue.append(below)

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
            "to": _ranges(properties.get_virtual_vspace(number)),
            "of": _ranges(properties.get_virtual_srcspace(number)),
        }
        for number in range(count)
    ]


def _ranges(space: Any) -> list[list[int]] | None:
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

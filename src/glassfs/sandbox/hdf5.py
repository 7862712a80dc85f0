"""What a worker does with h5py (docs/formats/hdf5.md): lists groups, says where chunks are, reads what only the
library can decode. Only workers import this module.

Objects are found by the names of hard links, never through soft or external ones. Descriptions are JSON; names of
links are bytes, as text in Latin-1.
"""

from __future__ import annotations

import base64
import codecs
import io
import json
import time
from contextlib import suppress
from math import prod
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5s, h5z

from glassfs.sandbox.hdf5_chunks import stored_chunks
from glassfs.sandbox.hdf5_types import described_type, dtype_of
from glassfs.sandbox.hdf5_values import attribute_value, text_of
from glassfs.sandbox.server import Answer, Handler, RemoteFile

with suppress(Exception):  # registers more filters, if it is installed
    import hdf5plugin  # noqa: F401

MOST_LINKS = 100_000
"""Links of a group: each becomes a name in a listing."""
FEW_OBJECTS = 200
MOST_SOFT_LINKS = 16
MORE_SECONDS = 0.3
"""How long lists of chunks are collected that the caller will want next."""
MOST_TEXT = 8 << 20
"""Bytes of strings in one answer, or of the attributes of an object."""
MOST_ATTRIBUTES = 10_000
LARGEST_FILL = 4 << 10
CHUNK_CACHE, METADATA_CACHE = 8 << 20, 4 << 20
LARGEST_CHUNK_CACHE, CACHED_CHUNKS = 32 << 20, 17
"""Bytes of a larger chunk that is cached all the same, and slots of that cache (a prime number)."""
_LAYOUTS = {h5d.COMPACT: "compact", h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked", h5d.VIRTUAL: "virtual"}


def open_container(file: RemoteFile) -> Handler:
    """Return what answers requests on the container. Raises OSError if libhdf5 cannot open it."""
    return _Container(file)


class _Container:
    def __init__(self, file: RemoteFile) -> None:
        self._file = h5py.File(file, "r", rdcc_nbytes=CHUNK_CACHE)
        config = self._file.id.get_mdc_config()
        config.max_size = METADATA_CACHE
        self._file.id.set_mdc_config(config)
        self._listed: tuple[list[str], list[bytes]] | None = None
        """The path of the group that was listed last, and the names in it."""
        self._opened: tuple[list[str], Any] = ([], self._file.id)
        self._cached: list[str] | None = None
        """The path of the object that is open, if it has a large cache."""

    def __call__(self, request: dict[str, Any]) -> Answer:
        answer: Answer = getattr(self, "_" + request.pop("do"))(**request)
        return answer

    def _open(self) -> Answer:
        root = h5o.open(self._file.id, b"/")
        return {"may_have_episodes": _may_have_episodes(root), **_described_object(root)}, ()

    def _list(self, path: list[str], first: int, count: int) -> Answer:
        """Describe ``count`` objects in a group, in the order of their names, from number ``first`` on.

        The answer to the first request also describes what is in groups below, while that are few objects: ``inner``
        has the path and the objects of each.
        """
        total, entries = self._entries(path, first, count)
        inner: list[tuple[list[str], list[dict[str, Any]]]] = []
        left = 0 if first or len(entries) < total else FEW_OBJECTS - total
        above = [(path, entries)]
        for parent, found in above:
            for entry in found:
                if entry["kind"] == "group" and entry["links"] <= left and entry["names"] == 1:
                    below = [*parent, entry["name"]]
                    with suppress(OSError, RuntimeError, ValueError, LookupError):  # as asking for it will show
                        inner.append((below, self._entries(below, 0, FEW_OBJECTS)[1]))
                        above.append(inner[-1])
                    left -= 1 + entry["links"]
        return {"count": total, "entries": entries, "inner": inner}, ()

    def _entries(self, path: list[str], first: int, count: int) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of links in a group, and descriptions of some."""
        group = self._found(path)
        if self._listed is None or self._listed[0] != path:
            links = group.get_num_objs()
            if links > MOST_LINKS:
                raise ValueError(f"has {links} links, of which at most {MOST_LINKS} can be listed")
            self._listed = path, list(group)
        names = self._listed[1]
        return len(names), [self._described_link(path, group, name) for name in names[first : first + count]]

    def _chunks(self, path: list[str], more: list[list[str]]) -> Answer:
        """Send what ``stored_chunks`` returns, also of ``more`` datasets while that takes little time.

        Return how many bytes each has, -1 for one that cannot be read.
        """
        found = [stored_chunks(self._found(path))]
        sizes = [len(found[0])]
        until = time.monotonic() + MORE_SECONDS
        for other in more:
            if time.monotonic() > until:
                break
            try:
                found.append(stored_chunks(self._found(other)))
                sizes.append(len(found[-1]))
            except Exception:  # as asking for it alone will show
                sizes.append(-1)
        return sizes, found

    def _elements(self, path: list[str], start: list[int], shape: list[int], dtype: Any) -> Answer:
        """Send the elements of a box as the library reads them, in C order, as ``dtype``."""
        dataset = h5py.Dataset(self._with_large_cache(path))
        box = tuple(slice(first, first + count) for first, count in zip(start, shape, strict=True))
        found = np.asarray(dataset[box] if box else dataset[()])
        return None, (np.ascontiguousarray(found, dtype=dtype_of(dtype)).tobytes(),)

    def _texts(self, path: list[str], first: int, count: int) -> Answer:
        """Return ``count`` strings from number ``first`` on, in C order; of many bytes only the first ones."""
        values, _ = self._values(path, first, count)
        texts: list[str] = []
        left = MOST_TEXT
        for value in values:
            left -= len(value) if value is not None else 0
            if left < 0 and texts:
                break
            texts.append(text_of(value))
        return texts, ()

    def _runs(self, path: list[str], first: int, count: int, dtype: Any) -> Answer:
        """Send rows of variable length, one after another, and return their lengths."""
        values, _ = self._values(path, first, count)
        kind = dtype_of(dtype)
        rows = [np.ascontiguousarray(value, dtype=kind) for value in values]
        return [len(row) for row in rows], (row.tobytes() for row in rows)

    def _attributes(self, path: list[str]) -> Answer:
        found: dict[str, Any] = {}
        left = [MOST_TEXT]
        holder = self._found(path)
        names: list[bytes] = []
        h5a.iterate(holder, names.append)  # opening them by number takes quadratic time
        for raw in names[:MOST_ATTRIBUTES]:
            name = text_of(raw)
            try:
                found[name] = attribute_value(holder, h5a.open(holder, raw), left)
            except MemoryError:
                raise
            except Exception as error:
                found[name] = {"unreadable": _reason(error)}
        return found, ()

    def _values(self, path: list[str], first: int, count: int) -> tuple[Any, Any]:
        """Return elements in C order as objects, of a dataset of any rank, and their type."""
        dataset = h5py.Dataset(self._found(path))
        shape = dataset.shape
        if not shape:
            return [dataset[()]], dataset.id.get_type()
        if len(shape) == 1:
            return dataset[first : first + count], dataset.id.get_type()
        inner = prod(shape[1:])
        rows = dataset[first // inner : -(-(first + count) // inner)].reshape(-1)
        start = first - first // inner * inner
        return rows[start : start + count], dataset.id.get_type()

    def _described_link(self, path: list[str], group: Any, name: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name.decode("latin-1")}
        try:
            kind = group.links.get_info(name).type
            if kind == h5l.TYPE_SOFT:
                target = group.links.get_val(name)
                return {**found, "kind": "soft", "target": target.decode("latin-1"), "final": self._final(path, target)}
            if kind != h5l.TYPE_HARD:
                return {**found, "kind": "external" if kind == h5l.TYPE_EXTERNAL else "unknown"}
            return found | _described_object(h5o.open(group, name))
        except MemoryError:
            raise
        except Exception as error:
            return {**found, "kind": "damaged", "reason": _reason(error)}

    def _final(self, path: list[str], target: bytes) -> dict[str, Any] | None:
        """Describe the object to which a soft link leads, through others if need be; None if there is none here."""
        left = MOST_SOFT_LINKS
        parts = ([] if target.startswith(b"/") else [part.encode("latin-1") for part in path]) + target.split(b"/")
        at: list[tuple[bytes, Any]] = [(b"", h5o.open(self._file.id, b"/"))]
        try:
            while parts:
                part = parts.pop(0)
                if part in (b"", b"."):
                    continue
                kind = at[-1][1].links.get_info(part).type
                if kind == h5l.TYPE_SOFT and left:
                    left -= 1
                    value = at[-1][1].links.get_val(part)
                    parts[:0] = value.split(b"/")
                    del at[1 if value.startswith(b"/") else len(at) :]
                elif kind == h5l.TYPE_HARD:
                    at.append((part, h5o.open(at[-1][1], part)))
                else:
                    return None
            return _described_object(at[-1][1])
        except MemoryError:
            raise
        except Exception:
            return None

    def _with_large_cache(self, path: list[str]) -> Any:
        """Return the dataset at a path, with a cache for its chunk if that is large: it is read in small boxes."""
        dataset = self._found(path)
        properties = dataset.get_create_plist()
        if self._cached == path or properties.get_layout() != h5d.CHUNKED:
            return dataset
        size = prod(properties.get_chunk()) * dataset.get_type().get_size()
        if not CHUNK_CACHE < size <= LARGEST_CHUNK_CACHE:
            return dataset
        access = h5p.create(h5p.DATASET_ACCESS)
        access.set_chunk_cache(CACHED_CHUNKS, size, 1.0)
        del dataset
        self._opened = [], self._file.id  # the library keeps the cache of a dataset that is open
        self._opened = path, h5d.open(self._found(path[:-1]), path[-1].encode("latin-1"), access)
        self._cached = path
        return self._opened[1]

    def _found(self, path: list[str]) -> Any:
        """Return the object at a path of hard links."""
        if self._opened[0] == path and path:
            return self._opened[1]
        found: Any = h5o.open(self._file.id, b"/")
        for part in path:
            name = part.encode("latin-1")
            if found.links.get_info(name).type != h5l.TYPE_HARD:
                raise ValueError("is no object of this file")
            found = h5o.open(found, name)
        self._opened, self._cached = (path, found), None
        return found


def _may_have_episodes(root: Any) -> bool:
    """Return whether groups have the names of episodes, without opening what is in them."""
    def is_group(name: bytes) -> bool:
        if name not in root or root.links.get_info(name).type != h5l.TYPE_HARD:
            return False
        return isinstance(h5o.open(root, name), h5g.GroupID)

    try:
        if is_group(b"data") and h5o.open(root, b"data").get_num_objs() <= MOST_LINKS:
            return any(name.startswith(b"demo_") for name in h5o.open(root, b"data"))
        return b"action" in root and is_group(b"observations")
    except (KeyError, RuntimeError, OSError, ValueError):
        return False


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _described_object(found: Any) -> dict[str, Any]:
    facts = h5o.get_info(found)
    known = {"address": facts.addr, "names": facts.rc, "attributes": h5a.get_num_attrs(found)}
    if isinstance(found, h5g.GroupID):
        return {"kind": "group", "links": found.get_num_objs(), **known}
    if isinstance(found, h5d.DatasetID):
        return {"kind": "dataset", **known, **_described_dataset(found, known["attributes"])}
    return {"kind": "type", **known}


def _described_dataset(dataset: Any, attributes: int) -> dict[str, Any]:
    properties = dataset.get_create_plist()
    kind = dataset.get_type()
    layout = _LAYOUTS.get(properties.get_layout(), "unknown")
    if layout == "contiguous" and properties.get_external_count():
        layout = "external"
    found: dict[str, Any] = {
        "layout": layout, "type": described_type(kind, 0), "size": kind.get_size(), "stored": 0,
        "null": dataset.get_space().get_simple_extent_type() == h5s.NULL,
    }
    found["shape"] = [] if found["null"] else list(dataset.shape)
    if layout in ("virtual", "external", "unknown"):
        return found
    if layout == "contiguous":  # the library would read all of an index of chunks for their size
        found["stored"] = dataset.get_storage_size()
        # Behind a user block data that are not allocated have an offset as well.
        is_allocated = dataset.get_space_status() != h5d.SPACE_STATUS_NOT_ALLOCATED
        found["offset"] = dataset.get_offset() if is_allocated else None
    elif layout == "chunked":
        found["chunks"] = list(properties.get_chunk())
        found["filters"] = [_described_filter(*properties.get_filter(n)) for n in range(properties.get_nfilters())]
    found["fill"] = _fill_of(dataset, properties, found["type"])
    if attributes and h5a.exists(dataset, b"CLASS"):
        with suppress(Exception):
            found["image"] = text_of(h5py.Dataset(dataset).attrs["CLASS"]) == "IMAGE"
    return found


def _described_filter(code: int, flags: int, values: tuple[int, ...], name: bytes) -> dict[str, Any]:
    return {"code": code, "values": list(values)[:32], "name": name.decode("latin-1")[:60],
            "available": bool(h5z.filter_avail(code))}


def _fill_of(dataset: Any, properties: Any, kind: dict[str, Any]) -> str:
    """Return the fill value in Base64, as it is shown; "" for zeros."""
    if "shown" not in kind or properties.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return ""
    dtype = dtype_of(kind["shown"])
    value = np.zeros((), dataset.dtype)
    properties.get_fill_value(value)
    raw = np.ascontiguousarray(value, dtype=dtype.base).tobytes()
    if len(raw) > LARGEST_FILL:
        raise ValueError(f"has a fill value of {len(raw)} bytes")
    return base64.b64encode(raw).decode() if any(raw) else ""


def _warm_up() -> None:
    """Have the server import what a worker, which cannot open files, may need."""
    for encoding in ("ascii", "latin-1", "utf-8"):
        codecs.lookup(encoding)
    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        file["numbers"] = np.zeros((2, 2), "c8")
        file.create_dataset("chunks", (4, 4), ">i4", np.zeros((4, 4)), chunks=(2, 2), compression="gzip")
        file["texts"] = ["text"]
        file["link"] = h5py.SoftLink("/texts")
        rows = file.create_dataset("rows", (1,), h5py.vlen_dtype("i4"))
        rows[0] = [1]
        file.attrs["text"] = "text"
        file.attrs["compound"] = np.zeros(2, [("real", "f4"), ("flag", "?")])
    made.seek(0)
    container = _Container(made)  # type: ignore[arg-type]
    for request in (
        {"do": "open"}, {"do": "list", "path": [], "first": 0, "count": 9}, {"do": "attributes", "path": []},
        {"do": "chunks", "path": ["chunks"], "more": []}, {"do": "texts", "path": ["texts"], "first": 0, "count": 1},
        {"do": "runs", "path": ["rows"], "first": 0, "count": 1, "dtype": "<i4"},
        {"do": "elements", "path": ["numbers"], "start": [0, 0], "shape": [1, 1], "dtype": "<c8"},
    ):
        value, data = container(request)
        json.dumps(value)
        list(data)


_warm_up()

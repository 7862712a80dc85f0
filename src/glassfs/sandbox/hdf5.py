"""What a worker does with h5py (docs/formats/hdf5.md): lists groups, says where chunks are, reads what only the
library can decode. Only workers import this module.

Objects are found by the names of hard links, never through soft or external ones. Descriptions are JSON; names of
links are bytes, as text in Latin-1.
"""

from __future__ import annotations

import codecs
import ctypes
import glob
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5pl, h5s, h5z

from glassfs.names import free_name
from glassfs.sandbox import hdf5_values
from glassfs.sandbox.confinement import MOST_MEMORY
from glassfs.sandbox.hdf5_objects import (
    MOST_LINKS,
    Link,
    PlainDatasets,
    Referred,
    are_listed,
    described_matlab,
    links_of,
    mappings,
    named_files,
    stored_chunks,
    stored_size,
)
from glassfs.sandbox.hdf5_values import MOST_TEXT, attribute_value, member_type, memory_type, text_of
from glassfs.sandbox.server import Answer, Handler, RemoteFile
from glassfs.sizes import PIECE

FEW_OBJECTS = 200
"""Objects below a group that are described with it."""
CHUNK_CACHE = 8 << 20
"""Bytes of the library's cache of chunks of a dataset."""
_IN_THIS_FILE = h5p.create(h5p.LINK_ACCESS)
_IN_THIS_FILE.set_elink_fapl(h5p.create(h5p.FILE_ACCESS))
"""External links lead nowhere: otherwise they lead to paths in this file, as its file object opens all files."""
_MEANINGS = b"encoding-type", b"pandas_type", b"colnames"
"""Attributes that say what a group is: of AnnData, of pandas, of NWB."""
_PYTABLES = "TABLE", "ARRAY", "CARRAY", "EARRAY", "VLARRAY"
"""Values of CLASS in files of PyTables."""
_LAYOUTS = {h5d.COMPACT: "compact", h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked", h5d.VIRTUAL: "virtual"}


def open_container(file: RemoteFile) -> Handler:
    """Return what answers requests on the container. Raises OSError if libhdf5 cannot open it."""
    try:
        return _Container(file)
    except OSError as error:
        if error.errno is not None:
            raise
        raise OSError(f"cannot be opened by libhdf5: {_reason(error)}") from error


class _Page:
    """The descriptions of objects in one answer may take ``left`` more bytes; ``types`` are those of the datasets."""

    def __init__(self) -> None:
        self.left = PIECE  # as objects of Python they take many times as much
        self.types: list[dict[str, Any]] = []

    def added(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Count a description, and return it, with the number of its type among those of the answer."""
        kind = entry.get("type")
        if kind is not None:
            number = next((number for number, one in enumerate(self.types) if one is kind), len(self.types))
            if number == len(self.types):
                self.types.append(kind)
                self.left -= len(repr(kind))
            entry["type"] = number
        self.left -= len(repr(entry))  # about as long as JSON, and made faster
        return entry


class _Container:
    def __init__(self, file: RemoteFile) -> None:
        self._file = h5py.File(file, "r", rdcc_nbytes=CHUNK_CACHE)
        config = self._file.id.get_mdc_config()
        config.max_size = 4 * PIECE
        self._file.id.set_mdc_config(config)
        self._listed: tuple[list[str], list[Link]] | None = None
        """The path of the group that was listed last, and the links in it."""
        self._opened: list[tuple[str, Any]] = [("", h5o.open(self._file.id, b"/"))]
        """The object that was used last, behind the groups on its path."""
        self._plain = PlainDatasets(self._file.userblock_size)
        self._referred = Referred(self._file.id)
        self._has_sizes = False
        """Whether the caller asks for the stored sizes of all datasets."""

    def __call__(self, request: dict[str, Any]) -> Answer:
        try:
            answer: Answer = getattr(self, "_" + request.pop("do"))(**request)
        except OSError as error:
            found = self._opened[-1][1]
            if isinstance(found, h5d.DatasetID):
                for described in _described_filters(found.get_create_plist()):
                    if not described["available"]:
                        name = f"{described['code']} ({described['name']})"
                        raise ImportError(f"lacks filter {name}: install hdf5plugin") from error
            raise
        return answer

    def _open(self) -> Answer:
        return {**self._described(self._found([])), "files": named_files(self._file.id, FEW_OBJECTS)}, ()

    def _describe(self, path: list[str]) -> Answer:
        return self._described(self._found(path)), ()

    def _mappings(self, path: list[str]) -> Answer:
        return mappings(self._found(path)), ()

    def _cells(self, path: list[str], first: int, count: int) -> Answer:
        """Describe what references of a dataset lead to as soft links, in C order, from number ``first`` on."""
        dataset = self._found(path)
        targets = hdf5_values.values(dataset, dataset.get_type(), first, count, self._referred.texts)
        page = _Page()
        found: list[dict[str, Any]] = []
        for target in targets:
            if found and page.left < 0:
                break
            raw = b"" if target is None else target.encode()
            kind = "null" if target is None else "damaged"
            link: dict[str, Any] = {"kind": kind, "reason": "refers to no object that is found"}
            if raw.startswith(b"/"):
                link = {"kind": "soft", "target": raw.decode("latin-1"), "final": self._final(self._opened[0][1], raw)}
            found.append(page.added(link))
        return found, ()

    def _list(self, path: list[str], first: int, count: int, sizes: bool = False) -> Answer:
        """Describe ``count`` objects in a group, in the order of their names, from number ``first`` on; of many bytes
        only the first ones. An answer with all objects of a group also describes what is in groups below.

        With ``sizes`` all datasets have their stored sizes, also those for which an index of chunks is read.
        """
        page, self._has_sizes = _Page(), sizes
        total, entries = self._entries(path, first, count, page)
        inner = self._below(path, entries, page) if len(entries) == total else []
        return {"count": total, "entries": entries, "inner": inner, "types": page.types}, ()

    def _prepare(self, paths: list[list[str]], names: list[str], skipped: list[str]) -> Answer:
        """Describe what is in groups and in groups below, and return those attributes of each that have some names.

        Groups of many objects are left out, those that cannot be listed, and below groups called like one of
        ``skipped``.
        """
        page, found, attributes, self._has_sizes = _Page(), list[Any](), list[Any](), False
        for path in paths:
            with suppress(OSError, RuntimeError, ValueError, LookupError):  # as asking for it will show
                total, entries = self._entries(path, 0, FEW_OBJECTS, page)
                facts, _ = self._attributes(path, names)
                page.left -= len(repr(facts))
                attributes.append([path, facts])
                if len(entries) == total:
                    found += [(path, entries), *self._below(path, entries, page, skipped)]
            if page.left < 0:
                break
        return {"inner": found, "attributes": attributes, "types": page.types}, ()

    def _below(
        self, path: list[str], entries: list[dict[str, Any]], page: _Page, skipped: Sequence[str] = (),
    ) -> list[tuple[list[str], list[dict[str, Any]]]]:
        """Return the paths and the objects of groups below one with these objects, while that are few."""
        left = FEW_OBJECTS - len(entries)
        # Breadth first, as callers list the groups of a level one after another. Groups with several names are left
        # out, as they might contain themselves.
        known = [(path, entries)]
        for parent, found in known:
            for entry in found:
                is_wanted = entry["kind"] == "group" and entry["name"] not in skipped and entry["names"] == 1
                if is_wanted and entry["links"] <= left and page.left >= 0:
                    left -= 1 + entry["links"]
                    below = [*parent, entry["name"]]
                    with suppress(OSError, RuntimeError, ValueError, LookupError):  # as asking for it will show
                        links, objects = self._entries(below, 0, FEW_OBJECTS, page)
                        if len(objects) == links:
                            known.append((below, objects))
        return known[1:]

    def _entries(
        self, path: list[str], first: int, count: int, page: _Page,
    ) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of links in a group, and descriptions of some: at least one, unless there is none."""
        group = self._found(path)
        if self._listed is None or self._listed[0] != path:
            links = links_of(group, MOST_LINKS)
            if len(links) > MOST_LINKS:
                raise ValueError(f"has {group.get_num_objs()} links, of which at most {MOST_LINKS} can be listed")
            self._listed = path, links
        links = self._listed[1]
        found: list[dict[str, Any]] = []
        # An answer has at least one object, whatever it takes, or listing would never end.
        for link in links[first : first + count]:
            if found and page.left < 0:
                break
            found.append(page.added(self._described_link(group, *link)))
        return len(links), found

    def _chunks(self, path: list[str], most: int) -> Answer:
        return None, [stored_chunks(self._found(path), most)]

    def _elements(self, path: list[str], start: list[int], shape: list[int], dtype: Any) -> Answer:
        """Send the elements of a box as the library reads them, in C order, as ``dtype``; as they are if it is None."""
        dataset = self._found(path)
        properties, chunk = dataset.get_create_plist(), 0
        if properties.get_layout() == h5d.CHUNKED:
            chunk = prod(properties.get_chunk()) * dataset.get_type().get_size()
        # The library decodes a chunk again for each read of a part of it, unless the cache of the dataset has room for
        # it.
        if dataset.get_access_plist().get_chunk_cache()[1] < chunk:
            del dataset, self._opened[-1]  # one that is open keeps its cache
            access = h5p.create(h5p.DATASET_ACCESS)
            access.set_chunk_cache(17, chunk, 1.0)  # slots, a prime number
            dataset = h5d.open(self._opened[-1][1], path[-1].encode("latin-1"), access)
            self._opened.append((path[-1], dataset))
        hdf5_values.demand_own(dataset)
        kind, space = dataset.get_type(), dataset.get_space()
        if shape:
            space.select_hyperslab(tuple(start), tuple(shape))
        kind = kind if dtype is None else memory_type(kind, dtype)
        raw = np.zeros(space.get_select_npoints(), f"V{kind.get_size()}")
        try:
            dataset.read(h5s.create_simple(raw.shape), space, raw, kind)
        except OSError as error:  # a filter does not say that it had no memory
            # Beside a chunk and its stored bytes, a worker needs some memory.
            if chunk + stored_size(dataset, start) > MOST_MEMORY - 16 * PIECE:
                raise MemoryError from error
            raise
        return None, [raw.tobytes()]

    def _runs(self, path: list[str], first: int, count: int, dtype: str, has_values: bool) -> Answer:
        """Return the lengths of rows of variable length, and send these one after another if asked for."""
        dataset = self._found(path)
        return hdf5_values.rows(dataset, memory_type(dataset.get_type().get_super(), dtype), first, count, has_values)

    def _values(self, path: list[str], first: int, count: int, members: list[int]) -> Answer:
        """Return elements from number ``first`` on; of many bytes only the first ones.

        Of a compound only one member, if ``members`` has its number, and that of one in it, and so on.
        """
        dataset = self._found(path)
        kind = member_type(dataset.get_type(), members)
        found = hdf5_values.values(dataset, kind, first, count, self._referred.texts)
        for _ in members:
            found = [value for one in found for value in one.values()]
        return found, ()

    def _attributes(self, path: list[str], names: list[str] | None = None) -> Answer:
        """Return the attributes of an object, or those of these names that it has."""
        found: dict[str, Any] = {}
        holder, left = self._found(path), [MOST_TEXT]
        raws = [raw for name in names or () if h5a.exists(holder, raw := name.encode())]
        if names is None:
            h5a.iterate(holder, raws.append)  # opening them by number takes quadratic time
        for raw in raws:
            text = text_of(raw)
            left[0] -= len(raw)
            name = free_name(text, found.__contains__, text.__add__)
            try:
                found[name] = attribute_value(h5a.open(holder, raw), left, self._referred.texts)
            except MemoryError:
                raise
            except Exception as error:
                found[name] = {"unreadable": _reason(error)}
        return found, ()

    def _described_link(self, group: Any, name: bytes, kind: int, address: int) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name.decode("latin-1")}
        try:
            if kind == h5l.TYPE_HARD:
                return found | (self._plain.described(group.id, address) or self._described(h5o.open(group, name)))
            if kind == h5l.TYPE_SOFT:
                target = group.links.get_val(name)
                final = self._final(group, target)
                return {**found, "kind": "soft", "target": target.decode("latin-1"), "final": final}
            if kind == h5l.TYPE_EXTERNAL:
                file, target = (part.decode("latin-1") for part in group.links.get_val(name))
                return {**found, "kind": "external", "file": file, "target": target}
            return {**found, "kind": "unknown"}
        except MemoryError:
            raise
        except Exception as error:  # types and options of later libraries are no damage
            kind_of = "unknown" if isinstance(error, (TypeError, NotImplementedError)) else "damaged"
            return {**found, "kind": kind_of, "reason": _reason(error)}

    def _final(self, group: Any, target: bytes) -> dict[str, Any] | None:
        """Describe the object to which a soft link in a group leads, through others if need be; None if there is none.

        A worker can open no files, so that a link to another file leads nowhere.
        """
        try:
            return self._described(h5o.open(group, target, _IN_THIS_FILE))
        except MemoryError:
            raise
        except Exception:
            return None

    def _described(self, found: Any) -> dict[str, Any]:
        facts = h5o.get_info(found)
        known = {"address": facts.addr, "names": facts.rc, "attributes": facts.num_attrs}
        if isinstance(found, h5g.GroupID):
            meaning = _marked(found, _MEANINGS) if facts.num_attrs else ""
            return {"kind": "group", "links": found.get_num_objs(), "meaning": meaning, **known}
        if isinstance(found, h5d.DatasetID):
            return {"kind": "dataset", **known, **self._described_dataset(found, facts.num_attrs)}
        return {"kind": "type", **known}

    def _described_dataset(self, dataset: Any, attributes: int) -> dict[str, Any]:
        properties = dataset.get_create_plist()
        kind = dataset.get_type()
        layout = _LAYOUTS.get(properties.get_layout(), "unknown")
        if layout == "contiguous" and properties.get_external_count():
            layout = "external"
        marked = _marked(dataset, (b"CLASS",)) if attributes else ""
        bits = "b" if marked in _PYTABLES else "u"  # as PyTables stores booleans
        found: dict[str, Any] = {
            "layout": layout, "type": self._plain.type_of(kind, bits), "size": kind.get_size(), "stored": 0,
            "null": dataset.get_space().get_simple_extent_type() == h5s.NULL,
        }
        found["shape"] = [] if found["null"] else list(dataset.shape)
        if layout in ("external", "unknown"):
            return found
        if attributes and h5a.exists(dataset, b"MATLAB_class"):
            found |= described_matlab(dataset, found)
        if layout == "contiguous" or self._has_sizes:  # the library reads all of an index of chunks for their size
            found["stored"] = dataset.get_storage_size()
        if layout == "contiguous":
            # Behind a user block data that are not allocated have an offset as well.
            is_allocated = dataset.get_space_status() != h5d.SPACE_STATUS_NOT_ALLOCATED
            found["offset"] = dataset.get_offset() if is_allocated else None
        elif layout == "chunked":
            found["chunks"] = list(properties.get_chunk())
            if not are_listed(dataset, properties):
                found["layout"] = "unlisted"
            found["filters"] = list(_described_filters(properties))
        if found["type"]["class"] in ("number", "compound", "bytes"):
            found["fill"] = hdf5_values.fill_value(properties, kind)
        if marked == "IMAGE":
            found["image"] = True
        return found

    def _found(self, path: list[str]) -> Any:
        """Return the object at a path of hard links."""
        known = 0
        while known < min(len(path), len(self._opened) - 1) and self._opened[known + 1][0] == path[known]:
            known += 1
        del self._opened[known + 1 :]
        for part in path[known:]:
            found, name = self._opened[-1][1], part.encode("latin-1")
            if found.links.get_info(name).type != h5l.TYPE_HARD:
                raise ValueError(f"has no object /{'/'.join(path)}: a link of that name leads out of its group")
            self._opened.append((part, h5o.open(found, name)))
        return self._opened[-1][1]


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _marked(holder: Any, names: Sequence[bytes]) -> str:
    """Return the text of the first of these attributes that an object has; of one that is no short text, its name."""
    for name in names:
        if h5a.exists(holder, name):
            with suppress(Exception):
                found = attribute_value(h5a.open(holder, name), [MOST_TEXT])
                return found if isinstance(found, str) and len(found) < 100 else name.decode()
    return ""


def _described_filters(properties: Any) -> Iterator[dict[str, Any]]:
    for code, _, values, name in map(properties.get_filter, range(properties.get_nfilters())):
        yield {
            "code": code, "values": list(values)[:32], "name": name.decode("latin-1")[:60],
            "available": bool(h5z.filter_avail(code)),
        }


def _load_filters() -> None:
    """Load the package hdf5plugin, and the plugins in the folders where the library looks (``HDF5_PLUGIN_PATH``).

    A worker, which is forked later, can open no files. Facts: H5PLextern.h and H5Zpublic.h of HDF5.
    """
    with suppress(Exception):
        import hdf5plugin  # noqa: F401
    for number in range(h5pl.size()):
        folder = glob.escape(os.fsdecode(h5pl.get(number)))
        for path in sorted(glob.glob(f"{folder}/lib*.so*")):
            with suppress(OSError, AttributeError, ValueError):  # no plugin, or one for another machine
                plugin = ctypes.CDLL(path, os.RTLD_LAZY)
                if plugin.H5PLget_plugin_type() == 0:  # a filter
                    # ``H5Z_class2_t`` begins with its version and the number of the filter.
                    plugin.H5PLget_plugin_info.restype = ctypes.POINTER(ctypes.c_int)
                    h5z.filter_avail(plugin.H5PLget_plugin_info()[1])  # the library loads it and keeps it


def _warm_up() -> None:
    """Do once what a worker, which cannot open files, does at first: it takes 7 ms less then."""
    for encoding in ("ascii", "latin-1", "utf-8"):
        codecs.lookup(encoding)
    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        file.create_dataset("chunks", (4, 4), ">i4", np.zeros((4, 4)), chunks=(2, 2), compression="gzip")
        file["texts"] = ["text"]
        file.attrs["text"] = "text"
    container = _Container(made)  # type: ignore[arg-type]
    first = {"do": "list", "path": [], "first": 0, "count": 9}
    for request in ({"do": "open"}, {"do": "attributes", "path": []}, first):
        json.dumps(container(request)[0])
    list(container({"do": "chunks", "path": ["chunks"], "most": 9})[1])


_load_filters()
_warm_up()

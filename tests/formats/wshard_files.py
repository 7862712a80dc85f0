"""Making and breaking WShard files for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from writers.wshard import ENTRY, HEADER, WShardWriter

from glassfs.content import Container
from glassfs.content.model import Stored
from glassfs.errors import GlassfsError
from tests.helpers import contents_of, only, open_bytes

HEADER_FIELDS = ("magic", "version", "role", "flags", "alignment", "compression", "entry_size", "count",
                 "names_offset", "data_offset", "schema_offset", "total_size")
ENTRY_FIELDS = ("name_hash", "name_offset", "name_len", "flags", "offset", "stored", "original", "crc", "reserved")


def made(fill: Callable[[WShardWriter], None], name: str = "made.wshard", **options: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        with WShardWriter(path, **options) as writer:
            fill(writer)
        return path.read_bytes()


def channels_of(arrays: dict[str, Any], **blocks: Any) -> Callable[[WShardWriter], None]:
    """Return a function that adds channels, then blocks, to a writer."""
    def fill(writer: WShardWriter) -> None:
        for name, array in arrays.items():
            writer.add_channel(name, array)
        blocks_of(blocks)(writer)

    return fill


def blocks_of(blocks: dict[Any, Any]) -> Callable[[WShardWriter], None]:
    """Return a function that adds blocks, those of ``meta/`` as JSON."""
    def fill(writer: WShardWriter) -> None:
        for name, block in blocks.items():
            (writer.add_json if isinstance(block, dict) else writer.add)(name, block)

    return fill


def opened(fill: Callable[[WShardWriter], None], **options: Any) -> Container:
    return open_bytes(made(fill, **options))


def header_of(data: bytes) -> dict[str, Any]:
    return dict(zip(HEADER_FIELDS, HEADER.unpack_from(data), strict=True))


def with_header(data: bytes, **changed: Any) -> bytes:
    fields = header_of(data) | changed
    return HEADER.pack(*fields.values()) + data[HEADER.size :]


def entry_of(data: bytes, name: str) -> tuple[int, dict[str, int]]:
    header = header_of(data)
    for number in range(header["count"]):
        place = HEADER.size + number * ENTRY.size
        fields = dict(zip(ENTRY_FIELDS, ENTRY.unpack_from(data, place), strict=True))
        start = header["names_offset"] + fields["name_offset"]
        if data[start : start + fields["name_len"]] == name.encode():
            return place, fields
    raise KeyError(name)


def with_entry(data: bytes, name: str, **changed: int) -> bytes:
    place, fields = entry_of(data, name)
    return data[:place] + ENTRY.pack(*(fields | changed).values()) + data[place + ENTRY.size :]


def with_flipped(data: bytes, name: str, position: int = 0) -> bytes:
    place = entry_of(data, name)[1]["offset"] + position
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def raw_of(container: Container, name: str) -> bytes:
    content = only(container, name)
    assert isinstance(content, Stored)
    return content.data.whole()


def faults_of(container: Container) -> dict[str, str]:
    return {fault.place: fault.reason for fault in container.check()}


def state(container: Container) -> dict[bytes, bytes | str]:
    """What each name reads as: its bytes, or `damaged`."""
    found: dict[bytes, bytes | str] = {}
    for name, contents in contents_of(container.root).items():
        content = contents[0]
        assert isinstance(content, Stored)
        try:
            found[name] = content.data.whole()
        except GlassfsError:
            found[name] = "damaged"
    return found

"""A format of the tests' own, so that trees can be driven without any real one: blobs, some compressed, and parts."""

from __future__ import annotations

import builtins
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence

from glassfs.content import Blob, Container, Decoded, Extent, Group, Member
from glassfs.errors import Damaged, Refused
from glassfs.formats import registry
from glassfs.formats.registry import Format, Opening

MAGIC = b"MADE\n"


def made(
    files: Mapping[str, bytes] = {}, parts: Sequence[str] = (), version: int = 1, fault: str = "", **more: bytes,
) -> bytes:
    """A container of these files; those whose name ends with ``.z`` are compressed. ``parts`` are files beside it."""
    payload, index = b"", []
    for name, raw in {**files, **more}.items():
        stored = raw
        if name.endswith(".z"):
            packer = zlib.compressobj(wbits=-15)
            stored = packer.compress(raw) + packer.flush()
        index.append([name, len(payload), len(stored), len(raw)])
        payload += stored
    head = json.dumps({"version": version, "files": index, "parts": list(parts), "fault": fault}).encode()
    return MAGIC + b"%08d" % len(head) + head + payload


def open_made(opening: Opening) -> Container:
    source = opening.source
    start = 13 + int(source.read(5, 8))
    head = json.loads(source.read(13, start - 13))
    if head["version"] > 1:
        raise Refused(f"has version {head['version']}")
    if head["fault"]:
        raise getattr(builtins, head["fault"])("of the format")
    if any(start + offset + stored > source.size for _, offset, stored, _ in head["files"]):
        raise Damaged("is cut")
    parts = [opening.sibling(name) for name in head["parts"]]

    def members() -> Iterator[Member]:
        for name, offset, stored, size in head["files"]:
            key = name.encode("utf-8", "surrogateescape")
            extent = Extent(source, start + offset, stored)
            data = Decoded(opening.cache, extent, "deflate", size, name) if name.endswith(".z") else extent
            yield Member(tuple(key.split(b"/")), Blob(key, data))
        for part in parts:
            key = part.name.rpartition("/")[2].encode()
            yield Member((b"parts", key), Blob(key, Extent(part, 0, part.size)))

    return Container("made", "1", Group(b"", members), [source, *parts])


FORMAT = Format(
    "made", lambda head: head.startswith(MAGIC), open_made,
    hint=lambda head: "has a letter wrong" if head.startswith(b"MAED") else None, suffixes=(".made",),
)


def use_made() -> None:
    """In this process no format is built in but this one."""
    registry.built_in = lambda: iter([FORMAT])


"""Container facts, and errors that reading all blocks does not reveal.

Covers the traps of docs/formats/wshard.md §17 without a checksum: header against file, names, overlaps, gaps,
descriptions against sizes, and the identity block of later writers (§16).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice, pairwise
from typing import Any

from glassfs.codec import compression
from glassfs.content import Array, Fault, layout_faults
from glassfs.errors import Damaged, GlassfsError, Passing, TooLarge
from glassfs.formats.wshard import metadata
from glassfs.formats.wshard.episode import WShardEpisode
from glassfs.formats.wshard.index import CODECS, BlockFlag, Role, label
from glassfs.formats.wshard.interleaved import ALIGNMENTS

IDENTITY = b"meta/identity"
BIG_ENDIAN = 0x4  # a flag of the header


def facts(episode: WShardEpisode) -> dict[str, Any]:
    """Return facts from the header and meta/episode."""
    header = episode.index.header
    found: dict[str, Any] = {
        "version": header.version,
        "role": Role(header.role).name,
        "flags": f"0x{header.flags:04x}",
        "alignment": header.alignment,
        "compression_default": CODECS.get(header.compression, header.compression or compression.NONE),
        "blocks": len(episode.index.entries),
        "total_file_size": header.total_size,
    }
    found |= episode.metadata.names
    if episode.metadata.length is not None:
        found["length_T"] = episode.metadata.length
    if episode.overlaps.repaired:
        found["repaired"] = True
    return found


def faults(episode: WShardEpisode) -> Iterator[Fault]:
    """Yield every error that reading all blocks does not reveal."""
    return chain(
        _header_faults(episode), _entry_faults(episode), _extent_faults(episode),
        _metadata_faults(episode), _block_faults(episode), _identity_faults(episode),
    )


def _header_faults(episode: WShardEpisode) -> Iterator[Fault]:
    header, size = episode.index.header, episode.index.source.size
    if header.total_size != size:
        yield Fault("header", f"total_file_size is {header.total_size}, but the file has {size} bytes")
    if header.alignment not in ALIGNMENTS:
        yield Fault("header", f"alignment is {header.alignment}")
    if header.compression not in (0, *CODECS):
        yield Fault("header", f"compression_default {header.compression} is unknown")
    if header.flags & BIG_ENDIAN:
        yield Fault("header", "is flagged as big-endian, which readers ignore")
    if header.schema_offset > size or 0 < header.schema_offset < episode.index.end:
        yield Fault("header", f"schema_offset {header.schema_offset} lies outside the data")


def _entry_faults(episode: WShardEpisode) -> Iterator[Fault]:
    for entry in episode.index.entries:
        if entry.flags & BlockFlag.ZSTD and entry.flags & BlockFlag.LZ4:
            yield Fault(entry.label, "is flagged as both zstd and lz4")
        if entry.flags & BlockFlag.CHUNKED:
            yield Fault(entry.label, "is flagged as chunked, which no writer does")
        if entry.flags & ~BlockFlag.KNOWN:
            yield Fault(entry.label, f"has unknown flags 0x{entry.flags:04x}")
        if entry.codec == compression.NONE and entry.original != entry.stored:
            yield Fault(entry.label, f"declares {entry.original} bytes, but {entry.stored} are stored, uncompressed")
        if entry.name is None:
            yield Fault(entry.label, "its name lies outside the names")
            continue
        if episode.index.named[entry.name] is not entry:
            yield Fault(entry.label, "is the name of several blocks")
        if not entry.name:
            yield Fault(entry.label, "has an empty name")
        if not _is_hash(entry.name, entry.name_hash):
            yield Fault(entry.label, "its name is not UTF-8, or name_hash does not match it")


def _is_hash(name: bytes, name_hash: int) -> bool:
    import xxhash

    try:
        return name_hash in (xxhash.xxh64_intdigest(name), _fnv1a(name.decode()))
    except ValueError:
        return False


def _fnv1a(name: str) -> int:
    """Return the 64-bit hash that the TypeScript writer stores: FNV-1a over UTF-16 units."""
    value = 14695981039346656037
    units = name.encode("utf-16-le", "surrogatepass")
    for unit in struct.unpack(f"<{len(units) // 2}H", units):
        value = (value ^ unit) * 1099511628211 & 0xFFFF_FFFF_FFFF_FFFF
    return value


def _extent_faults(episode: WShardEpisode) -> Iterator[Fault]:
    overlaps, index = episode.overlaps, episode.index
    for number in sorted(overlaps.refused | overlaps.doubtful):
        yield Fault(index.entries[number].label, "shares bytes with other blocks")
    entries = sorted((entry for entry in index.entries if entry.stored), key=lambda entry: (entry.offset, entry.end))
    for before, after in pairwise(entries):
        if (before.offset, before.end) == (after.offset, after.end):
            yield Fault(after.label, f"is stored in the same bytes as {before.label}")
    if overlaps.repaired or any(index.impossible(entry) for entry in entries):
        return  # the bytes of these blocks would count as gaps
    # Blocks are aligned, so that gaps of less than an alignment are padding. Longer ones hold bytes that no reader
    # sees, such as blocks of an index that was overwritten.
    header = index.header
    end = min(header.total_size, index.source.size)
    first = entries[0].offset if entries else end  # streaming writers reserve bytes before it for a longer index
    parts = [(0, first, "the names"), *((entry.offset, entry.end, entry.label) for entry in entries)]
    parts.append((header.schema_offset or end, end, "the schema"))
    yield from layout_faults(parts, end, episode.allowance.part(), may_share=True, padding=max(ALIGNMENTS))


def _metadata_faults(episode: WShardEpisode) -> Iterator[Fault]:
    found, length = episode.metadata, episode.metadata.length
    yield from found.faults
    present = episode.index.named
    for name, descriptions in found.blocks.items():
        action = name.replace(b"signal/", b"action/", 1)
        if name.startswith(b"meta/"):
            yield Fault(label(name), "is described in meta/channels as an array")
        elif name not in present and action not in present and length != 0:
            yield Fault(label(name), "is described in meta/channels, but missing")
        elif len(set(descriptions)) > 1 and (action == name or action not in present):
            yield Fault(label(name), "has differing descriptions in meta/channels")


def _block_faults(episode: WShardEpisode) -> Iterator[Fault]:
    """Yield metadata that are not valid JSON, and blocks that do not fit their description."""
    for entry in episode.index.entries:
        if entry.name is None or episode.index.impossible(entry) is not None:
            continue
        if entry.is_metadata:
            with suppress(TooLarge), episode.allowance.temporary(episode.cache) as room:
                try:
                    metadata.parse(episode.data(entry, entry.size), room, is_strict=True)
                except Damaged as error:
                    yield Fault(entry.label, error.reason)
            continue
        content, length = episode.content(entry), episode.metadata.length
        if isinstance(content, Array) and content.known_shape is not None:
            if length not in (None, content.known_shape[0]):
                yield Fault(entry.label, f"has {content.known_shape[0]} steps, but the episode has {length}")
        elif episode.metadata.is_described(entry.name):
            known = episode.metadata.blocks.get(entry.name, [None])
            reason = f"{entry.size} bytes are not a whole number of steps" if known else "its dtype or shape is unknown"
            yield Fault(entry.label, reason)


def _identity_faults(episode: WShardEpisode) -> Iterator[Fault]:
    """Yield blocks that differ from the SHA-256 by name that later writers store (§16), and names without a block."""
    present = episode.index.named
    if IDENTITY not in present:
        return
    with episode.json(IDENTITY) as value:
        listed = value.get("entries") if isinstance(value, dict) else None
        if not isinstance(listed, dict):
            if IDENTITY not in episode.damaged_metadata:
                yield Fault(label(IDENTITY), "lists no entries")
            return
        found = {name.encode("utf-8", "surrogatepass"): str(digest)[:65] for name, digest in listed.items()}
    for entry in episode.index.entries:
        if entry.name is None or entry.name == IDENTITY:
            continue
        if entry.name not in found:
            yield Fault(entry.label, "is not listed in meta/identity")
            continue
        digest = hashlib.sha256()
        try:
            for piece in episode.data(entry, entry.size).pieces():
                digest.update(piece)
        except Passing:
            raise
        except GlassfsError:
            continue  # reading the block reports it
        if digest.hexdigest() != found[entry.name]:
            yield Fault(entry.label, "its SHA-256 does not match meta/identity")
    for name in islice(sorted(found.keys() - present.keys()), 1000):
        yield Fault(label(name), "is listed in meta/identity, but missing")

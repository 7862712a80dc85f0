"""Writes WShard files as its writers do: batch, streaming (April 2026) and chunked (docs/formats/wshard.md §1-§14).

    with WShardWriter("episode.wshard", codec="zstd") as w:
        w.add_channel("rgb", film, modality="rgb")
        w.add("reward", rewards)

Arrays are kept until the file is closed, and compressed one at a time then. Without metadata blocks of its own a file
gets meta/wshard, meta/episode and meta/channels.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

DTYPES = {
    "f8": "f64", "f4": "f32", "f2": "f16", "i8": "i64", "i4": "i32", "i2": "i16", "i1": "i8",
    "u8": "u64", "u4": "u32", "u2": "u16", "u1": "u8", "b1": "bool",
}
CODEC_FLAGS = {"zstd": 0x2, "lz4": 0x4}
CODEC_NUMBERS = {"none": 0, "zstd": 1, "lz4": 2}
SMALLEST_COMPRESSED = 64
HEADER = struct.Struct("<4sBBHBBHIQQQQ16x")
ENTRY = struct.Struct("<QIHHQQQII")

Values = npt.NDArray[Any]
Block = Any  # Values, or bytes


class WShardWriter:
    """One file.

    ``codec`` is the default (none, zstd, lz4). ``names_codec`` is False for writers that leave the codec to the
    header's default. ``checksum`` is ``raw``, ``disk`` (over the stored bytes) or ``none``.
    """

    def __init__(
        self, path: str | Path, *, codec: str = "none", alignment: int = 32, names_codec: bool = True,
        checksum: str = "raw", role: int = 5, episode: Mapping[str, Any] | None = None, has_metadata: bool = True,
    ) -> None:
        self.path = Path(path)
        self.codec, self.alignment, self.names_codec = codec, alignment, names_codec
        self.checksum, self.role = checksum, role
        self.episode = dict(episode or {})
        self.has_metadata = has_metadata
        self.channels: list[dict[str, Any]] = []
        self._blocks: list[tuple[bytes, Block, str]] = []

    def __enter__(self) -> WShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def add(self, name: str | bytes, block: Block, codec: str | None = None) -> None:
        """Add a block: an array, stored unchanged in C order, or bytes."""
        raw = name.encode() if isinstance(name, str) else name
        self._blocks.append((raw, block, codec or self.codec))

    def add_channel(
        self, name: str, array: Values, *, kind: str = "signal", modality: str | None = None, dtype: str | None = None,
        codec: str | None = None,
    ) -> None:
        """Add a block ``kind/name`` described in meta/channels. ``dtype`` overrides its type name, as for bf16."""
        self.add(f"{kind}/{name}", array, codec)
        self.channels.append(describe(f"{kind}/{name}", name, array, modality, dtype))

    def add_json(self, name: str, value: Any) -> None:
        self.add(name, json.dumps(value).encode())

    def close(self) -> None:
        """Write the file."""
        self._add_metadata()
        table, places = _names([name for name, _, _ in self._blocks])
        names_offset = HEADER.size + ENTRY.size * len(self._blocks)
        data_offset = _aligned(names_offset + len(table), self.alignment)
        entries = []
        with self.path.open("wb") as file:
            file.seek(data_offset)
            for (name, block, codec), place in zip(self._blocks, places, strict=True):
                file.seek(_aligned(file.tell(), self.alignment))
                entries.append(self._write_block(file, name, place, block, codec))
            size = max(file.tell(), data_offset)
            file.truncate(size)
            file.seek(0)
            head = (b"SHRD", 2, self.role, 0, self.alignment, CODEC_NUMBERS[self.codec], ENTRY.size)
            file.write(HEADER.pack(*head, len(entries), names_offset, data_offset, 0, size))
            file.write(b"".join(entries) + table)

    def _write_block(self, file: BinaryIO, name: bytes, place: tuple[int, int], block: Block, codec: str) -> bytes:
        raw = _bytes(block)
        stored, flags = compressed(raw, codec, 1), 0
        if len(stored) < len(raw):
            flags = 1 | (CODEC_FLAGS[codec] if self.names_codec else 0)
        crc = {"raw": raw, "disk": stored}.get(self.checksum)
        offset = file.tell()
        file.write(stored)
        return _entry(name, *place, flags, offset, len(stored), len(raw), 0 if crc is None else _crc(crc))

    def _add_metadata(self) -> None:
        if not self.has_metadata:
            return
        names = {name for name, _, _ in self._blocks}
        lengths = [len(block) for name, block, _ in self._blocks if isinstance(block, np.ndarray) and block.ndim]
        defaults = {
            "meta/wshard": {"format": "W-SHARD", "wshard_version": "0.1", "alignment": self.alignment},
            "meta/episode": {"episode_id": self.path.stem, "length_T": lengths[0] if lengths else 0} | self.episode,
            "meta/channels": {"channels": self.channels},
        }
        for name, value in defaults.items():
            if name.encode() not in names:
                self.add_json(name, value)


def describe(
    block: str, name: str, array: Values, modality: str | None = None, dtype: str | None = None,
) -> dict[str, Any]:
    """Return an entry of meta/channels."""
    word = dtype or DTYPES[array.dtype.str[1:]]
    found = {"id": name, "dtype": word, "shape": list(array.shape[1:]), "signal_block": block}
    return found | ({"modality": modality} if modality else {})


def write_streamed(path: str | Path, data: Mapping[str, Values], *, flush: int = 64, codec: str = "none") -> None:
    """Write a file like the streaming writers of April 2026, with their fault if there are several flushes.

    ``data`` has signals and actions by the name of their block, in the order of writing; reward, done and time/ticks
    are added. Data blocks are never compressed; meta blocks are, with the checksum over the stored bytes.
    """
    steps = len(next(iter(data.values())))
    ticks = np.arange(steps, dtype="<i4")
    whole = {**data, "reward": ticks.astype("<f4") / 4, "done": ticks % 7 == 6, "time/ticks": ticks}
    channels = [describe(name, name.split("/", 1)[1], block) for name, block in data.items()]
    metadata = {
        "meta/wshard": {"format": "W-SHARD", "wshard_version": "0.1", "alignment": 32, "streaming": True},
        "meta/episode": {"episode_id": Path(path).stem, "length_T": steps},
        "meta/channels": {"channels": channels},
    }
    names = sorted([*whole, *metadata])
    table, places = _names([name.encode() for name in names])
    names_offset = HEADER.size + ENTRY.size * len(names)
    first = _aligned(names_offset + len(table) + 200, 32)
    body = b"".join(
        block[start : start + flush].tobytes() for start in range(0, steps, flush) for block in whole.values()
    )
    in_table = dict(zip(names, places, strict=True))
    entries, offset = {}, first
    for name, block in whole.items():
        size = block.nbytes
        indexed = body[offset - first : offset - first + size]  # the wrong bytes, with a matching checksum
        entries[name] = _entry(name.encode(), *in_table[name], 0, offset, size, size, _crc(indexed))
        offset += block[:flush].nbytes
    for name, value in metadata.items():
        raw = json.dumps(value).encode()
        stored = compressed(raw, codec, 3)
        body += bytes(-(first + len(body)) % 32)
        fields = (int(len(stored) < len(raw)), first + len(body), len(stored), len(raw), _crc(stored))
        entries[name] = _entry(name.encode(), *in_table[name], *fields)
        body += stored
    head = HEADER.pack(
        b"SHRD", 2, 5, 0, 32, CODEC_NUMBERS[codec], ENTRY.size, len(names), names_offset,
        _aligned(names_offset + len(table), 32), 0, first + len(body),
    ) + b"".join(entries[name] for name in names) + table
    Path(path).write_bytes(head.ljust(first, b"\0") + body)


def write_chunked(folder: Path, episode_id: str, data: Mapping[str, Values], steps: int, **options: Any) -> Path:
    """Write an episode in parts of ``steps`` timesteps, and its manifest; return the manifest's path."""
    total = len(next(iter(data.values())))
    count = -(-total // steps)
    chunks = []
    for number, first in enumerate(range(0, total, steps)):
        path = Path(folder, f"{episode_id}_chunk_{number:04d}.wshard")
        last = min(first + steps, total) - 1
        described = {"chunk_index": number, "total_chunks": count, "timestep_range": [first, last],
                     "length_T": last - first + 1}
        with WShardWriter(path, episode={"episode_id": episode_id, **described}, **options) as writer:
            for name, block in data.items():
                kind, _, channel = name.partition("/")
                if channel:
                    writer.add_channel(channel, block[first : last + 1], kind=kind)
                else:
                    writer.add(name, block[first : last + 1])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        chunks.append(described | {"uri": path.name, "sha256": digest})
    manifest = {"episode_id": episode_id, "env_id": "Bench-v0", "total_chunks": count, "total_timesteps": total,
                "chunks": chunks}
    return write_manifest(Path(folder, f"{episode_id}_manifest.wshard"), manifest)


def write_manifest(path: Path, manifest: Any) -> Path:
    with WShardWriter(path, role=4, has_metadata=False) as writer:
        writer.add_json("meta/manifest", manifest)
    return path


def pack_residual(signs: Values, is_prefixed: bool = False) -> bytes:
    """Return bits [T] or [T, D] as a residual block: column by column, optionally each after its length."""
    columns = [np.packbits(column, bitorder="little").tobytes() for column in np.atleast_2d(signs.T)]
    return b"".join(struct.pack("<I", len(column)) * is_prefixed + column for column in columns)


def compressed(raw: bytes | memoryview, codec: str, level: int) -> bytes | memoryview:
    """Return the block as stored by the writers: compressed if that is shorter."""
    if codec == "none" or len(raw) < SMALLEST_COMPRESSED:
        return raw
    if codec == "zstd":
        import zstandard

        stored = zstandard.ZstdCompressor(level=level).compress(raw)
    else:
        import lz4.block

        stored = lz4.block.compress(raw, store_size=False)
    return stored if len(stored) < len(raw) else raw


def _bytes(block: Block) -> bytes | memoryview:
    if isinstance(block, np.ndarray):
        return np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
    return bytes(block)


def _entry(name: bytes, *fields: int) -> bytes:
    """Pack an entry. ``fields``: offset and length of the name, flags, offset, stored and raw size, checksum."""
    import xxhash

    return ENTRY.pack(xxhash.xxh64_intdigest(name), *fields, 0)


def _names(names: Sequence[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the string table, and the offset and length of each name."""
    table, places = bytearray(), []
    for name in names:
        places.append((len(table), len(name)))
        table += name
    return bytes(table), places


def _crc(data: bytes | memoryview) -> int:
    import crc32c

    return int(crc32c.crc32c(data))


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment if alignment else position

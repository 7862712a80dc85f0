"""Small containers that expand to many zeros when they are read."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import lz4.block
import numpy as np
import zstandard
from writers import wshard
from writers.idv import IdvWriter

WINDOW = 27  # 128 MiB
PIECE = 1 << 20
EPISODES, FRAMES = 200, 4_000_000_000
HEADER, ENTRY = struct.Struct("<4sHHQQQQQ16s"), struct.Struct("<QIHHQQQQQQ")


class Bombs(wshard.WShardWriter):
    """A WShard writer that also takes stored blocks: ``add(name, Packed)``."""

    def _write_block(self, file: BinaryIO, name: bytes, place: tuple[int, int], block: Any, codec: str) -> bytes:
        if not isinstance(block, Packed):
            return super()._write_block(file, name, place, block, codec)
        offset = file.tell()
        file.write(block.stored)
        flags = 1 | wshard.CODEC_FLAGS[block.codec]
        return wshard._entry(name, *place, flags, offset, len(block.stored), block.size, 0)


class Packed:
    """``size`` zeros, compressed."""

    def __init__(self, codec: str, size: int) -> None:
        self.codec, self.size = codec, size
        self.stored = zstd_frame(size) if codec == "zstd" else lz4.block.compress(bytes(size), store_size=False)


def zstd_frame(size: int) -> bytes:
    """Compress zeros into a frame without content size, with a window of 128 MiB that the decoder must hold."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=WINDOW, write_content_size=False, write_checksum=False, compression_level=1,
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    pieces = [packer.compress(bytes(PIECE)) for _ in range(size // PIECE)]
    return b"".join([*pieces, packer.flush()])


def write_blocks(path: Path, codec: str, blocks: int, size: int) -> list[str]:
    """Write blocks of ``size`` bytes each and return the paths of their files in the container."""
    packed = Packed(codec, size)
    with Bombs(path, has_metadata=False, codec=codec) as writer:
        for number in range(blocks):
            writer.add(f"signal/b{number:02d}", packed)
    return [f"signal/b{number:02d}.bin" for number in range(blocks)]


def write_chunks(path: Path, datasets: int, chunks: int, size: int) -> list[str]:
    """Write an HDF5 file of datasets of doubles in chunks of ``size`` bytes; return the paths of their arrays."""
    import h5py

    packed = zlib.compress(bytes(size))
    with h5py.File(path, "w") as file:
        for number in range(datasets):
            made = file.create_dataset(
                f"x{number}", (chunks * size // 8,), "f8", chunks=(size // 8,), compression="gzip", shuffle=True,
            )
            for chunk in range(chunks):
                made.id.write_direct_chunk((chunk * size // 8,), packed)
    return [f"x{number}.npy" for number in range(datasets)]


def write_headers(folder: Path, files: int) -> None:
    """Write small files that describe much: HDF5 datasets of one long type, and NPZ arrays of different ones."""
    import h5py

    for number in range(files):
        fields = [(f"{number}_{field}_{'x' * 20}", "<f4") for field in range(900)]
        with h5py.File(folder / f"{number}.h5", "w", libver="latest") as file:
            file["type"] = np.dtype(fields)
            for dataset in range(40):
                file.create_dataset(f"x{dataset}", (10,), file["type"])
        np.savez_compressed(folder / f"{number}.npz", x=np.zeros(3, fields), y=np.zeros(2, fields[::-1]))


def write_video(path: Path, frames: int, side: int) -> list[str]:
    """Write a video of ``side`` × ``side`` images in one block and return the paths of its images."""
    packed = Packed("zstd", frames * side * side * 3)
    channel = {"id": "rgb", "dtype": "u8", "shape": [side, side, 3], "signal_block": "signal/rgb", "modality": "rgb"}
    with Bombs(path, codec="zstd", episode={"length_T": frames}) as writer:
        writer.add("signal/rgb", packed)
        writer.channels.append(channel)
    return [f"signal/rgb/{number:06d}.png" for number in range(frames)]


def write_table(path: Path, columns: int, blocks: int, rows_per_block: int) -> list[str]:
    """Write an IDV of doubles, which deflate shrinks to a thousandth, and return the paths of its columns."""
    names = [f"c{number:02d}" for number in range(columns)]
    with IdvWriter(path, rows_per_block=rows_per_block) as writer:
        for name in names:
            writer.add(name, np.zeros(blocks * rows_per_block))
    return [f"columns/{name}.npy" for name in names]


def write_episodes(path: Path, count: int, step: int = 0, text: bytes = b"\x01") -> Path:
    """Write ``count`` KinoDB index entries that share 128 KiB of metadata: task and embodiment of 64 KiB each.

    All have the same section, of the byte ``text``; or each begins ``step`` bytes after the previous one, and any two
    bytes there are the length of a text.
    """
    if step:
        data, length = bytes(range(64, 128)) * 3072, 1 << 16
        offsets = [number * step % (1 << 16) for number in range(count)]
    else:
        data = 2 * (struct.pack("<H", 65535) + text * 65535) + struct.pack("<fBB", 10.0, 2, 0)
        offsets, length = [0] * count, len(data)
    start = 64
    with path.open("wb") as file:
        file.write(struct.pack("<4sHHQQQQQ16x", b"KINO", 0, 1, count, count, start + len(data), 64 * count, 0))
        file.write(data)
        for number, offset in enumerate(offsets):
            sections = start, 13, start, 2, start + offset, length
            file.write(struct.pack("<QIHHQQQQQQ", number, 1, 1, 1, *sections))
    return path


def write_holes(path: Path) -> None:
    """Write episodes that share one image section (docs/formats/kinodb.md §6): a picture, then a hole.

    Listing the images of one goes through billions of frames, which takes minutes.
    """
    index = ENTRY.size * EPISODES
    metadata, pictures = HEADER.size + index, HEADER.size + index + 16
    picture = struct.pack("<HH3sIIBBI", 1, 3, b"cam", 1, 1, 3, 0, 3) + bytes(3)
    section = len(picture) + 2 * (FRAMES - 1)
    with path.open("wb") as file:
        file.write(HEADER.pack(b"KINO", 0, 1, EPISODES, 0, HEADER.size, index, 0, b""))
        for number in range(EPISODES):
            file.write(ENTRY.pack(number, FRAMES, 0, 0, pictures, 0, pictures, section, metadata, 16))
        file.write(struct.pack("<HHfBB", 0, 0, 1.0, 2, 0))
        file.seek(pictures)
        file.write(picture)
        file.truncate(pictures + section)

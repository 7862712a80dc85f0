"""Decoders from stored bytes to raw bytes, encoders for views, and checksums.

A format names the codec of a block and its checksum; ``glassfs.content.Decoded`` then makes any range of the block
readable, decoding it once.
"""

from glassfs.codec.checksum import ADLER32, CRC32, CRC32C, Algorithm, Checksum, Covers
from glassfs.codec.compression import DEFLATE, DEFLATE_PREFIX, LZ4, NONE, ZSTD

__all__ = [
    "ADLER32",
    "CRC32",
    "CRC32C",
    "DEFLATE",
    "DEFLATE_PREFIX",
    "LZ4",
    "NONE",
    "ZSTD",
    "Algorithm",
    "Checksum",
    "Covers",
]

"""Stores of files and the sources that they open (``contract``); local and ``remote``."""

from glassfs.source.contract import (
    ByteCache,
    Entry,
    Kind,
    Named,
    Path,
    Source,
    Store,
    Version,
    inner_version,
    is_version_of,
)
from glassfs.source.file import BUFFERED, SeekableFile, SourceFile
from glassfs.source.named import locate
from glassfs.source.reader import Reader
from glassfs.source.remote.url import Connection, absolute, is_url

__all__ = [
    "BUFFERED", "ByteCache", "Connection", "Entry", "Kind", "Named", "Path", "Reader", "SeekableFile", "Source",
    "SourceFile", "Store", "Version", "absolute", "inner_version", "is_url", "is_version_of", "locate",
]

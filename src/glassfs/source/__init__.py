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
    distribute,
    inner_version,
    is_version_of,
)
from glassfs.source.file import BUFFERED, SeekableFile, SourceFile
from glassfs.source.named import locate
from glassfs.source.reader import Reader
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.url import absolute, is_url
from glassfs.source.scattered import SEGMENTS, Scattered, Spans, total

__all__ = [
    "BUFFERED", "SEGMENTS", "ByteCache", "Connection", "Entry", "Kind", "Named", "Path", "Reader", "Scattered",
    "SeekableFile", "Source", "SourceFile", "Spans", "Store", "Version", "absolute", "distribute", "inner_version",
    "is_url", "is_version_of", "locate", "total",
]

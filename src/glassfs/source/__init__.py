"""Where containers live: stores, and the sources that they open (``contract``); local ones, and ones in memory."""

from glassfs.source.contract import Entry, Kind, Path, Source, Store, Version, distribute
from glassfs.source.named import Named, locate
from glassfs.source.reader import Reader
from glassfs.source.scattered import SEGMENTS, Scattered, Spans, total

__all__ = [
    "SEGMENTS", "Entry", "Kind", "Named", "Path", "Reader", "Scattered", "Source", "Spans", "Store", "Version",
    "distribute", "locate", "total",
]

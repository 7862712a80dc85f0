"""Where containers live: stores, and the sources that they open (``contract``); local ones, and ones in memory."""

from glassfs.source.contract import Entry, Kind, Path, Source, Store, Version, distribute
from glassfs.source.named import Named, locate
from glassfs.source.reader import Reader

__all__ = ["Entry", "Kind", "Named", "Path", "Reader", "Source", "Store", "Version", "distribute", "locate"]

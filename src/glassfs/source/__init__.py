"""Where containers live. A source is a run of bytes with an identity; reads are positional and complete."""

from glassfs.source.base import Identity, Source
from glassfs.source.local import LocalSource
from glassfs.source.reader import Reader

__all__ = ["Identity", "LocalSource", "Reader", "Source"]

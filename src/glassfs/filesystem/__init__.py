"""The protocol ``glassfs://`` of fsspec: the contents of containers as a read-only file system, over ``library``."""

from glassfs.filesystem.system import GlassfsFileSystem

__all__ = ["GlassfsFileSystem"]

"""The protocol ``glassfs://`` of fsspec: the contents of containers as a read-only file system, over ``library``.

``system`` is the file system and its files, ``options`` the arguments that name a source.
"""

from glassfs.filesystem.system import GlassfsFileSystem

__all__ = ["GlassfsFileSystem"]

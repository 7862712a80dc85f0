"""The protocol ``glassfs://`` of fsspec: the contents of containers as a read-only file system, over ``library``.

``system`` is the file system, ``file`` an open file, ``options`` the arguments that name a source.
"""

from glassfs.filesystem.system import GlassfsFileSystem

__all__ = ["GlassfsFileSystem"]

"""``glassfs://`` for programs that read through fsspec: what is in containers, as a read-only file system.

A third face beside ``mount`` and ``cli``; it stands on ``library``. ``system`` is the file system, ``file`` what it
opens, ``options`` where that is.
"""

from glassfs.filesystem.system import GlassfsFileSystem

__all__ = ["GlassfsFileSystem"]

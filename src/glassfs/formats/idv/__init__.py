"""ML.NET's binary data view (``.idv``): a table in blocks of rows, each column encoded and compressed on its own.

``file`` reads the header, the table of contents and the tables of metadata, and makes contents of columns.
``columns`` gives the bytes of a column in any range, from its blocks. ``vectors`` and ``runs`` decode what is in a
block, ``codecs`` tells what type it has, and ``check`` looks for what reading does not reveal. Nothing here changes
after opening but what is remembered for speed, so any thread may use it.

A file whose header or table of contents is wrong is refused. A column that this package cannot read (an unknown codec
or compression, parameters that make no sense) is listed in the schema and has no file; damaged metadata cost
themselves; a damaged block costs what lies in it, and the sizes of a column that only its blocks tell.

Facts: formats/idv.md, whose sections are meant by § in this package.
"""

from __future__ import annotations

from glassfs.formats.idv.file import SIGNATURE, open_idv
from glassfs.formats.registry import Format


def _hint(head: bytes) -> str | None:
    if head[4:12] == SIGNATURE:
        return "is an ML.NET data view behind a length of 4 bytes, as models of ML.NET embed it"
    if head[:8] == SIGNATURE[::-1]:
        return "starts with the signature of an ML.NET data view in reverse"
    return None


FORMAT = Format("idv", lambda head: head.startswith(SIGNATURE), open_idv, _hint)

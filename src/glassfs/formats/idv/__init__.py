"""ML.NET's binary data view (``.idv``): a table in blocks of rows, each column encoded and compressed on its own.

Modules, lowest first: ``runs`` reads integers and strings and decodes sequences of values, ``codecs`` parses column
types, ``vectors`` decodes vectors, ``blocks`` locates and decompresses blocks, ``columns`` serves byte ranges of
columns, ``table`` parses header and tables, ``check`` finds errors that reading does not reveal, and ``file`` makes
contents of columns. Opened files are immutable except for caches that belong to the container; any thread may use
them.

A file with a wrong header or table of contents is refused. A column with an unknown codec or compression, or with
impossible parameters, is listed in the schema but has no file. Damaged metadata cost only themselves. A damaged block
costs its own rows, and the sizes of a column whose sizes only blocks give.

Byte layout: docs/formats/idv.md.
"""

from __future__ import annotations

from glassfs.formats.idv.file import open_idv
from glassfs.formats.idv.table import SIGNATURE
from glassfs.formats.registry import BUILT_IN, JOINED, Format


def _hint(head: bytes) -> str | None:
    if head[4:12] == SIGNATURE:
        return "is an ML.NET data view after a 4-byte length, as embedded in ML.NET models"
    if head[:8] == SIGNATURE[::-1]:
        return "starts with the signature of an ML.NET data view in reverse"
    return None


FORMAT = Format("idv", lambda head: head.startswith(SIGNATURE), open_idv, _hint, BUILT_IN["idv"], joined=JOINED["idv"])

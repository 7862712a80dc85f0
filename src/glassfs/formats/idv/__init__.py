"""ML.NET's binary data view (``.idv``): a table in blocks of rows, each column encoded and compressed on its own.

From the bottom up: ``wire`` reads integers and strings, ``codecs`` tells what type a column has, ``runs`` and
``vectors`` decode what is in a block, ``blocks`` finds and decompresses blocks, ``columns`` gives the bytes of a column
in any range, ``table`` is the opened file with what it says about itself, ``check`` looks for what reading does not
reveal, and ``file`` makes contents of columns. Nothing here changes after opening but what is remembered for speed, so
any thread may use it; what is remembered goes with the container.

A file whose header or table of contents is wrong is refused. A column that this package cannot read (an unknown codec
or compression, parameters that make no sense) is listed in the schema and has no file; damaged metadata cost
themselves; a damaged block costs what lies in it, and the sizes of a column that only its blocks tell.

The bytes are described in docs/formats/idv.md.
"""

from __future__ import annotations

from glassfs.formats.idv.file import open_idv
from glassfs.formats.idv.table import SIGNATURE
from glassfs.formats.registry import BUILT_IN, Format


def _hint(head: bytes) -> str | None:
    if head[4:12] == SIGNATURE:
        return "is an ML.NET data view after a length of 4 bytes, as models of ML.NET embed it"
    if head[:8] == SIGNATURE[::-1]:
        return "starts with the signature of an ML.NET data view in reverse"
    return None


FORMAT = Format("idv", lambda head: head.startswith(SIGNATURE), open_idv, _hint, BUILT_IN["idv"])

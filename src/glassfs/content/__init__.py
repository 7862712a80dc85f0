"""What a container holds: groups of arrays, images, documents and so on. No files, and no format.

``model`` has the kinds of content; the bytes behind them are ``data``, put together by ``parts``, and in ``blocks`` of
the cache.
"""

from glassfs.content.blocks import Decoded, Rendered
from glassfs.content.data import Data, Extent, Location, Memory, Slice, Unreadable
from glassfs.content.model import (
    Array,
    Blob,
    Collection,
    Container,
    Content,
    Document,
    Fault,
    Fields,
    Group,
    Image,
    Json,
    Member,
    Null,
    Outline,
    Picture,
    RaggedText,
    Records,
    Scalar,
    Series,
    Stored,
    Text,
    members_of,
)
from glassfs.content.parts import Blocked, Concatenated, Converted, Gathered, Made, Parted, Regular, booleans
from glassfs.content.table import Cells, Column, Ragged, Table

__all__ = [
    "Array",
    "Blob",
    "Blocked",
    "Cells",
    "Collection",
    "Column",
    "Concatenated",
    "Container",
    "Content",
    "Converted",
    "Data",
    "Decoded",
    "Document",
    "Extent",
    "Fault",
    "Fields",
    "Gathered",
    "Group",
    "Image",
    "Json",
    "Location",
    "Made",
    "Member",
    "Memory",
    "Null",
    "Outline",
    "Parted",
    "Picture",
    "Ragged",
    "RaggedText",
    "Records",
    "Regular",
    "Rendered",
    "Scalar",
    "Series",
    "Slice",
    "Stored",
    "Table",
    "Text",
    "Unreadable",
    "booleans",
    "members_of",
]

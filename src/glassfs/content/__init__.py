"""Contents of containers: groups, arrays, images, documents and so on. They know neither files nor formats.

``model`` has the kinds of content, ``data`` and ``parts`` the bytes behind them, ``blocks`` the bytes that the cache
keeps.
"""

from glassfs.content.blocks import Decoded, Rendered
from glassfs.content.container import Container, Fault
from glassfs.content.data import Data, Extent, Location, Memory, Slice, Unreadable, Zeros
from glassfs.content.model import (
    Array,
    Beside,
    Blob,
    Collection,
    Content,
    Document,
    EncodedImage,
    Fields,
    Group,
    Image,
    Json,
    Link,
    Member,
    Null,
    Outline,
    Part,
    RaggedText,
    Records,
    Scalar,
    Series,
    Stored,
    Text,
    Video,
    members_of,
)
from glassfs.content.parts import (
    Blocked,
    Computed,
    Concatenated,
    Converted,
    Counted,
    Gathered,
    Made,
    Parted,
    Regular,
    booleans,
)
from glassfs.content.table import Cells, Column, Documents, Ragged, Recording, Table

# Former names, for formats and views of other packages.
Film = Video
Picture = EncodedImage

__all__ = [
    "Array",
    "Beside",
    "Blob",
    "Blocked",
    "Cells",
    "Collection",
    "Column",
    "Computed",
    "Concatenated",
    "Container",
    "Content",
    "Converted",
    "Counted",
    "Data",
    "Decoded",
    "Document",
    "Documents",
    "EncodedImage",
    "Extent",
    "Fault",
    "Fields",
    "Film",
    "Gathered",
    "Group",
    "Image",
    "Json",
    "Link",
    "Location",
    "Made",
    "Member",
    "Memory",
    "Null",
    "Outline",
    "Part",
    "Parted",
    "Picture",
    "Ragged",
    "RaggedText",
    "Recording",
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
    "Video",
    "Zeros",
    "booleans",
    "members_of",
]

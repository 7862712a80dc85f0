"""Contents of containers: groups, arrays, images, documents and so on. They know neither files nor formats.

``model`` has the kinds of content, ``data`` and ``parts`` the bytes behind them, ``blocks`` the bytes that the cache
keeps.
"""

from glassfs.content.blocks import Decoded, Rendered, Stream
from glassfs.content.container import Container, Fault, layout_faults
from glassfs.content.data import Data, Extent, Location, Memory, Slice, Unreadable, Zeros
from glassfs.content.episodes import EPISODE_COLUMNS, episodes_table, with_recording
from glassfs.content.model import (
    TIME,
    Array,
    Beside,
    Blob,
    Collection,
    Content,
    Document,
    EncodedImage,
    Fields,
    Group,
    Guessed,
    Image,
    Json,
    Link,
    Member,
    Null,
    Omitted,
    Order,
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
from glassfs.content.nested import Nested, NestedSource
from glassfs.content.ordering import array_as_stored
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
from glassfs.content.rows import rows_of
from glassfs.content.summary import ARRAYS, EPISODES, Summary, summary_of
from glassfs.content.table import Column, Documents, Ragged, Recording, Table

# Former names, for formats and views of other packages.
Film = Video
Picture = EncodedImage

__all__ = [
    "ARRAYS",
    "EPISODES",
    "EPISODE_COLUMNS",
    "TIME",
    "Array",
    "Beside",
    "Blob",
    "Blocked",
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
    "Guessed",
    "Image",
    "Json",
    "Link",
    "Location",
    "Made",
    "Member",
    "Memory",
    "Nested",
    "NestedSource",
    "Null",
    "Omitted",
    "Order",
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
    "Stream",
    "Summary",
    "Table",
    "Text",
    "Unreadable",
    "Video",
    "Zeros",
    "array_as_stored",
    "booleans",
    "episodes_table",
    "layout_faults",
    "members_of",
    "rows_of",
    "summary_of",
    "with_recording",
]

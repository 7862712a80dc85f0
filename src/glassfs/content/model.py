"""The kinds of content. A format makes them, a view shows them as files.

A name is a tuple of components, bytes as the container has them: the format decides whether its names are paths.
Everything here is cheap to make; what costs reading hides behind ``Data`` or a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from glassfs.content.data import Data

Name = tuple[bytes, ...]
_HARMLESS = re.compile(rb"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True)
class Content:
    """Base of all kinds. ``key`` is the exact original name."""

    key: bytes

    def attributes(self) -> dict[str, str]:
        """What a curious reader wants to know, as text: dtype, shape, codec, stored_bytes, offset, checksum."""
        return {}


@dataclass(slots=True)
class Stored(Content):
    """A content that is made of bytes."""

    data: Data

    def attributes(self) -> dict[str, str]:
        place = self.data.location()
        if place is None:
            return {}
        found = {"codec": place.codec, "stored_bytes": str(place.stored), "offset": str(place.offset)}
        if place.checksum:
            found["checksum"] = place.checksum
        return found


@dataclass(slots=True)
class Array(Stored):
    """An array in C order, little-endian: ``data`` has product(shape) items of ``dtype``.

    ``dtype`` is NumPy's descr string (``<f4``, ``|b1``, ``<M8[100ns]``), ``type_name`` what the container calls it.
    ``modality`` is ``rgb`` or ``depth`` where metadata say that it is an image. The shape may be a function where it
    takes a pass over the data to find out, as then does ``data.size``. ``label`` tells arrays of one name apart:
    ``.offset_minutes``, for one. ``fps`` is that of a ``Video``, where rows of the array are frames.
    """

    dtype: str
    shape: tuple[int, ...] | Callable[[], tuple[int, ...]]
    type_name: str = ""
    modality: str | None = None
    label: str = ""
    fps: float | Callable[[], float] = 0.0

    def attributes(self) -> dict[str, str]:
        shape = self.shape if isinstance(self.shape, tuple) else self.shape()
        found = {"dtype": self.type_name or self.dtype, "shape": str(list(shape))}
        return found | Stored.attributes(self)


@dataclass(slots=True)
class Image(Stored):
    """Raw pixels, row by row: width x height x channels of 8 or 16 bits, little-endian.

    Channels (1 grey, 2 grey and alpha, 3 RGB, 4 RGBA) are interleaved, or one plane after another if ``is_planar``.
    """

    width: int
    height: int
    channels: int
    bits: int = 8
    is_planar: bool = False

    def attributes(self) -> dict[str, str]:
        shape = [self.height, self.width, self.channels]
        if self.is_planar:
            shape = [self.channels, self.height, self.width]
        return {"dtype": f"uint{self.bits}", "shape": str(shape)} | Stored.attributes(self)


@dataclass(slots=True)
class EncodedImage(Stored):
    """A picture stored compressed; ``media`` is ``jpeg`` or ``png``."""

    media: str


@dataclass(slots=True)
class Video(Content):
    """``count`` frames, ``fps`` of them a second, shown ``width`` x ``height`` pixels large.

    The rate may be a function where it takes reading to find out; 0 stands for one that nobody knows.
    ``frame(number)`` is its Image or EncodedImage, and may raise Damaged; one of another size is scaled, and any other
    content is one that cannot be shown. ``present`` are the numbers of the frames that are there, rising: None if all
    are. What is seen at a frame that is missing is the one before.
    """

    count: int
    fps: float | Callable[[], float]
    width: int
    height: int
    frame: Callable[[int], Content]
    present: Sequence[int] | None = None


@dataclass(slots=True)
class Json(Stored):
    """A JSON document that the container stores, bytes unchanged."""


@dataclass(slots=True)
class Document(Content):
    """A value that becomes JSON: dict, list, str, bytes (text that may not be UTF-8), int, float, bool or None.

    ``value`` is asked when the document is first looked at, and may raise. ``cost`` is the memory that the value and
    its text may take together, in bytes.
    """

    value: Callable[[], Any]
    cost: int = 1 << 20


@dataclass(slots=True)
class Scalar(Content):
    """One integer, double or boolean."""

    value: int | float | bool


@dataclass(slots=True)
class Null(Content):
    """A value that is present and null."""


@dataclass(slots=True)
class Text(Stored):
    """Text, bytes unchanged."""


@dataclass(slots=True)
class RaggedText(Content):
    """Text by row: row i is ``text[offsets[i]:offsets[i + 1]]``.

    ``offsets`` holds ``rows + 1`` integers of ``offset_dtype``; that they do not rise from 0 to the end is found
    when they are read (Damaged). ``is_json`` says that each row is a JSON document.
    """

    text: Data
    offsets: Data
    offset_dtype: str
    rows: int
    is_json: bool = False


@dataclass(slots=True)
class Records(Content):
    """Values by row, to be shown a line each: str, None, or a list of these.

    ``block(i)`` decodes block i of ``blocks`` into its rows, and ``cost(i)`` is the memory that the rows may take, and
    one of them as JSON beside them.
    """

    blocks: int
    block: Callable[[int], Sequence[Any]]
    type_name: str = ""
    cost: Callable[[int], int] = lambda block: 1 << 20

    def attributes(self) -> dict[str, str]:
        return {"dtype": self.type_name} if self.type_name else {}


@dataclass(slots=True)
class Link(Content):
    """Another place where something is to be found: names from the directory that this is in, ``..`` among them.

    Where it is known only as a path as trees show it, that is ``shown``.
    """

    target: Name
    shown: str = ""


@dataclass(slots=True)
class Part(Stored):
    """Bytes of something that is made of several files, under the name that it has there."""


@dataclass(slots=True)
class Blob(Stored):
    """Bytes that nobody described."""


class Member(NamedTuple):
    """A content and its name inside a group; leading components are directories."""

    name: Name
    content: Content


@dataclass(slots=True)
class Group(Content):
    """Contents under names. ``members`` is asked when somebody looks inside, and may raise Damaged.

    Order decides who keeps a name that several want: the first. ``error`` says why some of it could not be shown.
    """

    members: Callable[[], Iterable[Member]]
    error: str | None = None


class Outline:
    """Names that are known before any content is made: of collections, which come first, and of others.

    They are distinct, and no dot and nothing that has to be escaped is in them: whatever extensions files get, no two
    can want one name.
    """

    __slots__ = ("collections", "names", "numbers")

    def __init__(self, collections: Sequence[bytes] = (), others: Sequence[bytes] = ()) -> None:
        self.names = (*collections, *others)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.collections = len(collections)
        if len(self.numbers) != len(self.names) or not all(map(_HARMLESS.fullmatch, self.names)):
            raise ValueError(f"not distinct names of letters, digits, _ and -: {self.names}")


@dataclass(slots=True)
class Fields(Content):
    """Contents under the names of an outline, like the fields of a record, each made by its name when asked for.

    What the outline calls collections are such, and of the others none is, nor an array that is a film. ``meanings``
    are contents that have no file of their own, and only say what others mean: tables, films.
    """

    outline: Outline
    item: Callable[[bytes], Content]
    meanings: Callable[[], Iterable[Member]] = tuple


@dataclass(slots=True)
class Series(Content):
    """``count`` contents named ``0``, ``1`` … with at least ``digits`` digits, each made when asked for.

    All are groups or none is; those that are not have one view each, all under the same suffix. ``kept`` is the memory
    that it takes to know them, in bytes. Where it is known how many bytes each has without making it, ``sizes`` tells
    that of those from a number up to another. If ``is_uniform``, they differ in nothing but their bytes.
    """

    count: int
    item: Callable[[int], Content]
    digits: int = 1
    has_groups: bool = False
    kept: int = 0
    sizes: Callable[[int, int], Iterable[int]] | None = None
    is_uniform: bool = False


Collection: TypeAlias = Group | Fields | Series
"""What holds other contents."""


def members_of(collection: Collection) -> Iterator[Member]:
    """All contents of a collection under their names, those of a series under their numbers."""
    if isinstance(collection, Group):
        yield from collection.members()
    elif isinstance(collection, Fields):
        for name in collection.outline.names:
            yield Member((name,), collection.item(name))
        yield from collection.meanings()
    else:
        for number in range(collection.count):
            yield Member((b"%0*d" % (collection.digits, number),), collection.item(number))


@dataclass(slots=True)
class Beside(Content):
    """All that has a file of its own in one directory, for whoever shows it as a whole."""

    members: Sequence[Member]

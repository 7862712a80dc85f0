"""The kinds of content. Formats make them, views show them as files.

A name is a tuple of components, bytes as the container has them; the format decides whether its names are paths.
Contents are cheap to make: what costs reading is behind ``Data`` or a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from glassfs.content.data import Data

Name = tuple[bytes, ...]
TIME = "time"
Order: TypeAlias = Literal["C", "F"]
"""Which index of neighboring items differs: the last one, or, in Fortran order, the first."""
_HARMLESS = re.compile(rb"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True)
class Content:
    """Base of all kinds. ``key`` is the exact original name."""

    key: bytes

    def attributes(self) -> dict[str, str]:
        """Return facts for extended attributes, as text: dtype, shape, codec, stored_bytes, offset, checksum."""
        return {}


@dataclass(slots=True)
class Stored(Content):
    """A content with bytes, which are ``in_file``, a further file of the container; empty for its own.

    ``facts`` are further attributes.
    """

    data: Data
    in_file: str = field(default="", kw_only=True)
    facts: Mapping[str, str] | None = field(default=None, kw_only=True)

    def attributes(self) -> dict[str, str]:
        return {**self.located(self.data), **(self.facts or {})}

    def located(self, data: Data) -> dict[str, str]:
        """Return where bytes are stored, as attributes."""
        location = data.location()
        if location is None:
            return {}
        found = {"codec": location.codec, "stored_bytes": str(location.stored), "offset": str(location.offset)}
        if location.checksum:
            found["checksum"] = location.checksum
        if self.in_file:
            found["file"] = self.in_file
        return found


class AsStored(NamedTuple):
    """The items of an array as its container stores them.

    ``data`` has them in ``order`` ("C" or "F"), each of ``dtype``, which may be big-endian. ``rows`` has the same items
    in C order.
    """

    data: Data
    dtype: str
    order: Order
    rows: Data


@dataclass(slots=True)
class Array(Stored):
    """An array in C order, little-endian: ``data`` has product(shape) items of ``dtype``.

    ``dtype`` is NumPy's descr string (``<f4``, ``|b1``, ``<M8[100ns]``, see ``dtypes``), ``type_name`` the container's
    name for it. ``modality`` is ``rgb`` or ``depth`` if metadata say that it is an image. The shape is a function if
    finding it takes a pass over the data, as ``data.size`` then does. ``label`` distinguishes arrays of one name
    (``.offset_minutes``, for example). ``fps`` is that of a ``Video``, if rows of the array are frames. ``axis`` is
    ``TIME`` if there is a row for each step of a recording, else empty. ``as_stored`` is given if the container has
    another order of bytes or axes: ``array_as_stored`` makes such an array. ``file`` is the NPY file of the array, if
    the container stores one, which is then shown unchanged. ``role`` is what the array is in an episode, if a layout
    says it: ``action``, ``state`` or ``reward``. ``title`` is that of a ``Video``.
    """

    dtype: str
    shape: tuple[int, ...] | Callable[[], tuple[int, ...]]
    type_name: str = ""
    modality: str | None = None
    label: str = ""
    fps: float | Callable[[], float] = 0.0
    axis: str = ""
    as_stored: AsStored | None = None
    file: Data | None = None
    role: str = ""
    title: str = ""

    @property
    def known_shape(self) -> tuple[int, ...] | None:
        """The shape if it is known without a pass over the data, else None."""
        return self.shape if isinstance(self.shape, tuple) else None

    @property
    def resolved_shape(self) -> tuple[int, ...]:
        """The shape. Finding it may take a pass over the data, which may raise Damaged."""
        return self.shape if isinstance(self.shape, tuple) else self.shape()

    @property
    def stored(self) -> AsStored:
        """The items as they are stored."""
        return self.as_stored or AsStored(self.data, self.dtype, "C", self.data)

    def attributes(self) -> dict[str, str]:
        found = {"dtype": self.type_name or self.dtype, "shape": str(list(self.resolved_shape))}
        return {**found, **self.located(self.file or self.data), **(self.facts or {})}


@dataclass
class Image(Stored):
    """Raw pixels, row by row: width x height x channels of 8 or 16 bits, little-endian.

    Channels (1 gray, 2 gray and alpha, 3 RGB, 4 RGBA) are interleaved, or one plane after another if ``is_planar``.
    """

    width: int
    height: int
    channels: int
    bits: int = 8
    is_planar: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an array of the samples."""
        inside = self.height, self.width
        return (self.channels, *inside) if self.is_planar else (*inside, self.channels)

    def attributes(self) -> dict[str, str]:
        return {"dtype": f"uint{self.bits}", "shape": str(list(self.shape))} | Stored.attributes(self)


@dataclass
class EncodedImage(Stored):
    """An image stored compressed; ``media`` is ``jpeg``, ``png`` or ``webp``, or a format that nothing here decodes."""

    media: str


@dataclass
class Video(Content):
    """``count`` frames, ``fps`` of them a second, shown at ``width`` x ``height`` pixels.

    The rate is a function if finding it takes reading; 0 means that it is unknown. ``frame(number)`` returns an Image
    or EncodedImage, and may raise Damaged; a frame of another size is scaled, and any other content is one that cannot
    be shown. ``present`` has the rising numbers of the frames that exist. If it is None, ``is_missing`` says whether a
    frame is missing; without that, all exist. A missing frame shows the previous one. ``title`` is the name of the
    camera for people, if it has one beside its path.
    """

    count: int
    fps: float | Callable[[], float]
    width: int
    height: int
    frame: Callable[[int], Content]
    present: Sequence[int] | None = None
    is_missing: Callable[[int], bool] | None = None
    title: str = ""


@dataclass
class Json(Stored):
    """A JSON document that the container stores, bytes unchanged."""


@dataclass
class Document(Content):
    """A value that becomes JSON: dict, list, str, bytes (text that may not be UTF-8), int, float, bool or None.

    ``value`` is called when the document is first needed, and may raise. ``cost`` is the memory in bytes that the value
    and its text may take together.
    """

    value: Callable[[], Any]
    cost: int = 1 << 20


@dataclass
class Scalar(Content):
    """One integer, double or boolean."""

    value: int | float | bool


@dataclass
class Null(Content):
    """A value that is present and null."""


@dataclass
class Text(Stored):
    """Text, bytes unchanged."""


@dataclass
class RaggedText(Content):
    """Text by row: row i is ``text[offsets[i]:offsets[i + 1]]``.

    ``offsets`` holds ``rows + 1`` integers of ``offset_dtype``. Readers raise Damaged if they do not rise from 0 to the
    end. ``is_json`` says that each row is a JSON document.
    """

    text: Data
    offsets: Data
    offset_dtype: str
    rows: int
    is_json: bool = False


@dataclass
class Records(Content):
    """Values by row, shown one on a line: str, None, or a list of these; with a ``dtype``, values of that or None.

    ``block(i)`` decodes block i of ``blocks`` into its rows. ``cost(i)`` is the memory in bytes that these rows may
    take, together with one of them as JSON.
    """

    blocks: int
    block: Callable[[int], Sequence[Any]]
    type_name: str = ""
    cost: Callable[[int], int] = lambda block: 1 << 20
    dtype: str = ""

    def attributes(self) -> dict[str, str]:
        return {"dtype": self.type_name} if self.type_name else {}


@dataclass
class Link(Content):
    """A reference to another content: names from the directory of the link, ``..`` among them; none is that directory.

    If the target is known only as a path in a tree, ``shown`` is that path.
    """

    target: Name
    shown: str = ""


@dataclass
class Part(Stored):
    """Bytes of something that consists of several files, under the name that it has there."""


@dataclass
class Blob(Stored):
    """Bytes without a description."""


@dataclass
class Undecoded(Blob):
    """An array whose items no type of NumPy is like, such as floats of four bits: its bytes."""

    type_name: str
    shape: tuple[int, ...]

    def attributes(self) -> dict[str, str]:
        return {"dtype": self.type_name, "shape": str(list(self.shape))} | Stored.attributes(self)


@dataclass
class Omitted(Content):
    """A member of a group that no file shows, and why: all interfaces of glassfs name it instead of keeping silent.

    ``reason`` begins with the kind and a colon, as in ``virtual dataset: its values are in other files``. If
    ``is_damage``, the member cannot be read, which is a fault of the container; otherwise glassfs does not support it.
    Its name in the group may be ``(b"",)`` for members without names, such as those beyond a limit.
    """

    reason: str
    is_damage: bool = False


class Member(NamedTuple):
    """A content and its name inside a group; leading components are directories."""

    name: Name
    content: Content


@dataclass
class Group(Content):
    """Contents under names. ``members`` is called when a caller lists the group, and may raise Damaged.

    If several members want one name, the first gets it. Members that cannot be shown are ``Omitted``. ``meanings`` are
    further contents without files, which describe others, as those of ``Fields``. ``find`` may be given if members are
    collections: it returns the one with a name of this one component, or None if there is none, or if others have names
    that begin so, or if only ``members`` can tell. It raises what ``members`` raises. ``facts`` returns those of the
    group's own attributes in the container that have some names, JSON values, or all for None. It may raise Damaged.
    """

    members: Callable[[], Iterable[Member]]
    meanings: Callable[[], Iterable[Member]] = tuple
    find: Callable[[bytes], Collection | None] | None = None
    facts: Callable[[Sequence[str] | None], Mapping[str, Any]] = lambda names: {}


class Outline:
    """Names known before any content is made: first those of collections, then those of others.

    They are distinct and contain neither dots nor characters that need escaping, so that no two of them can want one
    name, whatever extensions their files get.
    """

    def __init__(self, collections: Sequence[bytes] = (), others: Sequence[bytes] = ()) -> None:
        self.names = (*collections, *others)
        if len(set(self.names)) != len(self.names) or not all(map(_HARMLESS.fullmatch, self.names)):
            raise ValueError(f"not distinct names of letters, digits, _ and -: {self.names}")
        self.texts = tuple(name.decode("ascii") for name in self.names)
        self.stems = {text: number for number, text in enumerate(self.texts)}
        self.collections = len(collections)


@dataclass
class Fields(Content):
    """Contents under the names of an outline, like the fields of a record, each made when its name is looked up.

    The names that the outline lists as collections are collections, and no other is one, or an array that is a video.
    ``meanings`` are contents without files, which describe others: tables, videos.
    """

    outline: Outline
    item: Callable[[bytes], Content]
    meanings: Callable[[], Iterable[Member]] = tuple


@dataclass
class Series(Content):
    """Contents named by ascending ``numbers`` with at least ``digits`` digits, each made when looked up.

    Either all contents are groups, or all are links, or none is either: these have one view each, all with the same
    suffix. ``kept`` is the memory in bytes that the series takes. If sizes are known without making contents,
    ``sizes(start, stop)`` yields those of a part of ``numbers``. If ``is_uniform``, contents differ in nothing but
    their bytes. If ``is_mixed``, suffixes differ, and names are known once contents are made.
    """

    numbers: Sequence[int]
    item: Callable[[int], Content]
    digits: int = 1
    has_groups: bool = False
    has_links: bool = False
    kept: int = 0
    sizes: Callable[[int, int], Iterable[int]] | None = None
    is_uniform: bool = False
    is_mixed: bool = False

    @property
    def has_files(self) -> bool:
        """Whether its contents are neither groups nor links."""
        return not (self.has_groups or self.has_links)


Collection: TypeAlias = Group | Fields | Series
"""Contents that hold other contents."""


def members_of(collection: Collection) -> Iterator[Member]:
    """Yield all contents of a collection under their names, those of a series under their numbers."""
    if isinstance(collection, Group):
        yield from collection.members()
        yield from collection.meanings()
    elif isinstance(collection, Fields):
        for name in collection.outline.names:
            yield Member((name,), collection.item(name))
        yield from collection.meanings()
    else:
        for number in collection.numbers:
            yield Member((b"%0*d" % (collection.digits, number),), collection.item(number))


@dataclass
class Beside(Content):
    """All contents with files in one directory, for views that show them as a whole."""

    members: Sequence[Member]


class GenotypeFacts(NamedTuple):
    """Numbers of individuals and sites, and what is left out of them, as reasons for ``Omitted``.

    ``names`` and ``texts`` are the sizes in bytes of the lines of ``step`` individuals, or sites, at a time.
    """

    individuals: int
    names: Sequence[int]
    sites: int
    texts: Sequence[int]
    step: int
    omitted: Sequence[str]


Request: TypeAlias = "Callable[[int, int, int], bytes | bytearray]"
"""Called with the first one, how many are wanted at most, and the bytes that are expected for them."""


@dataclass
class Genotypes(Content):
    """Individuals, sites and genotypes. The functions are called when needed, and may raise Damaged or Unavailable.

    ``names`` returns a line for each individual, its name. ``texts`` returns a line for each site: its number, its
    position, the first and the second allele, separated by tabs. ``packed`` returns the genotypes of sites: two bits
    for each individual, the first one in the lowest bits, and whole bytes for each site. 3 is the first allele twice, 2
    both alleles, 0 the second allele twice, and 1 a genotype that is missing.

    ``lacks`` returns what to install before anything can be read, empty if nothing is missing.
    """

    facts: Callable[[], GenotypeFacts]
    names: Request
    texts: Request
    packed: Request
    lacks: Callable[[], str] = lambda: ""

"""The arrays in a container: the rows that describe them, a hash of their stored bytes, statistics of their values.

A format only says which contents have its arrays (``Container.arrays``). Any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import xxhash

from glassfs import work
from glassfs.content import dtypes
from glassfs.content.container import Nested
from glassfs.content.data import Data, Extent, Slice
from glassfs.content.episodes import LONGEST, TEXT
from glassfs.content.model import Array, Fields, Group, Member, Omitted, Part, Series, Stored, members_of
from glassfs.content.model import Collection as Contents
from glassfs.content.summary import PIECE_BYTES, PIECE_ROWS, UNSIGNED, Columns, Piece, piece_of
from glassfs.errors import Damaged, GlassfsError, LeftOut, Passing
from glassfs.lazy import np
from glassfs.names import component
from glassfs.source import Source

STORED = "stored_bytes"
ARRAY_ROWS: Columns = (("name", TEXT), ("dtype", TEXT), ("shape", TEXT), (STORED, UNSIGNED))
"""The columns of the table of arrays, beside container and position."""


def stored_hash(content: Stored) -> str:
    """Return the XXH3-64 of the bytes of a content as the file has them, as 16 hexadecimal digits.

    Bytes that are not contiguous in a file, such as chunks of HDF5, are decoded: an array's items as they are shown, in
    C order. Takes memory for one piece. Raises what reading raises.
    """
    data = content.data
    location = ((isinstance(content, Array) and content.file) or data).location()
    if location is not None and location.source is not None:
        data = Extent(location.source, location.offset, location.stored)
    found = xxhash.xxh3_64()
    for piece in _pieces(data):
        found.update(piece)
    return str(found.hexdigest())


def _pieces(data: Data) -> Iterator[bytes]:
    """Yield all bytes through the cache, at most PIECE at a time."""
    for piece in Slice(data, 0, data.size).pieces():
        work.check()
        yield piece


def statistics(content: Stored) -> tuple[Any, ...]:
    """Return minimum, maximum and mean of an array without its NaNs, and the number of these.

    All are None for what is no array of booleans, integers or floats; the first three also if there are no numbers.
    Raises what reading raises. Takes memory for one piece.
    """
    dtype = dtypes.parsed(content.stored.dtype) if isinstance(content, Array) else np.dtype("V1")
    if not isinstance(content, Array) or dtype.kind not in "biuf":
        return None, None, None, None
    plain = float if dtype.kind == "f" else int
    least, most, total, count, nan = math.inf, -math.inf, 0.0, 0, 0
    for piece in _pieces(content.stored.data):  # no number is in two of them, as its size divides theirs
        values = np.frombuffer(piece, dtype)
        numbers = values[~np.isnan(values)] if dtype.kind == "f" else values
        nan += len(values) - len(numbers)
        if len(numbers):
            count += len(numbers)
            with np.errstate(invalid="ignore", over="ignore"):
                total += float(numbers.sum(dtype=np.float64))
            least, most = min(least, plain(numbers.min())), max(most, plain(numbers.max()))
    return (least, most, total / count, nan) if count else (None, None, None, nan)


def arrays_in(
    root: Contents, others: Collection[Source] = (),
) -> Iterator[tuple[tuple[str, str, str, int | None], Stored] | GlassfsError]:
    """Yield the arrays below a collection whose type and shape are known without decoding, each with the values of
    ARRAY_ROWS, and errors with the names of what cannot be listed: LeftOut if glassfs does not support it.

    Names are paths without extensions. Arrays stored in the sources ``others`` are left out. Nothing is kept. Raises
    Passing.
    """
    waiting, has_unknown = [("", _members(root))], False
    while waiting:
        above, members = waiting[-1]
        name = above
        try:
            member = next(members, None)
            if member is None:
                waiting.pop()
                continue
            content = member.content
            name = "/".join(filter(None, (above, *(component(part) for part in member.name if part))))[:LONGEST]
            if isinstance(content, Nested):  # damage hides whether a file is an array
                content.first_bytes(1)
        except Passing:
            raise
        except GlassfsError as error:  # of this member, or the last one of these
            yield Damaged(error.reason, part=name)
            continue
        if isinstance(content, (Group, Fields)) or (isinstance(content, Series) and content.has_groups):
            work.check()
            waiting.append((name, _members(content)))
        elif isinstance(content, Omitted):
            reason = content.reason
            yield Damaged(reason, part=name) if content.is_damage else LeftOut(f"omitted: {reason}", part=name)
        elif isinstance(content, Part):
            if not isinstance(content, Nested) and not has_unknown:
                yield LeftOut("omitted: files: there are too many of them to find out which are arrays", part=above)
                has_unknown = True
        elif isinstance(content, Stored) and not (isinstance(content, Array) and content.known_shape is None):
            facts = content.attributes()
            location = content.data.location() if others else None
            if "dtype" in facts and "shape" in facts and (location is None or location.source not in others):
                stored = int(facts[STORED]) if STORED in facts else None
                yield (name, facts["dtype"], facts["shape"], stored), content


def _members(collection: Contents) -> Iterator[Member]:
    """Yield what is in a collection, without its meanings."""
    yield from collection.members() if isinstance(collection, Group) else members_of(collection)


class Measure(NamedTuple):
    """Further ``columns`` of arrays: ``values`` returns those of an array, and may raise what reading raises."""

    columns: Columns
    values: Callable[[Stored], Sequence[Any]]


NOTHING = Measure((), lambda content: ())


def array_pieces(
    root: Contents, others: Collection[Source] = (), measure: Measure = NOTHING,
) -> Iterator[tuple[Piece, Sequence[GlassfsError]]]:
    """Yield the rows of ``arrays_in`` in pieces, each with errors. Values that cannot be measured are None."""
    columns = ARRAY_ROWS + measure.columns
    rows: list[tuple[Any, ...]] = []
    errors: list[GlassfsError] = []
    size = 0
    for found in chain(arrays_in(root, others), (None,)):
        if isinstance(found, GlassfsError):
            errors.append(found)
        elif found is not None:
            row, content = found
            measured: Sequence[Any] = [None] * len(measure.columns)
            try:
                measured = measure.values(content)
            except Passing:
                raise
            except GlassfsError as error:
                errors.append(type(error)(error.reason, part=row[0]))
            rows.append((*row, *measured))
            size += len(row[0]) + len(row[2])
        is_full = len(rows) + len(errors) >= PIECE_ROWS or size >= PIECE_BYTES
        if is_full or (found is None and (rows or errors)):
            yield piece_of(list(zip(*rows, strict=True)) or [()] * len(columns), columns), errors
            rows, errors, size = [], [], 0

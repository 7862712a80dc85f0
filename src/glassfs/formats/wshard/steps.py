"""The table of an episode's steps (one row per step, one column per signal) and the videos beside it.

Signals are arrays of one or two axes with steps first; arrays with more axes, including videos, are not in the table.
Any thread may use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from glassfs.content import Array, Column, Content, Counted, Member, Recording, Table
from glassfs.content.table import WIDEST

NAME, FRAME, WHOLE = b"steps", b"frame", b"episode"
MOST_CAMERAS = 256
_VIDEO_DTYPES, _VIDEO_AXES = ("|u1", "<u2"), (3, 4)


def with_recording(
    members: Iterable[Member], steps: int | None, contents: Callable[[], Iterable[Content]],
    record: Callable[[], dict[str, Any]],
) -> Iterator[Member]:
    """Yield the members, then the table of steps if there are signals, and the episode.

    ``contents`` returns the same contents again, ``record`` what is known of the episode. If ``steps`` is None, the
    first signal gives the number of steps.
    """
    signals, member = 0, None
    for member in members:
        yield member
        found = _steps(member.content)
        if found is not None and steps in (None, found):
            steps = found
            signals += 1
    table = Table(NAME, steps or 0, partial(_columns, contents, steps or 0), width=1 + signals)
    if signals:
        yield Member((NAME,), table)
    if member is not None:
        yield Member((WHOLE,), Recording(WHOLE, record, table, partial(_cameras, contents)))


def _columns(contents: Callable[[], Iterable[Content]], steps: int) -> list[Column]:
    columns = [Column(FRAME, Array(FRAME, Counted(steps), "<i8", (steps,)))]
    for content in contents():
        if isinstance(content, Array) and _steps(content) == steps and len(columns) < WIDEST:
            columns.append(Column(content.key, content))
    return columns


def _steps(content: Content) -> int | None:
    """Return the steps of a signal, or None if it is none."""
    if not isinstance(content, Array) or not isinstance(content.shape, tuple):
        return None
    shape = content.shape
    return shape[0] if len(shape) in (1, 2) and 0 not in shape[1:] else None


def _cameras(contents: Callable[[], Iterable[Content]]) -> list[Member]:
    """Return the first arrays that may be videos; their view decides."""
    found: dict[bytes, Member] = {}
    for content in contents():
        if len(found) < MOST_CAMERAS and content.key not in found and _may_be_video(content):
            found[content.key] = Member(tuple(content.key.split(b"/")), content)
    return list(found.values())


def _may_be_video(content: Content) -> bool:
    return (
        isinstance(content, Array) and isinstance(content.shape, tuple) and len(content.shape) in _VIDEO_AXES
        and content.dtype in _VIDEO_DTYPES
    )

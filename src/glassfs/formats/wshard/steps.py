"""An episode as a whole: the table of its steps, a row a step, a column a signal, and the films beside them.

Signals are arrays of one or two axes, of which the first is the steps; films and what has more axes are not in the
table. Any thread.
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
    """The members, behind them the table of those that are signals, if there is one, and the episode that they are.

    ``contents`` gives the same contents again. Where nobody knows how many ``steps`` there are, the first signal tells.
    ``record`` is what is known of the episode.
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
    """The steps of a signal; None for what is not one."""
    if not isinstance(content, Array) or not isinstance(content.shape, tuple):
        return None
    shape = content.shape
    return shape[0] if len(shape) in (1, 2) and 0 not in shape[1:] else None


def _cameras(contents: Callable[[], Iterable[Content]]) -> list[Member]:
    """The first arrays that may be films: whether one is, its view tells."""
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

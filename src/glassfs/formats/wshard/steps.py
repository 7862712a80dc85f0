"""The table of the steps of an episode: a row a step, a column a signal, called like its block.

Signals are arrays of one or two axes, of which the first is the steps; films and what has more axes are not in it. Any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from glassfs.content import Array, Column, Content, Counted, Member, Table

NAME, FRAME = b"steps", b"frame"
MOST_SIGNALS = 4096
"""With more than these there is no table: what it knows of each is kept in memory."""


def with_steps(
    members: Iterable[Member], steps: int | None, contents: Callable[[], Iterable[Content]],
) -> Iterator[Member]:
    """The members, and behind them the table of those that are signals, if there is one.

    ``contents`` gives the same contents again. Where nobody knows how many ``steps`` there are, the first signal tells.
    """
    signals = 0
    for member in members:
        yield member
        found = _steps(member.content)
        if found is not None and steps in (None, found):
            steps = found
            signals += 1
    if steps is not None and 0 < signals <= MOST_SIGNALS:
        yield Member((NAME,), Table(NAME, steps, partial(_columns, contents, steps)))


def _columns(contents: Callable[[], Iterable[Content]], steps: int) -> list[Column]:
    columns = [Column(FRAME, Array(FRAME, Counted(steps), "<i8", (steps,)))]
    for content in contents():
        if isinstance(content, Array) and _steps(content) == steps:
            columns.append(Column(content.key, content))
    return columns


def _steps(content: Content) -> int | None:
    """The steps of a signal; None for what is not one."""
    if not isinstance(content, Array) or not isinstance(content.shape, tuple):
        return None
    shape = content.shape
    return shape[0] if len(shape) in (1, 2) and 0 not in shape[1:] else None

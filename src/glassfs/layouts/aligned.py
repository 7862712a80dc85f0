"""Steps at the times of one array, for recordings whose signals and cameras have times of their own. Pure functions.

The array of times is called the same everywhere: of a signal, it is the one in its group, or in the next one around it.
Times are integers of nanoseconds, or floats of seconds, and must not fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassfs.content import Array, Chosen, Content, Member, Video, dtypes
from glassfs.layouts.form import Layout, Pattern
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE


def aligned(members: Sequence[Member], layout: Layout) -> list[Member]:
    """Return the contents of an episode, of arrays and videos with times the rows or frames that belong to the steps.

    The steps are the times of the layout's ``base``, from the first one at which all signals with a role and all
    cameras that the layout names have a value. Arrays without times are left out: nothing says what their rows belong
    to. Without a base there are no steps. Raises Damaged.
    """
    arrays = {path_of(name): one for name, one in members if isinstance(one, Array)}
    above, _, clock = layout.base.rpartition("/")
    clocks = {
        path.rpartition("/")[0]: times for path, one in arrays.items()
        if path.rpartition("/")[2] == clock and (times := _times(one)) is not None
    }
    if above not in clocks:
        return [member for member in members if not isinstance(member.content, Array)]

    def times_of(path: str) -> NDArray[Any] | None:
        while path and path not in clocks:
            path = path.rpartition("/")[0]
        return clocks.get(path)

    steps = clocks[above]
    if not layout.is_nearest:
        roles = (pattern for alternatives in layout.roles.values() for patterns in alternatives for pattern in patterns)
        wanted = [*roles, *(layout.cameras or ())]
        needed = {path for path in map(path_of, (name for name, _ in members)) if fits(path, wanted)}
        first = (times[0] for times in map(times_of, needed) if times is not None and len(times))
        steps = steps[np.searchsorted(steps, max(first, default=0)) :]
    found = []
    for name, content in members:
        times = times_of(path_of(name))
        if times is not None and len(times):
            chosen = _chosen(content, times, _rows(times, steps, layout.is_nearest))
            if chosen is not None:
                found.append(Member(name, chosen))
        elif not isinstance(content, (Array, Video)):
            found.append(Member(name, content))
    return found


def rate_of(array: Array) -> float | None:
    """Return the mean rate of times in rows a second, None if there are none. Raises Damaged."""
    times = _times(array)
    if times is None or len(times) < 2 or times[-1] == times[0]:
        return None
    return float((len(times) - 1) / (times[-1] - times[0])) * (1e9 if times.dtype.kind == "i" else 1)


def items_of(found: Array) -> NDArray[Any] | None:
    """Return the items of an array, None if they are too many. Raises Damaged."""
    if found.data.size > 16 * PIECE or not isinstance(found.shape, tuple):
        return None
    return np.frombuffer(found.data.whole(), dtypes.parsed(found.dtype)).reshape(found.shape)


def _times(array: Array) -> NDArray[Any] | None:
    """Return the times in an array, None if it has others values than times."""
    items = items_of(array) if len(array.known_shape or ()) == 1 else None
    if items is None or items.dtype.kind not in "iuf" or (items[1:] < items[:-1]).any() or (items != items).any():
        return None
    return items if items.dtype.kind == "f" else items.astype(np.int64)


def _rows(times: NDArray[Any], steps: NDArray[Any], is_nearest: bool) -> NDArray[Any]:
    """Return the row for each step: the last one that is not later, or the nearest one."""
    before = np.clip(np.searchsorted(times, steps, "right") - 1, 0, len(times) - 1)
    if not is_nearest:
        return before
    after = np.minimum(before + 1, len(times) - 1)
    return np.where(times[after] - steps < steps - times[before], after, before)


def _chosen(content: Content, times: NDArray[Any], rows: NDArray[Any]) -> Content | None:
    """Return rows of an array or frames of a video, other contents unchanged; None if it has not these times."""
    if isinstance(content, Video):
        frame, frames = content.frame, content.present
        if content.count != len(times):
            return None
        present = None if frames is None else np.flatnonzero(np.isin(rows, frames)).tolist()
        return replace(content, count=len(rows), frame=lambda step: frame(int(rows[step])), present=present)
    if not isinstance(content, Array):
        return content
    shape = content.known_shape
    if not shape or shape[0] != len(times):
        return None
    data = Chosen(content.data, content.data.size // len(times), rows)
    return replace(content, data=data, shape=(len(rows), *shape[1:]), as_stored=None, file=None)


def fits(path: str, patterns: Sequence[Pattern]) -> bool:
    return any(pattern.fits(path.split("/")) for pattern in patterns)


def path_of(name: Sequence[bytes]) -> str:
    return b"/".join(name).decode("utf-8", "replace")

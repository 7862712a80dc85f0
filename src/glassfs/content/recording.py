"""What was recorded in one go, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glassfs.content.model import Content, Member
from glassfs.content.table import Table


@dataclass(slots=True)
class Recording(Content):
    """An episode, for whoever shows it as a whole; all that it is made of is there for itself as well.

    ``record`` is what is known of it, JSON values by their names. ``steps`` has what was recorded at each step, a row
    each. ``cameras`` are films, and arrays that may be films, as views tell, under the names of the directories that
    then have a file for each frame, from the directory that the episode is in. Both functions are asked when somebody
    looks, and may raise Damaged.
    """

    record: Callable[[], dict[str, Any]]
    steps: Table
    cameras: Callable[[], Sequence[Member]]

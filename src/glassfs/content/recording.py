"""Episodes: what was recorded in one go, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glassfs.content.model import Content, Member
from glassfs.content.table import Table


@dataclass(slots=True)
class Recording(Content):
    """An episode, for views that show it as a whole. Its parts are contents of their own as well.

    ``record`` returns what is known of the episode, JSON values by name. ``steps`` has a row for each recorded step.
    ``cameras`` returns videos, and arrays that views may take for videos, named by the path from the episode's
    directory to the directory that has a file for each frame. Both functions are called when needed and may raise
    Damaged.
    """

    record: Callable[[], dict[str, Any]]
    steps: Table
    cameras: Callable[[], Sequence[Member]]

"""What a view is: contents in another form, as files beside those that stand for them.

Views know contents, never formats. A third party adds one by an entry point in the group ``glassfs.views``: its name is
the view's, its value a ``View``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Collection, Content, Data

Key = tuple[Hashable, ...]
"""Begins with the version of the container, and tells one content of it in one view from all others."""


class File(NamedTuple):
    """A file for a content: what follows the content's name, and the bytes."""

    suffix: str
    data: Data


class Shown(NamedTuple):
    """What a view makes of a content: a file, or a directory of further contents.

    It is called like the content with ``suffix`` behind it, or ``name`` where that is given.
    """

    thing: Data | Collection
    suffix: str = ""
    name: bytes | None = None


@dataclass(frozen=True)
class View:
    """A view. ``show`` is asked for contents of ``kinds``, and gives nothing for those that it does not show.

    It decodes nothing. It raises GlassfsError for what cannot be shown, with the reason. ``summary`` is a line for
    people.
    """

    name: str
    summary: str
    kinds: tuple[type[Content], ...]
    show: Callable[[Any, BlockCache, Key], Iterable[Shown]]

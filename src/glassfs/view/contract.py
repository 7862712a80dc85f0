"""The contract of views: contents in another form, as files beside their canonical files.

Views know contents, never formats. Other packages add views by entry points in the group ``glassfs.views``: the name is
the view's, the value a ``View``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Collection, Content, Data

Key = tuple[Hashable, ...]
"""Begins with the version of the container, and identifies one content in one view."""


class File(NamedTuple):
    """A file for a content: the suffix to append to the content's name, and the bytes."""

    suffix: str
    data: Data


class Shown(NamedTuple):
    """A file that a view makes of a content, or a directory of further contents.

    Its name is that of the content with ``suffix`` appended, or ``name`` if that is given.
    """

    thing: Data | Collection
    suffix: str = ""
    name: bytes | None = None


@dataclass(frozen=True)
class View:
    """A view. ``show`` is called with contents of ``kinds``, and yields nothing for those that it does not show.

    It decodes nothing, and raises GlassfsError with the reason if a content cannot be shown. ``summary`` is one line
    for users. ``variants`` show the same contents otherwise: one that is chosen takes the place of this view.
    """

    name: str
    summary: str
    kinds: tuple[type[Content], ...]
    show: Callable[[Any, BlockCache, Key], Iterable[Shown]]
    variants: tuple[View, ...] = ()

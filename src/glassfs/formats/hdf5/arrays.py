"""The datasets of a container for the table of arrays: each once, with its stored size, and as no image. Any thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from glassfs.content import Member, Omitted
from glassfs.content.allowance import OBJECT
from glassfs.formats.hdf5 import dataset
from glassfs.formats.hdf5.answers import Path
from glassfs.formats.hdf5.description import Object
from glassfs.formats.hdf5.group import Ancestor, GroupListing


class ArrayListing(GroupListing):
    """A listing for one walk. Objects with several names have the first one; other links are not followed."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._seen: set[int] = set()
        """The addresses of objects with several names that were listed."""
        self._allowance = self._opening.allowance.part()

    def _described(self, request: dict[str, Any]) -> Any:
        # The catalogue keeps the rows, and has no space for the answers from which they are made.
        return self._answers.ask(request | ({"sizes": True} if request["do"] == "list" else {}))[0]

    def _object(self, described: Object, path: Path, above: tuple[Ancestor, ...]) -> Iterator[Member]:
        name, found = path[-1], described.dataset
        if described.names > 1:
            if described.address in self._seen:
                return
            self._allowance.take(OBJECT, "objects with several names")
            self._seen.add(described.address)
        if described.kind == "group":
            yield Member((name,), self._subgroup(described, path, above))
        elif found is not None and not found.is_null:
            hidden = dataset.why_hidden(found)
            made = dataset.plain(self._opening.source, self.asked(path), found) if not hidden else Omitted(name, hidden)
            yield Member((name,), made)
        elif described.kind == "damaged":
            raise self._opening.source.damage(described.reason)

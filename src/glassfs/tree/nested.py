"""Containers inside containers, as directories (docs/manual/contents.md, "Containers in containers"). Any thread."""

from __future__ import annotations

from glassfs.content import Nested, NestedSource
from glassfs.errors import Damaged
from glassfs.formats.registry import HEAD, INDEX, Head, may_be_container, recognise
from glassfs.tree.nodes import XATTR_PREFIX, File, OpenNested, Origin, Settled, Standing, error_of

MOST_DEPTH = 4
"""Containers around a container that is still shown as a directory."""
MOST_EXPANSION = 32
"""Bytes of such a container for each byte that the outermost one stores of it: so compression inside compression costs
no more than a file as large would."""


def is_container(nested: Nested) -> bool:
    """Return whether a nested file is shown as a directory. It is opened later.

    Its name decides, and its first bytes unless reading them takes a request. Raises Passing.
    """
    name = nested.key.decode("utf-8", "replace")
    if not may_be_container(name) or name.lower().endswith(INDEX):  # there are no files beside it
        return False
    # Depth and expansion are those of the whole way from the outermost file, which a bomb would multiply.
    source = NestedSource(nested)
    if source.depth > MOST_DEPTH or source.expansion > MOST_EXPANSION:
        return False
    if source.is_remote:
        return True
    try:
        head = Head(nested.first_bytes(HEAD), name.rpartition("/")[2], source.size)
    except Damaged:
        return False
    return recognise(head) is not None


class NestedDirectory(Standing):
    """A container inside another one, opened when it is entered, or when its attributes are asked for.

    If it cannot be opened, it contains nothing but its own file, and its attributes have the reason.
    """

    def __init__(self, name: str, ino: int, origin: Origin, content: Nested) -> None:
        super().__init__(name, ino, origin)
        self.content = content

    @property
    def file(self) -> File:
        """Its bytes, which are in no listing."""
        return File(self.name, self.ino, self.origin, self.content.data, self.content)

    def opened(self) -> OpenNested:
        return self.origin.services.nested(self.name, self.ino, self.origin, self.content)

    def shown(self) -> Settled:
        return self.opened().root

    def xattrs(self) -> dict[str, bytes]:
        opened = self.opened()
        format_name = opened.container.format.encode()
        return self.file.xattrs() | {XATTR_PREFIX + "format": format_name} | error_of(opened.root)

"""Find a collection in a directory without listing the directory.

Programs that load samples read an image of a camera of an episode, and seldom another one of that episode. Listing its
images makes the directories of all cameras, and keeps them all. Any thread.
"""

from __future__ import annotations

from glassfs.content import Group
from glassfs.content.growth import held_by_content
from glassfs.names import component, raw
from glassfs.tree import Directory
from glassfs.tree.build import NODE_COST, FieldsDirectory, directory
from glassfs.tree.nodes import inode


def collection_in(fields: Directory, outer: str, name: str) -> tuple[Directory, int] | None:
    """Return ``fields.child(outer).child(name)``, and the bytes that it holds.

    Returns None if it takes these calls to find that, or what they raise. Raises Damaged as they do.
    """
    if not isinstance(fields, FieldsDirectory):
        return None
    outline = fields.fields.outline
    number = outline.stems.get(outer)
    if number is None or number >= outline.collections:
        return None
    group = fields.fields.item(outline.names[number])
    if not isinstance(group, Group) or group.find is None:
        return None
    try:
        original = raw(name)
    except UnicodeEncodeError:
        return None
    found = group.find(original) if component(original) == name else None
    if found is None:
        return None
    node = directory(name, inode(name, inode(outer, fields.ino)), fields.origin, found)
    return node, NODE_COST + held_by_content(found)

"""Find a collection in a group without listing the group.

Programs that load samples read an image of a camera of an episode, and seldom another one of that episode. Listing its
images makes the directories of all cameras, and keeps them all. Any thread.
"""

from __future__ import annotations

from glassfs.content import Group
from glassfs.content.allowance import held_by_content
from glassfs.names import component, raw
from glassfs.tree import Directory
from glassfs.tree.build import NODE_COST, FieldsDirectory, directory
from glassfs.tree.nodes import inode


def group_in(fields: Directory, outer: str) -> Group | None:
    """Return the group of the directory ``fields.child(outer)`` if it can find collections, else None."""
    if not isinstance(fields, FieldsDirectory):
        return None
    outline = fields.fields.outline
    number = outline.stems.get(outer)
    if number is None or number >= outline.collections:
        return None
    group = fields.fields.item(outline.names[number])
    return group if isinstance(group, Group) and group.find is not None else None


def collection_in(group: Group, fields: Directory, outer: str, name: str) -> tuple[Directory, int] | None:
    """Return ``fields.child(outer).child(name)``, and the bytes that it holds. ``group`` is that of ``group_in``.

    Returns None if it takes these calls to find that, or what they raise. Raises Damaged as they do.
    """
    try:
        original = raw(name)
    except UnicodeEncodeError:
        return None
    found = group.find(original) if group.find is not None and component(original) == name else None
    if found is None:
        return None
    node = directory(name, inode(name, inode(outer, fields.ino)), fields.origin, found)
    return node, NODE_COST + held_by_content(found)

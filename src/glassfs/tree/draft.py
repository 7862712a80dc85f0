"""What becomes the children of a directory: groups, and members of groups further up whose names lead below it.

Pure functions of contents: no node is made here, and nothing is read but what listing a group reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from glassfs import work
from glassfs.content import Collection, Group, Member, Omitted, members_of
from glassfs.content.allowance import held_by_content, held_by_member
from glassfs.names import component
from glassfs.terminal import printable
from glassfs.tree.omissions import Omission
from glassfs.view import folder_of

DEEPEST = 256
"""The most directories that a name is split into; the rest of the name becomes one component."""
CHECKED_AT_ONCE = 256
"""Members after which a listing continues only if a caller still waits for it."""

_Run = tuple[int, list[Member]]
"""Members below a directory, and how many components of their names lead to it."""


Below: TypeAlias = "Draft | Collection"
"""What is in a directory: mostly one collection, which needs no draft."""


class Draft:
    """The contents of a directory to be made: groups, and members of groups further up that belong below it.

    Names are split one level at a time, when a directory is listed, so that the cost of a name does not grow with the
    number of its components. The draft of a node never changes.
    """

    __slots__ = ("groups", "runs")

    def __init__(self, *groups: Collection) -> None:
        self.groups = list(groups)
        self.runs: list[_Run] = []

    def cost(self, below: Iterable[Below]) -> int:
        """Return the approximate bytes that what is below takes beside its nodes."""
        kept = 0
        for draft in below:
            if not isinstance(draft, Draft):
                kept += held_by_content(draft)
                continue
            kept += sum(map(held_by_content, draft.groups))
            for _, members in draft.runs:
                # Without a group here these are members of one further up, and a reference takes 8 bytes.
                kept += sum(map(held_by_member, members)) if self.groups else 8 * len(members)
        return kept

    def opened(self, has_views: bool) -> tuple[dict[str, Below], list[Member], list[Omission]]:
        """Return the directories right below, the members that become files here, and those that are not shown.

        Without views, what only describes the members of groups is left out.
        """
        directories: dict[str, Below] = {}
        files: list[Member] = []
        omitted: list[Omission] = []
        runs: list[tuple[int, Iterable[Member]]] = list(self.runs)
        for group in self.groups:
            runs.append((0, group.members() if isinstance(group, Group) and not has_views else members_of(group)))
        for depth, members in runs:
            onward: list[Member] = []
            last = None
            for number, member in enumerate(members):
                if not number % CHECKED_AT_ONCE:
                    work.check()
                name, content = member
                if len(name) != depth + 1:
                    if depth < DEEPEST:
                        if name[depth] != last:  # mostly the same as of the previous member
                            last = name[depth]
                            onward = _below(directories, last).onward(depth + 1)
                        onward.append(member)
                        continue
                    name = (b"/".join(name[depth:]),)
                    member = Member(name, content)
                folder: Collection | None
                if isinstance(content, Collection):
                    folder = content
                elif isinstance(content, Omitted):
                    shown = component(name[-1]) if name[-1] else ""
                    omitted.append(Omission(shown, printable(content.reason), content.is_damage))
                    continue
                else:
                    files.append(member)
                    folder = folder_of(content)
                if folder is not None:
                    shown = component(name[-1])
                    if shown in directories:
                        _below(directories, name[-1]).groups.append(folder)
                    else:
                        directories[shown] = folder
        return directories, files, omitted

    def onward(self, depth: int) -> list[Member]:
        """Return the list to which further members are appended."""
        if not self.runs or self.runs[-1][0] != depth:
            self.runs.append((depth, []))
        return self.runs[-1][1]


def _below(directories: dict[str, Below], part: bytes) -> Draft:
    """Return the draft of the directory of this name, adding it if needed."""
    name = component(part)
    found = directories.get(name)
    if not isinstance(found, Draft):
        found = directories[name] = Draft() if found is None else Draft(found)
    return found

"""What directories of a mount say about members that they do not show, without listing more than they are asked for."""

from __future__ import annotations

import json

from glassfs.content import Group, Member, Null, Omitted
from glassfs.mount.inodes import ROOT
from glassfs.mount.status import ListedOmissions
from glassfs.sizes import PIECE
from glassfs.tree.build import container_root
from glassfs.tree.omissions import LONGEST, Omission, as_attributes
from tests.mount_unit.kernel import Kernel, operations_over
from tests.tree.trees import origin

NAME = "user.glassfs.omitted"


class Counted:
    """A tree of a group in a group; ``listed`` counts how often the inner one was listed."""

    def __init__(self) -> None:
        self.listed = 0
        inner = Member((b"inner",), Group(b"inner", self.members))
        root = container_root(Group(b"", lambda: [inner, self.lost(b"a", "too odd: why")]), origin())
        self.operations = operations_over(lambda: root)
        self.kernel = Kernel(self.operations)

    def members(self) -> list[Member]:
        self.listed += 1
        return [Member((b"kept",), Null(b"kept")), self.lost(b"gone", "kind: reason"), self.lost(b"bad", "cut", True)]

    @staticmethod
    def lost(name: bytes, reason: str, is_damage: bool = False) -> Member:
        return Member((name,), Omitted(name, reason, is_damage))

    def met(self) -> list[tuple[str, str, bool]]:
        found = map(json.loads, self.operations.omitted.text().splitlines())
        return [(one["path"], one["name"], one["is_damage"]) for one in found]


def test_names_of_attributes_are_given_without_a_listing() -> None:
    tree = Counted()
    inner = tree.kernel.find("/inner")
    assert NAME in tree.operations.listxattr(inner) and tree.listed == 0


def test_an_omission_is_known_before_a_listing() -> None:
    tree = Counted()
    inner = tree.kernel.find("/inner")
    assert tree.operations.getxattr(inner, NAME) == b"gone: kind: reason; bad: cut"
    assert tree.operations.getxattr(inner, "user.glassfs.error") == b"bad: cut" and tree.listed == 1
    assert tree.met() == [("/inner", "gone", False), ("/inner", "bad", True)]


def test_other_attributes_list_nothing() -> None:
    tree = Counted()
    inner = tree.kernel.find("/inner")
    assert tree.operations.getxattr(inner, "user.glassfs.key") == b"inner" and tree.listed == 0


def test_what_listings_omit_is_collected_by_path() -> None:
    tree = Counted()
    tree.kernel.list(ROOT)
    assert tree.met() == [("/", "a", False)]
    tree.kernel.list(tree.kernel.find("/inner"))
    assert [path for path, *_ in tree.met()] == ["/", "/inner", "/inner"]


def test_collected_omissions_are_bounded_and_replaced() -> None:
    met = ListedOmissions()
    for number in range(500):
        met.note(f"/{number}", [Omission(f"{name}", "x" * 100) for name in range(1_000)])
    assert len(met.text()) <= PIECE and b'"/499"' in met.text() and b'"/0"' not in met.text()
    met.note("/499", ())
    assert b'"/499"' not in met.text()


def test_attributes_fit_into_what_linux_allows() -> None:
    found = as_attributes([Omission("é" * 120, "kind: " + "ü" * 2_000)] * 1_000)[NAME]
    assert LONGEST < len(found) < 1 << 16 and found.decode()

"""A mount never lets a user read what is closed to that user in the source: one mount of many random trees.

Each tree is made from its number, so the paths of a failure are enough to reproduce it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.security.conftest import Shared
from tests.security.places import can_open, make_folder, set_access, write_file
from tests.security.random_trees import USERS, Gardener, Grown, Templates
from tests.security.users import Child

TREES = (10, pytest.param(600, marks=pytest.mark.slow))


@pytest.fixture
def source(place: Path) -> Path:
    make_folder(place / "closed", 0o700)
    make_folder(place / "open")
    for folder in ("closed", "open"):
        write_file(place / folder / "text", "outside of the source")
    return make_folder(place / "source")


def has_access_lists(folder: Path) -> bool:
    path = write_file(folder / "listed", "")
    try:
        set_access(path, 6, 0, 0, {})
    except pytest.skip.Exception:
        return False
    return True


def opened(root: str, paths: Iterable[str]) -> set[str]:
    """Return the readable paths. Each is opened by name, as a folder may be searchable but not listable."""
    return {path for path in paths if can_open(f"{root}/{path}")}


def below_links(source: Path, grown: Grown) -> list[str]:
    """Return paths through links to folders and containers: another way to the same files."""
    found = []
    for path in grown.plain:
        if not os.path.islink(source / path):
            continue
        if os.path.isdir(source / path):
            found += [f"{path}/{name}" for name in os.listdir(source / path)]
        container = os.path.relpath(os.path.realpath(source / path), source)
        if container in grown.containers:
            found += [f"{path}/{name}" for name in grown.containers[container][1]]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("trees", TREES)
def test_random_trees(shared: Shared, place: Path, source: Path, trees: int) -> None:
    gardener = Gardener(source, Templates.written(make_folder(place / "made")), has_access_lists(place))
    for seed in range(trees):
        gardener.grow(seed)
    grown = gardener.grown
    mount = str(shared(source).path)
    plain = [*grown.plain, *below_links(source, grown)]
    own = {f".glassfs/source/{path}": path for path in grown.containers}
    inside = {f"{path}/{name}".rstrip("/"): path for path, (_, names) in grown.containers.items()
              for name in ("", *names)}
    # Where a link leads to is another thing in the mount if it leads through a container.
    leads_to = {path: os.path.relpath(os.path.realpath(f"{mount}/{path}"), mount) for path in plain}

    def direct() -> set[str]:
        return opened(str(source), [".", *plain, *grown.containers])

    def mounted() -> set[str]:
        return opened(mount, [*plain, *inside, *own])

    for user in USERS:
        readers = Child(direct, user=user), Child(mounted, user=user)
        allowed, seen = (reader.result(250) for reader in readers)
        whole = {path for path, (files, _) in grown.containers.items() if allowed.issuperset(files)}

        def is_allowed(path: str, allowed: set[str] = allowed, whole: set[str] = whole) -> bool:
            place = leads_to.get(path, path)
            if path in own:
                return own[path] in allowed
            return inside[place] in whole if place in inside else path in allowed or place in allowed

        too_much = sorted(path for path in seen if not is_allowed(path))
        assert not too_much, f"{user} reads {len(too_much)} that are closed: {too_much[:20]}"
        not_enough = sorted(missing_from(seen, allowed, whole, grown, inside, source))
        assert not not_enough, f"{user} cannot read {len(not_enough)} that are open: {not_enough[:20]}"


def missing_from(
    seen: set[str], allowed: set[str], whole: set[str], grown: Grown, inside: dict[str, str], source: Path,
) -> set[str]:
    """Return open paths that the mount does not let the user read, so that showing nothing fails the test.

    Paths with access lists, containers with several owners and links do not count: the mount may close more of them.
    """
    def is_listed(path: str) -> bool:
        return any(str(above) in grown.listed for above in (Path(path), *Path(path).parents))

    owners = {path: {os.stat(source / path).st_gid << 32 | os.stat(source / path).st_uid}
              for path in grown.containers}
    simple = {path for path in whole if not any(map(is_listed, grown.containers[path][0]))
              and len(set.union(*(owners[part] for part in grown.containers[path][0]))) == 1}
    wanted = {path for path in grown.plain if path in allowed and not is_listed(path)
              and not os.path.islink(source / path)}
    wanted |= {path for path, container in inside.items() if container in simple}
    assert len(wanted) > len(grown.plain) // 4, "almost nothing is open: these trees show little"
    return wanted - seen

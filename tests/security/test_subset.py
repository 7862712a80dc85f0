"""Nobody reads through a mount what he could not read without it: one mount of many random trees, several users.

Each tree comes from its number, so that a failure names all that is needed to look at it again.
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

TREES = (50, pytest.param(1000, marks=pytest.mark.slow))


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
    """Those that can be read. Each is asked for by name: who may enter a folder need not be able to list it."""
    return {path for path in paths if can_open(f"{root}/{path}")}


def below_links(source: Path, grown: Grown) -> list[str]:
    """Names behind the links that lead to folders or containers: a way to files that has other folders on it."""
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
        assert not too_much, f"{user} reads {len(too_much)} that are closed to him: {too_much[:20]}"
        not_enough = sorted(missing_from(seen, allowed, whole, grown, inside, source))
        assert not not_enough, f"{user} is kept from {len(not_enough)} that are open to him: {not_enough[:20]}"


def missing_from(
    seen: set[str], allowed: set[str], whole: set[str], grown: Grown, inside: dict[str, str], source: Path,
) -> set[str]:
    """What has to be readable through the mount and is not, so that no mount passes by showing nothing.

    Access lists take away more than they have to, and so do several owners of one container; a link that leads into
    a container, or to one by the way of its file, is another thing there.
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
    assert len(wanted) > len(grown.plain) // 4, "next to nothing is open to him: these trees show little"
    return wanted - seen

"""A mount never lets a user read what is closed to that user in the source: one mount of many random trees.

They have files, folders, links, modes, access lists, owners and containers. Each tree is made from its number, so the
paths of a failure are enough to reproduce it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.security.conftest import Shared
from tests.security.places import (
    ACL,
    GROUP_OBJ,
    MASK,
    NOBODY_IN_PARTICULAR,
    OTHER,
    USER,
    USER_OBJ,
    access_list,
    can_open,
    make_folder,
    set_access,
    write_episode,
    write_file,
    write_store,
)
from tests.security.users import Child, User

TREES = 600
USERS = (User(54321, 54321), User(54322, 54321, (54323,)), User(54323, 54324))
OWNERS = (User(0, 0), *USERS, User(54322, 54324), User(0, 54321))
FILE_MODES = (0o644, 0o644, 0o644, 0o600, 0o640, 0o604, 0o444, 0o000, 0o400, 0o664, 0o755, 0o044)
FOLDER_MODES = (0o755, 0o755, 0o755, 0o755, 0o700, 0o711, 0o744, 0o750, 0o705, 0o555, 0o071)
DEPTH = 3


INSIDE_STORE = ("word.npy",)
INSIDE_PART = ("signal/word.npy", "meta/episode.json")
INSIDE_MANIFEST = ("signal/word.npy", "chunks/0001/signal/word.npy", "meta/manifest.json")


@dataclass
class Grown:
    """Paths below the root.

    ``plain``: files, folders and links. ``containers``: the files that each is made of, and paths inside it.
    ``listed``: paths with an access list.
    """

    plain: list[str] = field(default_factory=list)
    containers: dict[str, tuple[list[str], tuple[str, ...]]] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)


class Gardener:
    """Make trees below ``root``, each from its own seed."""

    def __init__(self, root: Path, templates: Path, has_access_lists: bool) -> None:
        self.grown = Grown()
        self._root, self._has_access_lists = root, has_access_lists
        self._random = random.Random()
        # Containers to copy, as writing thousands would take a minute.
        self._store = write_store(templates / "store.kas")
        manifest, parts = write_episode(templates, "long", b"a word of some length")
        self._episode = manifest, *parts

    def grow(self, seed: int) -> None:
        self._random.seed(seed)
        name = f"{seed:04d}"
        (self._root / name).mkdir()
        self._fill(name, 0)
        self._finish(name, FOLDER_MODES if self._random.random() < 0.3 else (0o755,))

    def _fill(self, folder: str, depth: int) -> None:
        for number in range(self._random.randint(1, 4)):
            kinds = ["file", "link", "store", *(["folder", "folder"] if depth < DEPTH else [])]
            kind = self._random.choice([*kinds, *(["episode"] if number == 0 else [])])
            path = f"{folder}/{kind}{number}"
            if kind == "folder":
                (self._root / path).mkdir()
                self._fill(path, depth + 1)
                self._finish(path, FOLDER_MODES)
            elif kind == "file":
                (self._root / path).write_bytes(b"plain")
                self._finish(path, FILE_MODES)
            elif kind == "store":
                shutil.copyfile(self._store, self._root / path)
                self._finish(path, FILE_MODES, is_plain=False)
                self.grown.containers[path] = [path], INSIDE_STORE
            elif kind == "link":
                os.symlink(self._target(folder), self._root / path)
                self.grown.plain.append(path)
            else:
                self._add_episode(folder)

    def _add_episode(self, folder: str) -> None:
        files = []
        is_open = self._random.random() < 0.4
        for template in self._episode:
            path = f"{folder}/{template.name}"
            shutil.copyfile(template, self._root / path)
            self._finish(path, (0o644,) if is_open else FILE_MODES, is_plain=False)
            files.append(path)
        self.grown.containers[files[0]] = files, INSIDE_MANIFEST
        for path in files[1:]:
            self.grown.containers[path] = [path], INSIDE_PART

    def _finish(self, path: str, modes: tuple[int, ...], is_plain: bool = True) -> None:
        """Set owner, mode and perhaps an access list; of a folder after its contents are written."""
        chosen, place = self._random, self._root / path
        owner = chosen.choice(OWNERS) if chosen.random() < 0.5 else OWNERS[0]
        os.chown(place, owner.uid, owner.gid)
        place.chmod(chosen.choice(modes))
        if self._has_access_lists and chosen.random() < 0.08:
            plain = [(tag, chosen.randrange(8), NOBODY_IN_PARTICULAR) for tag in (USER_OBJ, GROUP_OBJ, MASK, OTHER)]
            named = (USER, chosen.randrange(8), chosen.choice(USERS).uid)
            os.setxattr(place, ACL, access_list([*plain, named]))
            self.grown.listed.add(path)
        if is_plain:
            self.grown.plain.append(path)

    def _target(self, folder: str) -> str:
        """Return a link target: an existing or missing path inside or outside of the tree, or a special name."""
        chosen = self._random
        known = [*self.grown.plain[-12:], *list(self.grown.containers)[-8:]]
        if known and chosen.random() < 0.7:
            target = chosen.choice(known)
            if chosen.random() < 0.3:
                target += chosen.choice(("/word.npy", "/..", "/../../file0", "/store1", "/file0"))
            return os.path.relpath(self._root / target, self._root / folder)
        return chosen.choice(("..", ".", "file0", "folder1/file0", "../../../closed/text", "nowhere",
                              f"{self._root.parent}/closed/text", f"{self._root.parent}/open/text"))


@pytest.fixture
def source(place: Path, source: Path) -> Path:
    make_folder(place / "closed", 0o700)
    make_folder(place / "open")
    for folder in ("closed", "open"):
        write_file(place / folder / "text", "outside of the source")
    return source


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
def test_random_trees(shared: Shared, place: Path, source: Path) -> None:
    gardener = Gardener(source, make_folder(place / "made"), has_access_lists(place))
    for seed in range(TREES):
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

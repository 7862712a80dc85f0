"""Random trees of files, folders, links, modes, access lists, owners and containers, for the property test."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.security.places import (
    ACL,
    GROUP_OBJ,
    MASK,
    NOBODY_IN_PARTICULAR,
    OTHER,
    USER,
    USER_OBJ,
    access_list,
    write_episode,
    write_store,
)
from tests.security.users import User

USERS = (User(54321, 54321), User(54322, 54321, (54323,)), User(54323, 54324))
OWNERS = (User(0, 0), *USERS, User(54322, 54324), User(0, 54321))
FILE_MODES = (0o644, 0o644, 0o644, 0o600, 0o640, 0o604, 0o444, 0o000, 0o400, 0o664, 0o755, 0o044)
FOLDER_MODES = (0o755, 0o755, 0o755, 0o755, 0o700, 0o711, 0o744, 0o750, 0o705, 0o555, 0o071)
DEPTH = 3


@dataclass
class Templates:
    """Containers to copy, as writing thousands would take a minute."""

    store: Path
    manifest: Path
    parts: list[Path]

    @classmethod
    def written(cls, folder: Path) -> Templates:
        manifest, parts = write_episode(folder, "long", b"a word of some length")
        return cls(write_store(folder / "store.kas"), manifest, parts)


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

    def __init__(self, root: Path, templates: Templates, has_access_lists: bool) -> None:
        self.grown = Grown()
        self._root, self._templates, self._has_access_lists = root, templates, has_access_lists
        self._random = random.Random()

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
                shutil.copyfile(self._templates.store, self._root / path)
                self._finish(path, FILE_MODES, is_plain=False)
                self.grown.containers[path] = [path], INSIDE_STORE
            elif kind == "link":
                os.symlink(self._target(folder), self._root / path)
                self.grown.plain.append(path)
            else:
                self._episode(folder)

    def _episode(self, folder: str) -> None:
        templates, files = self._templates, []
        is_open = self._random.random() < 0.4
        for template in (templates.manifest, *templates.parts):
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

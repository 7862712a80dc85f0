"""Private folders: no other user can redirect the path, and nothing changes that was there before."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from glassfs.errors import Refused
from glassfs.persistent import private
from tests.security.namespaces import enter_user_namespace
from tests.security.users import STRANGER, as_user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="folders of other users take root")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with ``home``, ``shared``, which all may write to, and ``sticky``, which is like /tmp."""
    tmp_path.chmod(0o755)
    for name, mode in (("home", 0o755), ("shared", 0o777), ("sticky", 0o1777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    return tmp_path


def modes(base: Path) -> dict[str, int]:
    return {os.fspath(path.relative_to(base)): path.lstat().st_mode for path in base.rglob("*")}


def reached(path: Path, made: int = 0) -> Path:
    descriptor = private.opened(os.fspath(path), made)
    try:
        os.listdir(descriptor)
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def refusal(path: Path, made: int = 2) -> str:
    with pytest.raises(Refused) as raised:
        private.opened(os.fspath(path), made)
    return str(raised.value)


@pytest.mark.parametrize("made", [1, 2, 3])
def test_only_the_last_folders_are_made_and_are_private(base: Path, made: int) -> None:
    path = base / "home/a/b/c"
    Path(base, *path.relative_to(base).parts[:-made]).mkdir(parents=True, exist_ok=True)
    before, mask = modes(base), os.umask(0)
    try:
        assert reached(path, made) == path
    finally:
        os.umask(mask)
    after = modes(base)
    new = {name: stat.S_IMODE(after.pop(name)) for name in after.keys() - before.keys()}
    assert list(new.values()) == [0o700] * made and after == before
    assert reached(path) == path
    with pytest.raises(FileNotFoundError):
        private.opened(os.fspath(base / "home/x/y"), 1)
    assert not (base / "home/x").exists()


def test_links_that_no_other_user_can_change_are_followed(base: Path) -> None:
    (base / "disk/cache").mkdir(parents=True)
    (base / "home/.cache").symlink_to("../disk/./cache")
    (base / "link").symlink_to(base / "home")
    assert reached(base / "link/.cache/glassfs", 1) == base / "disk/cache/glassfs"
    (base / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        private.opened(os.fspath(base / "loop/glassfs"), 1)


@pytest.mark.parametrize("shared", ["shared", "sticky"])
def test_links_where_other_users_can_write_are_refused(base: Path, shared: str) -> None:
    (base / "target").mkdir(0o755)
    (base / shared / "link").symlink_to(base / "target")
    before = modes(base)
    assert "other users can write to" in refusal(base / shared / "link/glassfs")
    (base / "home/link").symlink_to(base / shared / "link")
    before["home/link"] = modes(base)["home/link"]
    assert "other users can write to" in refusal(base / "home/link/glassfs")
    assert modes(base) == before


def test_sticky_folders_may_hold_private_ones(base: Path) -> None:
    assert reached(base / "sticky/cache", 1) == base / "sticky/cache"
    assert refusal(base / "shared/cache") == f"other users can write to {base}/shared"


@needs_root
@pytest.mark.parametrize("name", ["home/cache", "sticky/mine/cache"])
def test_folders_below_one_of_another_user_are_refused(base: Path, name: str) -> None:
    path = base / name
    path.parent.mkdir(exist_ok=True)
    os.chown(path.parent, STRANGER.uid, STRANGER.gid)
    before = modes(base)
    assert refusal(path) == f"{path.parent} belongs to another user"
    os.symlink(path.parent, base / "link")
    assert refusal(base / "link/cache") == f"{path.parent} belongs to another user"
    os.unlink(base / "link")
    assert modes(base) == before


def test_group_may_write_if_it_has_no_other_members(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many systems give each user a group, and a umask of 002."""
    (base / "home").chmod(0o775)
    user = pwd.struct_passwd(("someone", "x", os.geteuid(), os.getegid(), "", "", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: user)
    for name, members, is_private in (
        ("someone", [], True), ("someone", ["someone"], True), ("someone", ["another"], False), ("users", [], False),
    ):
        group = grp.struct_group((name, "x", os.getegid(), members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        if is_private:
            assert reached(base / "home/cache", 1)
        else:
            assert refusal(base / "home/cache") == f"other users can write to {base}/home"


@needs_root
def test_user_namespaces_show_the_root_of_the_system_as_nobody() -> None:
    """A container of an ordinary user: there ``/`` belongs to a number that stands for all users it lacks."""

    def inside() -> bool:
        try:
            enter_user_namespace(STRANGER.uid)
        except OSError:
            return False
        assert os.geteuid() == 0 != os.stat("/").st_uid
        assert reached(Path(place, "cache"), 1) == Path(place, "cache")
        return True

    with tempfile.TemporaryDirectory(prefix="glassfs-private-") as place:
        os.chown(place, STRANGER.uid, STRANGER.gid)
        if not as_user(inside):
            pytest.skip("users cannot make user namespaces")

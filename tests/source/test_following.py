"""Links out of a source are followed to files of the same user, and only where no other user could change them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassfs.errors import Changed, GlassfsError, NotAllowed, NotFound
from glassfs.source import Kind, following
from glassfs.source.local import LocalStore
from glassfs.source.mountinfo import Mount
from tests.security.users import STRANGER

DATA = b"the bytes of a blob"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The layout of a download by Hugging Face: a snapshot has nothing but links to blobs beside it."""
    os.umask(0o022)
    tmp_path.chmod(0o755)
    root = tmp_path / "models--a--b"
    (root / "blobs").mkdir(parents=True)
    (root / "snapshots/0123").mkdir(parents=True)
    (root / "blobs/4d7a").write_bytes(DATA)
    (root / "snapshots/0123/model.kas").symlink_to("../../blobs/4d7a")
    return root


@pytest.fixture
def snapshot(repository: Path) -> Path:
    return repository / "snapshots/0123"


def reason(snapshot: Path, name: str = "model.kas") -> str:
    """Assert that a link is not followed, by a listing and by an open, and return what is said of it."""
    store = LocalStore(snapshot, follows=True)
    entry = store.entry((name,))
    assert entry.kind is Kind.LINK and dict(store.list(()))[name] == entry
    with pytest.raises(GlassfsError):
        store.open((name,))
    start = f"link out of the source: {entry.target}: "
    assert entry.omitted.startswith(start)
    return entry.omitted.removeprefix(start)


def test_a_followed_link_is_the_file(repository: Path, snapshot: Path) -> None:
    store = LocalStore(snapshot, follows=True)
    blob = LocalStore(repository).entry(("blobs", "4d7a"))
    entry = store.entry(("model.kas",))
    assert entry == blob._replace(has_other_names=True)
    assert dict(store.list(())) == {"model.kas": entry}
    assert store.entries((), ["model.kas", "none"]) == [entry, None]
    with_bytes = store.open(("model.kas",))
    assert (with_bytes.read(0, len(DATA)), with_bytes.entry.version) == (DATA, entry.version)
    with_bytes.park()
    assert with_bytes.read(4, 5) == DATA[4:9]


def test_a_link_that_leads_elsewhere_is_another_version(repository: Path, snapshot: Path) -> None:
    store = LocalStore(snapshot, follows=True)
    before = store.open(("model.kas",))
    before.park()
    (repository / "blobs/new").write_bytes(DATA)
    (snapshot / "next").symlink_to("../../blobs/new")
    (snapshot / "next").replace(snapshot / "model.kas")
    assert store.entries((), ["model.kas"]) == [store.entry(("model.kas",))]
    assert store.entry(("model.kas",)).version != before.version
    with pytest.raises(Changed):
        before.read(0, 1)


def test_without_the_permission_no_link_is_followed(snapshot: Path) -> None:
    store = LocalStore(snapshot)
    entry = store.entry(("model.kas",))
    assert (entry.kind, "-o follow_links" in entry.omitted) == (Kind.LINK, True)
    with pytest.raises(NotFound):
        store.open(("model.kas",))


def test_links_inside_stay_links(snapshot: Path) -> None:
    (snapshot / "plain").write_bytes(DATA)
    for name, target in (("inside", "plain"), ("long", f"../0123/{'./' * 3}plain"), ("absolute", f"{snapshot}/plain")):
        (snapshot / name).symlink_to(target)
        for follows in (False, True):
            entry = LocalStore(snapshot, follows=follows).entry((name,))
            assert (entry.kind, entry.target, entry.omitted) == (Kind.LINK, target, "")


def test_links_on_the_way_are_followed(repository: Path, snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(repository / "blobs")
    (repository / "blobs/other name").symlink_to("4d7a")
    (snapshot / "chain").symlink_to(tmp_path / "cache/../blobs/other name")
    assert LocalStore(snapshot, follows=True).open(("chain",)).read(0, 9) == DATA[:9]


def test_what_is_no_file_is_named(repository: Path, snapshot: Path) -> None:
    os.mkfifo(repository / "pipe")
    for name, target in (
        ("folder", "../../blobs"), ("up", ".."), ("fifo", "../../pipe"),
        ("through", "../../blobs/4d7a/x"), ("loop", "../../loop"),
    ):
        (snapshot / name).symlink_to(target)
    (repository / "loop").symlink_to("loop")
    assert reason(snapshot, "folder") == f"{repository}/blobs is a folder, which has to be named itself"
    assert reason(snapshot, "up") == f"{repository}/snapshots is a folder, which has to be named itself"
    assert reason(snapshot, "fifo") == f"{repository}/pipe is not a regular file"
    assert reason(snapshot, "through") == "Not a directory"
    assert reason(snapshot, "loop") == "Too many levels of symbolic links"


def test_a_link_to_nothing_leaves_nothing_out(snapshot: Path) -> None:
    (snapshot / "gone").symlink_to("../../blobs/none")
    store = LocalStore(snapshot, follows=True)
    assert (store.entry(("gone",)).kind, store.entry(("gone",)).omitted) == (Kind.LINK, "")
    with pytest.raises(NotFound):
        store.open(("gone",))


def test_no_descriptor_stays_open(repository: Path, snapshot: Path) -> None:
    (snapshot / "gone").symlink_to("../../blobs/none")
    store = LocalStore(snapshot, follows=True)
    store.entry(("model.kas",))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        list(store.list(()))
        store.open(("model.kas",)).close()
    # Threads of other tests may open or close some meanwhile.
    assert len(os.listdir("/proc/self/fd")) < before + 50


def own(path: Path) -> None:
    os.chown(path, STRANGER.uid, STRANGER.gid, follow_symlinks=False)


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "link of another user": (lambda root: own(root / "snapshots/0123/model.kas"), "model.kas belongs to"),
    "file of another user": (lambda root: own(root / "blobs/4d7a"), "blobs/4d7a belongs to"),
    "folder of another user": (lambda root: own(root / "blobs"), "blobs belongs to"),
    "folder on the way up": (lambda root: own(root / "snapshots"), "snapshots belongs to"),
    "link's folder": (lambda root: own(root / "snapshots/0123"), "snapshots/0123 belongs to"),
    "open folder": (lambda root: (root / "blobs").chmod(0o777), "others may write in"),
    "open folder of the link": (lambda root: (root / "snapshots/0123").chmod(0o757), "others may write in"),
    "folder of a group": (lambda root: (os.chown(root / "blobs", -1, 7), (root / "blobs").chmod(0o775)), "others may"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_links_with_a_hand_of_others_are_not_followed(repository: Path, snapshot: Path, attack: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to other users")
    change, expected = ATTACKS[attack]
    assert LocalStore(snapshot, follows=True).entry(("model.kas",)).kind is Kind.FILE
    change(repository)
    assert expected in reason(snapshot)


def test_a_link_of_others_on_the_way_is_not_followed(repository: Path, snapshot: Path, tmp_path: Path) -> None:
    """They would choose among the files of the user."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to other users")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "way").symlink_to(repository / "blobs")
    (snapshot / "chain").symlink_to(theirs / "way/4d7a")
    own(theirs / "way")
    assert reason(snapshot, "chain") == f"{theirs}/way belongs to another user"
    theirs.chmod(0o1777)  # as /tmp
    assert reason(snapshot, "chain") == f"{theirs}/way belongs to another user"
    (theirs / "ours").symlink_to(repository / "blobs")
    (snapshot / "other").symlink_to(theirs / "ours/4d7a")
    assert LocalStore(snapshot, follows=True).entry(("other",)).kind is Kind.FILE


def test_file_systems_that_others_mounted_are_not_trusted(
    repository: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They report whatever owners and modes their user likes."""
    device = os.stat(repository).st_dev
    mount = Mount(str(repository), f"{os.major(device)}:{os.minor(device)}", "fuse.sshfs", "host:", STRANGER.uid)
    monkeypatch.setattr(following, "_is_fuse", lambda folder: True)
    monkeypatch.setattr(following, "mounts", lambda: iter([mount]))
    assert reason(snapshot) == f"{snapshot} is on a file system that another user has mounted"
    monkeypatch.setattr(following, "mounts", lambda: iter([replace(mount, user=os.geteuid())]))
    assert LocalStore(snapshot, follows=True).entry(("model.kas",)).kind is Kind.FILE


@pytest.mark.parametrize("swapped", ["file", "folder", "link"])
def test_names_that_are_swapped_meanwhile_gain_nothing(
    repository: Path, snapshot: Path, swapped: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Swap a component for a link to a secret right after its folder was checked, and before it is opened."""
    secret = repository / "secret"
    secret.mkdir()
    (secret / "4d7a").write_bytes(b"secret")
    names = {"file": ("blobs/4d7a", "secret/4d7a"), "folder": ("blobs", "secret"), "link": ("snapshots/0123", "secret")}
    path, target = repository / names[swapped][0], repository / names[swapped][1]
    checked, real, was_swapped = [], following._demand_safe, []

    def check(folder: int, at: str, name: str) -> None:
        real(folder, at, name)
        checked.append(at)
        if at == str(path.parent if swapped != "link" else path) and not was_swapped:
            was_swapped.append(at)
            path.rename(f"{path}.moved")
            path.symlink_to(os.path.relpath(target, path.parent))
            if os.geteuid() == 0:
                own(path)

    monkeypatch.setattr(following, "_demand_safe", check)
    store = LocalStore(snapshot, follows=True)
    try:
        found = store.open(("model.kas",)).read(0, 6)
    except (NotAllowed, Changed, NotFound):
        found = b""
    assert was_swapped
    assert found in (b"", DATA[:6]) or os.geteuid() != 0


def test_a_file_that_is_swapped_before_its_open_is_not_read(
    repository: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = following.walked

    def walked(*words: Any) -> Any:
        reached = real(*words)
        (repository / "blobs/new").write_bytes(b"of another user")
        (repository / "blobs/new").replace(repository / "blobs/4d7a")
        return reached

    monkeypatch.setattr(following, "walked", walked)
    with pytest.raises(Changed):
        LocalStore(snapshot, follows=True).open(("model.kas",))

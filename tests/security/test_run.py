"""``glassfs run`` of an ordinary user: in a user namespace and, where that is forbidden, by fusermount3."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mount.mounts import COMMAND
from tests.security.places import make_folder, write_store
from tests.security.test_unprivileged import AS_NOBODY, WORD, point, printed, run_in_namespace  # noqa: F401
from tests.security.test_workers import write_numbers
from tests.security.users import STRANGER
from tests.waiting import wait_until

RUN = f'export TMPDIR="$2"; {" ".join(COMMAND)} run'
AS_STRANGER = ("setpriv", "--reuid", str(STRANGER.uid), "--regid", str(STRANGER.gid), "--clear-groups")
IN_CHROOT = ("sh", "-c", 'mkdir "$TREE" && mount --rbind / "$TREE" && exec chroot "$TREE" "$@"', "sh")
"""In a changed root no user namespace can be made."""


def test_nothing_is_gained_in_the_namespace(place: Path, point: Path) -> None:  # noqa: F811
    """The user stays who it was, without capabilities, and cannot read more than before."""
    data = make_folder(place / "data", 0o755)
    write_store(data / "store.kas", WORD)
    for owner, name in ((STRANGER.uid, "own.kas"), (0, "closed.kas")):
        write_store(data / name, WORD)
        os.chmod(data / name, 0)
        os.chown(data / name, owner, owner)
    write_numbers(data / "a.h5")
    script = f"""
        {RUN} "$1" -- sh -c 'id -u; id -g; grep CapEff /proc/self/status; ls {{}}; cat {{}}/a.h5/group/x.npy | wc -c
            for name in own closed; do cat {{}}/$name.kas {{}}/$name.kas/word.npy 2>/dev/null && echo $name read; done
            cat {{}}/store.kas/word.npy | tail -c {len(WORD)}; echo; grep -c " {{}} " /proc/self/mountinfo'
    """
    words = printed(place, script, data, point, words=AS_STRANGER)
    uid, gid, capabilities, *names, size, word, mounts = words
    assert (uid, gid) == (str(STRANGER.uid), str(STRANGER.gid))
    assert int(capabilities.split()[1], 16) == 0
    assert "own read" not in names and "closed read" not in names and int(size) > 0
    assert (word, mounts) == (WORD.decode(), "1")
    wait_until(lambda: not os.listdir(point))


def test_files_of_the_user_s_further_groups_are_readable(place: Path, point: Path) -> None:  # noqa: F811
    """The user namespace has none of them."""
    data = make_folder(place / "data", 0o750)
    write_store(data / "store.kas", WORD, 0o640)
    for path in (data, data / "store.kas"):
        os.chown(path, 0, STRANGER.gid + 1)
    script = f'{RUN} -o auto_unmount "$1" -- sh -c "ls {{}}; tail -c {len(WORD)} {{}}/store.kas/word.npy"'
    lines = printed(place, script, data, point, words=(*AS_STRANGER[:-1], "--groups", str(STRANGER.gid + 1)))
    assert lines == ["store.kas", WORD.decode()]


@pytest.mark.parametrize("victim", ["none", "command", "daemon"])
def test_ordinary_mount_where_namespaces_are_forbidden(
    place: Path, point: Path, monkeypatch: pytest.MonkeyPatch, victim: str,  # noqa: F811
) -> None:
    """It is unmounted at the end, and its directory removed, whatever is killed."""
    os.chown(point, 65534, 65534)
    monkeypatch.setenv("TREE", str(place / "tree"))
    script = f"""
        {RUN} "$1" -- sh -c '
            pid=$(sed -n "s/.*\\"pid\\": \\([0-9]*\\).*/\\1/p" {{}}/.glassfs/status.json)
            grep -c " $(readlink -f {{}}) " /proc/self/mountinfo
            case "$1" in command) kill -9 $$;; daemon) kill -9 $pid;; esac' sh "$3" 2>/dev/null || true
        for _ in $(seq 600); do if [ -z "$(ls -A "$2")" ]; then echo removed; break; fi; sleep 0.1; done
        grep -c "$2/" /proc/self/mountinfo || true
    """
    lines = printed(place, script, place / "store.kas", point, victim, words=(*IN_CHROOT, *AS_NOBODY))
    assert lines == ["1", "removed", "0"]


@pytest.mark.parametrize("lack", ["programs", "device"])
def test_what_is_missing_is_said_in_one_sentence(
    place: Path, point: Path, monkeypatch: pytest.MonkeyPatch, lack: str,  # noqa: F811
) -> None:
    monkeypatch.setenv("TREE", str(place / "tree"))
    (make_folder(place / "tools", 0o755) / "sh").symlink_to("/bin/sh")
    script, mode = f'PATH="$3"; {RUN} "$1" -- true', 0o600 if lack == "device" else 0o666
    status, output, errors = run_in_namespace(
        place, script, place / "store.kas", point, place / "tools", mode=mode, words=(*IN_CHROOT, *AS_STRANGER),
    )
    assert (status, output, errors.count("\n")) == (125, "", 1)
    if lack == "device":
        assert "/dev/fuse cannot be opened (Permission denied)" in errors
    else:
        assert "fusermount3 is not installed" in errors
    assert "unshare(2): Operation not permitted" in errors
    wait_until(lambda: not os.listdir(point))

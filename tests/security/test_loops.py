"""A3: a source that contains the mount itself. The daemon reads through no mount of glassfs and cannot deadlock."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.security.daemons import Daemon
from tests.security.namespaces import bind, in_own_namespace
from tests.security.places import make_folder, write_file, write_store
from tests.security.users import Child


def mount(source: Path, at: Path) -> Daemon:
    log = source.with_name(f"{source.name}.log")  # not beside the mount point, which may be in a source
    return Daemon([source], at, options=["allow_other"], log=log)


def found_below(root: Path) -> list[str]:
    """Return what find(1) prints below the root, sorted, without the mount's own directory."""
    done = subprocess.run(["find", str(root), "-ls"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    names = subprocess.run(["find", str(root), "-mindepth", "1", "-printf", "%P\n"], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return sorted(name for name in names if not name.startswith(".glassfs"))


def bounded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a child, which is released when the daemons end if it hangs."""
    return Child(function, *arguments).result()


@pytest.mark.slow
def test_mount_bound_into_its_own_source(fuse: None, place: Path, source: Path) -> None:
    """The bind mount comes after mounting, so checks of the mount point cannot find it."""
    write_file(source / "file", "text")
    make_folder(source / "m")

    def inside() -> list[str]:
        with mount(source, make_folder(place / "mnt")) as daemon:
            bind(daemon.path, source / "m")
            found: list[str] = bounded(found_below, daemon.path)
            assert bounded(os.statvfs, daemon.path).f_blocks >= 0
            assert bounded((daemon.path / "file").read_text) == "text"
            return found

    assert in_own_namespace(inside) == ["file", "m"]


@pytest.mark.slow
def test_two_mounts_in_the_source_of_each_other(fuse: None, place: Path) -> None:
    one, other = make_folder(place / "one"), make_folder(place / "other")
    for folder, point in ((one, "n"), (other, "m")):
        write_store(folder / "store.kas")
        make_folder(folder / point)

    def inside() -> tuple[list[str], list[str]]:
        with mount(one, other / "m") as first, mount(other, one / "n") as second:
            return bounded(found_below, first.path), bounded(found_below, second.path)

    assert in_own_namespace(inside) == (["n", "store.kas", "store.kas/word.npy"],
                                        ["m", "store.kas", "store.kas/word.npy"])


def test_another_glassfs_mount_is_an_empty_directory(fuse: None, place: Path, source: Path) -> None:
    """Its daemon may hang or belong to an attacker. Bind mounts of it are treated alike, those of folders are shown."""
    inner = make_folder(place / "inner")
    write_store(inner / "store.kas")
    for name in ("mounted", "bound", "folder"):
        make_folder(source / name)
    write_file(source / "bound file", "")

    def inside() -> list[str]:
        bind(inner, source / "folder")
        with mount(inner, source / "mounted") as within, mount(source, make_folder(place / "m")) as daemon:
            bind(within.path / "store.kas", source / "bound")
            bind(within.path / "store.kas/word.npy", source / "bound file")
            os.kill(within.pid, signal.SIGSTOP)
            try:
                names: list[str] = bounded(found_below, daemon.path)
                return names
            finally:
                os.kill(within.pid, signal.SIGCONT)

    assert [name for name in in_own_namespace(inside) if name != "bound file"] == [
        "bound", "folder", "folder/store.kas", "folder/store.kas/word.npy", "mounted",
    ]

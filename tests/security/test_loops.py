"""A3: a source that contains the mount itself. The daemon reads through no mount of glassfs and cannot deadlock."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.security.daemons import Daemon
from tests.security.namespaces import bind, in_own_namespace
from tests.security.places import make_folder, write_file, write_store
from tests.security.users import Child


@contextmanager
def mount(source: Path, at: Path) -> Iterator[Daemon]:
    log = source.with_name(f"{source.name}.log")  # not beside the mount point, which may be in a source
    daemon = Daemon([source], at, options=["allow_other"], log=log)
    try:
        yield daemon
    finally:
        daemon.end()


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
def test_mount_bound_into_its_own_source(fuse: None, place: Path) -> None:
    """The bind mount comes after mounting, so checks of the mount point cannot find it."""
    source = make_folder(place / "source")
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
        with ExitStack() as stack:
            first = stack.enter_context(mount(one, other / "m"))
            second = stack.enter_context(mount(other, one / "n"))
            return bounded(found_below, first.path), bounded(found_below, second.path)

    assert in_own_namespace(inside) == (["n", "store.kas", "store.kas/word.npy"],
                                        ["m", "store.kas", "store.kas/word.npy"])


def test_another_glassfs_mount_is_an_empty_directory(fuse: None, place: Path) -> None:
    """Its daemon may hang or belong to an attacker. Bind mounts of it are treated alike."""
    source, inner = make_folder(place / "source"), make_folder(place / "inner")
    write_store(inner / "store.kas")
    for name in ("mounted", "bound", "folder"):
        make_folder(source / name)
    write_file(source / "bound file", "")
    write_file(source / "folder/file", "text")

    def inside() -> list[str]:
        with mount(inner, source / "mounted") as within, mount(source, make_folder(place / "m")) as daemon:
            bind(within.path / "store.kas", source / "bound")
            bind(within.path / "store.kas/word.npy", source / "bound file")
            os.kill(within.pid, signal.SIGSTOP)
            try:
                names: list[str] = bounded(found_below, daemon.path)
                return names
            finally:
                os.kill(within.pid, signal.SIGCONT)

    found = in_own_namespace(inside)
    assert [name for name in found if name != "bound file"] == ["bound", "folder", "folder/file", "mounted"]


@pytest.mark.slow
def test_other_mounts_in_a_source_are_shown(fuse: None, place: Path) -> None:
    """A bind mount of an ordinary folder is listed like any folder."""
    source, inner = make_folder(place / "source"), make_folder(place / "inner")
    write_store(inner / "store.kas")
    make_folder(source / "bound")

    def inside() -> list[str]:
        bind(inner, source / "bound")
        with mount(source, make_folder(place / "m")) as daemon:
            found: list[str] = bounded(found_below, daemon.path)
            return found

    assert in_own_namespace(inside) == ["bound", "bound/store.kas", "bound/store.kas/word.npy"]

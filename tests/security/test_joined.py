"""S5: a table over a folder shows what every user may read, and nothing else."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from glassfs.tree.sources.walk import DEEPEST
from tests.security.conftest import Shared
from tests.security.places import give, make_folder, read_or_refusal, set_access
from tests.security.users import STRANGER, User, as_user
from tests.waiting import wait_until

SECRET = "secret-of-root"


def write_take(path: Path, task: str, mode: int = 0o644, owner: User | None = None) -> Path:
    with KinoWriter(path) as writer:
        writer.add_episode(np.zeros((2, 1), "<f4"), np.zeros((2, 1), "<f4"), task=task)
    return give(path, mode, owner)


@pytest.fixture
def filled(source: Path) -> Path:
    """Two containers that every user may read, and four that some users cannot read or reach."""
    write_take(source / "open.kdb", "open")
    write_take(make_folder(source / "folder") / "inner.kdb", "inner")
    write_take(source / "mode.kdb", SECRET, 0o600)
    write_take(make_folder(source / SECRET, 0o700) / "open.kdb", SECRET)
    write_take(make_folder(source / "searched", 0o711) / f"{SECRET}.kdb", SECRET)
    set_access(write_take(source / "listed.kdb", SECRET), 6, 4, 4, {STRANGER.uid: 0})
    return source


def shown(root: str) -> tuple[list[str], bytes, str]:
    """Return what joined files below a root show: containers, the number omitted, and all names and texts."""
    with open(f"{root}/episodes.jsonl", encoding="utf-8") as file:
        text = file.read()
    rows = [json.loads(line) for line in text.splitlines()]
    for name in ("episodes.jsonl", "episodes.parquet"):
        text += "".join(os.getxattr(f"{root}/{name}", one).decode() for one in os.listxattr(f"{root}/{name}"))
    parquet = read_or_refusal(f"{root}/episodes.parquet")
    assert isinstance(parquet, bytes)
    text += parquet.decode("latin-1") + Path(root, "index.html").read_text()
    for kind in ("by-task", "by-success"):
        for path, folders, names in os.walk(f"{root}/{kind}"):
            text += f"{path} {names} {[os.readlink(f'{path}/{name}') for name in folders if name.endswith('~0')]}"
    return [row["container"] for row in rows], os.getxattr(f"{root}/episodes.jsonl", "user.glassfs.omitted"), text


def test_joined_tables_omit_closed_containers(shared: Shared, filled: Path) -> None:
    daemon = shared(filled, options=["views=all"])
    for root in (daemon.path, daemon.path / ".glassfs/views"):
        for names, omitted, text in (as_user(shown, str(root)), shown(str(root))):
            assert names == ["folder/inner.kdb", "open.kdb"]
            assert omitted == b"4"
            assert SECRET not in text


def test_a_closed_root_lists_no_joined_tables(shared: Shared, filled: Path) -> None:
    filled.chmod(0o750)
    daemon = shared(filled, options=["views=all"])
    assert isinstance(as_user(read_or_refusal, f"{daemon.path}/episodes.jsonl"), int)
    assert {*os.listdir(daemon.path)} - {*os.listdir(filled)} <= {".glassfs"}
    with pytest.raises(PermissionError):
        os.stat(daemon.path / "episodes.jsonl")
    with pytest.raises(FileNotFoundError):  # it has no rows of trees, closed or not
        os.stat(daemon.path / "trees.jsonl")


def test_tables_of_closed_containers_are_refused(shared: Shared, source: Path) -> None:
    write_take(source / "run.kdb", SECRET, 0o600)
    daemon = shared(source, options=["views=all"])
    for root in (daemon.path, daemon.path / ".glassfs/views"):
        assert not {"episodes.parquet", "episodes.jsonl"} & {*as_user(os.listdir, root)}
        for name in ("episodes.parquet", "episodes.jsonl"):
            assert as_user(read_or_refusal, root / name) == errno.EACCES
            with pytest.raises(PermissionError):
                os.stat(root / name)
    give(source / "run.kdb", 0o644)
    wait_until(lambda: isinstance(as_user(read_or_refusal, daemon.path / "episodes.jsonl"), bytes))


def write_deep(source: Path) -> None:
    """Add folders whose way is long: the walk takes about a second, and snapshots are valid for ten."""
    deep = source
    for _ in range(DEEPEST - 5):
        deep = make_folder(deep / "d")
    for number in range(250):
        make_folder(deep / f"{number}")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["folder/run.kdb", "folder"])
def test_closed_containers_leave_joined_tables_within_a_second(shared: Shared, source: Path, closed: str) -> None:
    """A look-up is cached for half a second, the table is checked every 0.4 seconds; snapshots last much longer."""
    write_take(source / "open.kdb", "open")
    write_take(make_folder(source / "folder") / "run.kdb", SECRET)
    write_deep(source)
    daemon = shared(source, options=["views=all"])
    tables = [daemon.path / "episodes.jsonl", daemon.path / ".glassfs/views/episodes.jsonl"]

    def readable(seconds: float) -> bool:
        """Read as long as the rows are there, up to a time, and return whether they still are."""
        until = time.monotonic() + seconds
        while (found := any(SECRET in table.read_text() for table in tables)) and time.monotonic() < until:
            time.sleep(0.02)
        return found

    assert as_user(readable, 0.0)
    (source / closed).chmod(0o600)
    assert not as_user(readable, 1.5)
    assert [json.loads(line)["container"] for line in as_user(tables[0].read_text).splitlines()] == ["open.kdb"]
    assert as_user(os.listdir, f"{daemon.path}/by-task") == ["open"]

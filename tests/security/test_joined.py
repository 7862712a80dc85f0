"""S5: a table over a folder shows what every user may read, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from writers.kinodb import KinoWriter

from tests.security.conftest import Shared
from tests.security.places import give, make_folder, read_or_refusal, set_access
from tests.security.users import STRANGER, User, as_user

SECRET = "secret-of-root"


def write_take(path: Path, task: str, mode: int = 0o644, owner: User | None = None) -> Path:
    with KinoWriter(path) as writer:
        writer.add_episode(np.zeros((2, 1), "<f4"), np.zeros((2, 1), "<f4"), task=task)
    return give(path, mode, owner)


def made_source(place: Path) -> Path:
    """Make two containers that every user may read, and four that some users cannot read or reach."""
    source = make_folder(place / "source")
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
    text += parquet.decode("latin-1")
    for kind in ("by-task", "by-success"):
        for path, folders, names in os.walk(f"{root}/{kind}"):
            text += f"{path} {names} {[os.readlink(f'{path}/{name}') for name in folders if name.endswith('~0')]}"
    return [row["container"] for row in rows], os.getxattr(f"{root}/episodes.jsonl", "user.glassfs.omitted"), text


def test_joined_tables_omit_closed_containers(shared: Shared, place: Path) -> None:
    daemon = shared(made_source(place), options=["views=all"])
    for root in (daemon.path, daemon.path / ".glassfs/views"):
        for names, omitted, text in (as_user(shown, str(root)), shown(str(root))):
            assert names == ["folder/inner.kdb", "open.kdb"]
            assert omitted == b"4"
            assert SECRET not in text


def test_joined_tables_of_a_closed_root_are_empty(shared: Shared, place: Path) -> None:
    source = made_source(place)
    source.chmod(0o750)
    daemon = shared(source, options=["views=all"])
    assert as_user(read_or_refusal, f"{daemon.path}/episodes.jsonl") != b""
    names, omitted, text = shown(str(daemon.path))
    assert (names, omitted) == ([], b"6") and SECRET not in text

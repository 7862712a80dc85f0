"""Attacks on mounts that root made for other users. They need root, to become other users, and /dev/fuse."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.mount.mounts import require
from tests.security.daemons import Daemon, force_away
from tests.security.places import make_folder

Shared = Callable[..., Daemon]


@pytest.fixture(scope="session")
def fuse() -> None:
    """Skip the test where root cannot mount."""
    if os.geteuid() != 0:
        pytest.skip("only root can become other users")
    require()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own. Mounts left in it are removed."""
    folder = Path(tempfile.mkdtemp(prefix="glassfs-security-")).resolve()
    folder.chmod(0o755)
    yield folder
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split(" ")[4] for line in file]
    for point in reversed(points):
        if point.startswith(f"{folder}/"):
            force_away(Path(point))
    shutil.rmtree(folder)


@pytest.fixture
def source(place: Path) -> Path:
    """An empty folder to be mounted."""
    return make_folder(place / "source")


@pytest.fixture
def shared(fuse: None, place: Path) -> Iterator[Shared]:
    """``shared(source, …)``: a mount for all users, at ``at`` or at a new path, until the test ends."""
    daemons: list[Daemon] = []

    def mount(*sources: Path, options: Sequence[str] = (), at: Path | None = None, **more: object) -> Daemon:
        path = place / f"mnt{len(daemons)}" if at is None else at
        path.mkdir(exist_ok=True)
        log = place / f"log{len(daemons)}"
        given = ["allow_other", *options]
        daemon = Daemon(sources, path, options=given, log=log, **more)  # type: ignore[arg-type]
        daemons.append(daemon)
        return daemon

    yield mount
    for daemon in daemons:
        daemon.end()

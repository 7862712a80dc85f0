"""Fixtures of tests with LeRobot's own reader, over mounts and exports of the view ``lerobot``.

Nothing is asked of a hub, and what the package ``datasets`` keeps is in a folder of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lerobot import client
from tests.lerobot.recipes import EMBODIMENT, Episode, episode, write
from tests.mount.mounts import Mount, require

Mounting = Callable[[Path], Path]


@pytest.fixture(scope="session", autouse=True)
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        client.dataset_class()
        yield


@pytest.fixture(autouse=True)
def no_decoders(reader: None) -> Iterator[None]:
    """Close the videos that LeRobot keeps open: they keep mounts busy, and forked processes share their offsets."""
    yield
    client.close_videos()


@pytest.fixture(scope="session")
def mounted(reader: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounting]:
    """Mount a folder until the end of the session, and return the root of its dataset."""
    require()
    mounts: list[Mount] = []

    def mount(folder: Path) -> Path:
        place = tmp_path_factory.mktemp("mount")
        path = place / "mnt"
        path.mkdir()
        mounts.append(Mount([folder], path, place / "log", ["views=lerobot"]))
        return path / "lerobot" / EMBODIMENT

    yield mount
    for one in mounts:
        one.end()


@pytest.fixture(scope="session")
def written() -> list[Episode]:
    """Episodes in two containers: the second begins with the fourth."""
    return [
        episode(1), episode(2, 20, "手を伸ばす – öffne 🤖"), episode(3, 1, ""), episode(4, 15), episode(5, 30, "push"),
    ]


@pytest.fixture(scope="session")
def folder(written: list[Episode], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets")
    write(folder / "a.kdb", written[:3])
    write(folder / "b.kdb", written[3:])
    return folder


@pytest.fixture(scope="session")
def root(folder: Path, mounted: Mounting) -> Path:
    """The dataset of these episodes in a mount."""
    return mounted(folder)

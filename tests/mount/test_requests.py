"""Kernel requests as status.json counts them: nothing is asked twice, and unused nodes are released."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from tests.mount.conftest import Mounted
from tests.mount.connections import nodes_after_forgetting
from tests.mount.mounts import Mount
from tests.waiting import wait_until

STEPS = 200
TRIES = 5
KINDS = ("folder", "container")
CAMERA = "episodes/0/images/cam"
OPENINGS = ("OPEN", "RELEASE", "OPENDIR", "RELEASEDIR")
LISTINGS = ("READDIRPLUS", "READDIR")
RELEASES = ("FORGET", "BATCH_FORGET")
@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two containers of 200 different images each."""
    folder = tmp_path_factory.mktemp("video")
    for name in ("one.kdb", "two.kdb"):
        with KinoWriter(folder / name) as writer:
            images = ({"cam": np.full((8, 9, 3), number, np.uint8)} for number in range(STEPS))
            writer.add_episode(np.zeros((STEPS, 2), np.float32), np.zeros((STEPS, 1), np.float32), images=images)
    return folder


@pytest.fixture(scope="module")
def mounts(mounted: Mounted, video: Path) -> Iterator[dict[str, tuple[Mount, Path]]]:
    """A mount of the folder and a mount of one container, each with the directory of that container."""
    with ExitStack() as stack:
        folder, container = (stack.enter_context(mounted(source)) for source in (video, video / "one.kdb"))
        yield {"folder": (folder, folder.path / "one.kdb"), "container": (container, container.path)}


def requests(mount: Mount) -> Counter[str]:
    return Counter(mount.status()["requests"])


def requests_since(mount: Mount, before: Counter[str]) -> Counter[str]:
    """Return the requests since ``before``, without releases and those of reading the status."""
    own = Counter(LOOKUP=3, READ=1, GETATTR=1, FLUSH=1, IOCTL=1)
    since = requests(mount) - before - own
    return Counter({name: count for name, count in since.items() if name not in RELEASES})


def holds_once(condition: Callable[[], bool]) -> bool:
    """Return whether one of some tries succeeds: under memory pressure the kernel may drop its caches at any time."""
    return any(condition() for _ in range(TRIES))


@pytest.mark.parametrize("kind", KINDS)
def test_image_costs_one_read_and_no_open(mounts: dict[str, tuple[Mount, Path]], kind: str) -> None:
    mount, root = mounts[kind]
    images = sorted((root / CAMERA).iterdir())
    assert len(images) == STEPS

    def costs() -> Counter[str]:
        before = requests(mount)
        subprocess.run(["cat", *images], stdout=subprocess.DEVNULL, check=True)
        return requests_since(mount, before)

    found = costs()
    assert STEPS <= found["READ"] <= 1.05 * STEPS, found
    assert not any(found[name] for name in OPENINGS), found
    assert holds_once(lambda: not costs()["READ"])


@pytest.mark.parametrize("command", [["ls", "-l"], ["ls", "-lR"], ["find"]], ids=" ".join)
@pytest.mark.parametrize("kind", KINDS)
def test_container_is_listed_once(mounts: dict[str, tuple[Mount, Path]], kind: str, command: list[str]) -> None:
    mount, root = mounts[kind]
    folder = root / (CAMERA if command == ["ls", "-l"] else "episodes")
    first = subprocess.run([*command, folder], capture_output=True, check=True).stdout
    seen = []

    def is_known() -> bool:
        before = requests(mount)
        assert subprocess.run([*command, folder], capture_output=True, check=True).stdout == first
        seen.append(requests_since(mount, before))
        # The kernel asks again for the container itself, and for nothing in it.
        return not any(seen[-1][name] for name in (*LISTINGS, *OPENINGS)) and seen[-1].total() <= 6

    assert holds_once(is_known), seen


@pytest.mark.slow
def test_unused_references_are_released(mounted: Mounted, as_root: None, video: Path) -> None:
    with mounted(video) as mount:
        empty = mount.status()["nodes"]
        files = sum(len(names) for _, _, names in os.walk(mount.path))
        assert mount.status()["nodes"]["references"] > files > 2 * STEPS
        with (mount.path / "one.kdb" / CAMERA / "000007.png").open("rb") as file:
            wait_until(lambda: nodes_after_forgetting(mount)["references"] < 20)
            assert nodes_after_forgetting(mount)["references"] > empty["references"]
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"

        def is_empty() -> bool:
            found = nodes_after_forgetting(mount)
            return found["references"] <= empty["references"] and found["directories"] <= empty["directories"]

        wait_until(is_empty)
        assert sum(len(names) for _, _, names in os.walk(mount.path)) == files

"""What the kernel asks, as status.json counts it: once where once is enough, and what it gives back in the end."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from tests.mount.conftest import Mounted
from tests.mount.connections import forget
from tests.mount.mounts import Mount
from tests.waiting import wait_until

STEPS = 200
TRIES = 5
OPENINGS = ("OPEN", "RELEASE", "OPENDIR", "RELEASEDIR")
LISTINGS = ("READDIRPLUS", "READDIR")
GIVEN_BACK = ("FORGET", "BATCH_FORGET")


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two containers of 200 pictures, each of some bytes of its own."""
    folder = tmp_path_factory.mktemp("film")
    for name in ("one.kdb", "two.kdb"):
        with KinoWriter(folder / name) as writer:
            writer.add_episode(
                np.zeros((STEPS, 2), np.float32), np.zeros((STEPS, 1), np.float32),
                images=({"cam": image(name, number)} for number in range(STEPS)),
            )
    return folder


def image(name: str, number: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    return np.full((8, 9, 3), (number + len(name)) % 256, np.uint8)


pytestmark = pytest.mark.usefixtures("libfuse3")


def requests(mount: Mount) -> Counter[str]:
    return Counter(mount.status()["requests"])


def asked(mount: Mount, before: Counter[str]) -> Counter[str]:
    """What was asked since then, but for the two looks at the status and what the kernel has given back."""
    own = Counter(LOOKUP=3, READ=1, GETATTR=1, FLUSH=1, IOCTL=1)
    since = requests(mount) - before - own
    return Counter({name: count for name, count in since.items() if name not in GIVEN_BACK})


def once_in_some_tries(condition: Callable[[], bool]) -> bool:
    """Others on the same machine may have the kernel drop what it keeps, at any moment."""
    return any(condition() for _ in range(TRIES))


@pytest.mark.parametrize("in_folder", [True, False], ids=["in a folder", "alone"])
def test_image_costs_one_read_and_no_open(mounted: Mounted, video: Path, in_folder: bool) -> None:
    with mounted(video if in_folder else video / "one.kdb") as mount:
        folder = (mount.path / "one.kdb" if in_folder else mount.path) / "episodes/0/images/cam"
        assert len(list(folder.iterdir())) == STEPS
        before = requests(mount)
        subprocess.run(["cat", *sorted(folder.iterdir())], stdout=subprocess.DEVNULL, check=True)
        found = asked(mount, before)
        assert STEPS <= found["READ"] <= 1.05 * STEPS, found
        assert not any(found[name] for name in OPENINGS), found

        def costs_nothing_more() -> bool:
            before = requests(mount)
            subprocess.run(["cat", *sorted(folder.iterdir())], stdout=subprocess.DEVNULL, check=True)
            return not asked(mount, before)["READ"]

        assert once_in_some_tries(costs_nothing_more)


@pytest.mark.parametrize("command", [["ls", "-l"], ["ls", "-lR"], ["find"]], ids=" ".join)
@pytest.mark.parametrize("in_folder", [True, False], ids=["in a folder", "alone"])
def test_container_is_listed_once(mounted: Mounted, video: Path, in_folder: bool, command: list[str]) -> None:
    """The second time, the kernel asks for nothing in it, in a mirrored folder neither."""
    with mounted(video if in_folder else video / "one.kdb") as mount:
        root = mount.path / "one.kdb" if in_folder else mount.path
        folder = root if command != ["ls", "-l"] else root / "episodes/0/images/cam"
        if not in_folder:
            folder = root / "episodes"
        first = subprocess.run([*command, folder], capture_output=True, check=True).stdout
        seen = []

        def is_known() -> bool:
            before = requests(mount)
            assert subprocess.run([*command, folder], capture_output=True, check=True).stdout == first
            seen.append(asked(mount, before))
            # The container itself is asked for again, and only that.
            return not any(seen[-1][name] for name in (*LISTINGS, *OPENINGS)) and seen[-1].total() <= 6

        assert once_in_some_tries(is_known), seen


def test_names_in_a_container_stay_known_in_a_folder(mounted: Mounted, video: Path) -> None:
    """Those of the folder itself are asked for again, the way below them is not."""
    with mounted(video) as mount:
        deep = mount.path / "one.kdb/episodes/0/images/cam"
        places = [deep / f"{number:06d}.png" for number in range(0, STEPS, 20)]
        assert all(place.exists() for place in places)
        assert not (deep / "none.png").exists()

        def is_known() -> bool:
            time.sleep(1.0)  # what is asked again soon is due
            before = requests(mount)
            assert all(place.stat().st_size for place in places)
            assert not (deep / "none.png").exists()
            return asked(mount, before)["LOOKUP"] <= 2

        assert once_in_some_tries(is_known)


def test_unused_references_are_released(mounted: Mounted, as_root: None, video: Path) -> None:
    with mounted(video) as mount:
        empty = mount.status()["nodes"]
        files = sum(len(names) for _, _, names in os.walk(mount.path))
        assert mount.status()["nodes"]["references"] > files > 2 * STEPS
        with (mount.path / "one.kdb/episodes/0/images/cam/000007.png").open("rb") as file:
            wait_until(lambda: nodes_after_forgetting(mount)["references"] < 20)
            assert nodes_after_forgetting(mount)["references"] > empty["references"]
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"

        def is_empty() -> bool:
            found = nodes_after_forgetting(mount)
            return found["references"] <= empty["references"] and found["directories"] <= empty["directories"]

        wait_until(is_empty)
        assert sum(len(names) for _, _, names in os.walk(mount.path)) == files


def nodes_after_forgetting(mount: Mount) -> dict[str, int]:
    forget()
    found: dict[str, int] = mount.status()["nodes"]
    return found

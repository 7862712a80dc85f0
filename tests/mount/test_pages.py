"""HTML pages in a mount, opened in Chromium: from the list to an episode and through its frames."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from tests.chromium import Browser, browser, needs_chromium
from tests.formats.kinodb_files import index_entry
from tests.mount.conftest import Mounted

PIXELS = np.full((24, 32, 3), (200, 30, 60), np.uint8)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A container of three episodes; the images of the second one are damaged."""
    folder = tmp_path / "data"
    folder.mkdir()
    with KinoWriter(folder / "run.kdb") as writer:
        for number in range(3):
            writer.add_episode(
                np.ones((5, 2)), np.ones((5, 2)), images=[{"front": PIXELS}] * 5, task=f"task {number}",
            )
    data = bytearray((folder / "run.kdb").read_bytes())
    start = index_entry(data, 1).images_offset
    data[start : start + 4] = b"\xff\xff\xff\xff"
    (folder / "run.kdb").write_bytes(data)
    return folder


@pytest.mark.slow
@needs_chromium
def test_from_a_list_through_the_frames_of_an_episode(mounted: Mounted, folder: Path, chromium: Browser) -> None:
    with mounted(folder) as mount:
        chromium.open(mount.path / ".glassfs/views/run.kdb/index.html")
        assert chromium.evaluate("document.querySelectorAll('#rows tr').length") == 3
        chromium.wait_for("document.querySelector('#rows img').naturalWidth === 32")
        chromium.press("ArrowDown")
        chromium.press("Enter")
        chromium.wait_for("location.pathname.endsWith('/episodes/0/index.html')")
        chromium.wait_for("document.querySelectorAll('.chart canvas').length === 4")
        chromium.press("End")
        chromium.wait_for("document.querySelector('.camera img').naturalWidth === 32")
        assert chromium.evaluate("document.querySelector('.camera a').textContent") == "000004.png"


def test_damage_costs_one_episode_its_images(mounted: Mounted, folder: Path) -> None:
    with mounted(folder, options=["views=html"]) as mount:
        episodes = mount.path / "run.kdb/episodes"
        sizes = set()
        for number in range(3):
            page = (episodes / f"{number}/index.html").read_bytes()
            assert (b"The cameras cannot be shown: " in page) == (number == 1)
            assert len(page) == (episodes / f"{number}/index.html").stat().st_size
            sizes.add(len((episodes / f"{number}/data.js").read_bytes()))
        assert len(sizes) == 1
        assert (episodes / "0/poster").read_bytes() == (episodes / "0/images/front/000000.png").read_bytes()
        with pytest.raises(OSError) as caught:
            (episodes / "1/poster").read_bytes()
        assert caught.value.errno == errno.EIO

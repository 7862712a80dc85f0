"""KinoDB episodes as pages: contents, cost of sizes, and damage."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from writers.kinodb import Stored, jpeg

from glassfs.cache import BlockCache
from glassfs.content import Container, Recording, members_of
from glassfs.errors import Damaged
from glassfs.formats.registry import Opening, open_container
from glassfs.library import open_tree
from glassfs.tree import File, Tree
from tests.formats.derived import shown_in, whole
from tests.formats.kinodb_files import index_entry, patched, three_episodes, written
from tests.helpers import CountingSource
from tests.view.pages import Page, files, listed, plotted

PAGES = ("index.html", "data.js", "poster")


def tree_of(data: bytes, folder: Path) -> Tree:
    path = folder / "pages.kdb"
    path.write_bytes(data)
    return open_tree(path, views="html")


def shown_of(source: Path | bytes) -> dict[str, File]:
    """All files by their paths from the root."""
    return {place.lstrip("/"): node for place, node in shown_in(source, "html").items()}


def page_at(tree: Tree, place: str) -> Page:
    node = tree.lookup(f"{place}/index.html")
    assert isinstance(node, File)
    return Page(node.read(0, node.size))


def test_a_container_and_its_episodes_have_pages(tmp_path: Path) -> None:
    shown = shown_of(bytes(three_episodes(tmp_path)))
    for number in range(3):
        for name in PAGES:
            whole(shown[f"episodes/{number}/{name}"])
    rows, told = listed(whole(shown["data.js"]))
    assert (len(rows), told["total"], told["directory"]) == (3, 3, "./episodes")
    page = Page(whole(shown["episodes/0/index.html"]))
    assert page.of("h1") == ["first"]
    assert [camera["folder"] for camera in page.facts["cameras"]] == ["./images/front/", "./images/wrist/"]
    for camera in page.facts["cameras"]:
        gap, length, kind = camera["runs"]
        assert (gap, length) == (0, 4)
        for number in range(length):
            place = f"{camera['folder'][2:]}{number:06d}{camera['suffixes'][kind]}"
            assert f"episodes/0/{place}" in shown
    assert whole(shown["episodes/0/poster"]) == whole(shown["episodes/0/images/front/000000.png"])
    told, points = plotted(whole(shown["episodes/0/data.js"]))
    assert [column["name"] for column in told["columns"]] == ["state", "action", "reward", "is_terminal"]
    assert points[0] is not None and points[0].shape == (2, 4)


def test_a_size_needs_no_values_and_no_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (300, 400, 3), np.uint8)
    photo = Stored(jpeg(pixels), 400, 300)
    count = 50
    path = tmp_path / "sizes.kdb"
    path.write_bytes(written(tmp_path, {
        "state": np.zeros((count, 100)), "action": np.zeros((count, 100)), "images": [{"c": photo}] * count,
    }))
    source, cache = CountingSource(path), BlockCache(8 << 20)
    container: Container = open_container(Opening(source, cache))
    series = next(member.content for member in members_of(container.root) if member.name == (b"episodes",))
    episode = next(iter(members_of(series))).content
    recording = next(one.content for one in members_of(episode) if isinstance(one.content, Recording))
    shown = files(recording, cache)
    entry = index_entry(path.read_bytes(), 0)
    source.reads.clear()
    assert shown["data.js"].size > 4 * 200 * count
    assert not source.reads
    assert shown["index.html"].size and shown["poster"].size == len(photo.data)
    steps = range(entry.actions_offset, entry.actions_offset + entry.actions_length)
    assert not [offset for offset, _ in source.reads if offset in steps]
    assert source.bytes_read < count * len(photo.data) // 8


def test_pages_report_damaged_metadata(tmp_path: Path) -> None:
    data = patched(three_episodes(tmp_path), 1, meta_length=3)
    tree = tree_of(data, tmp_path)
    page = page_at(tree, "episodes/1")
    assert page.of("h1") == ["Episode"] and page.of("td") == []
    assert page.of("li")[0].startswith("The metadata cannot be read: the metadata of episode 1: ")
    assert len(page.facts["cameras"]) == 1
    for other in (0, 2):
        assert not [note for note in page_at(tree, f"episodes/{other}").of("li") if "cannot" in note]


def test_pages_report_a_damaged_image_section(tmp_path: Path) -> None:
    data = three_episodes(tmp_path)
    start = index_entry(data, 1).images_offset
    data[start : start + 4] = b"\xff\xff\xff\xff"
    tree = tree_of(bytes(data), tmp_path)
    page = page_at(tree, "episodes/1")
    assert any(note.startswith("The cameras cannot be shown: ") for note in page.of("li"))
    assert page.facts["cameras"] == []
    poster = tree.lookup("episodes/1/poster")
    assert isinstance(poster, File)
    with pytest.raises(Damaged):
        _ = poster.size
    assert len(page_at(tree, "episodes/0").facts["cameras"]) == 2


def test_pages_report_damaged_steps(tmp_path: Path) -> None:
    path = tmp_path / "damaged.kdb"
    path.write_bytes(patched(three_episodes(tmp_path), 0, actions_length=10))
    shown = shown_of(path)
    (note,) = Page(whole(shown["episodes/0/index.html"])).of("li")
    assert note.startswith("The steps cannot be plotted: the state/action section of episode 0: is ")
    with pytest.raises(Damaged):
        whole(shown["episodes/0/data.js"])
    _, points = plotted(whole(shown["episodes/1/data.js"]))
    assert all(column is not None for column in points)


@pytest.mark.parametrize("name", ["awkward_names", "special_floats", "empty", "raw_looks_like_jpeg", "mixed_raw"])
def test_pages_are_the_same_each_time(samples: Path, name: str) -> None:
    path = samples / f"kinodb/{name}.kdb"
    shown, again = shown_of(path), shown_of(path)
    pages = [place for place in shown if place.rpartition("/")[2] in PAGES]
    assert "index.html" in pages and "data.js" in pages
    for place in pages:
        assert whole(shown[place]) == whole(again[place]), place


@pytest.mark.parametrize("name", ["awkward_names", "cameras_vary", "mixed_raw"])
def test_pages_name_every_frame_of_samples_and_no_other(samples: Path, name: str) -> None:
    shown = shown_of(samples / f"kinodb/{name}.kdb")
    pages = [place for place in shown if place.endswith("/index.html")]
    assert pages
    for place in pages:
        folder, named = place.removesuffix("index.html"), set()
        for camera in Page(whole(shown[place])).facts["cameras"]:
            runs, end = camera["runs"], 0
            for gap, length, kind in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
                for number in range(end + gap, end + gap + length):
                    named.add(f"{folder}{unquote(camera['folder'][2:])}{number:06d}{camera['suffixes'][kind]}")
                end += gap + length
        # Of several images of one name in a frame, the first is shown.
        assert named == {one for one in shown if one.startswith(f"{folder}images/") and "~" not in Path(one).name}

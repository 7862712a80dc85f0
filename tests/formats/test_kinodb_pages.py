"""KinoDB episodes as pages: contents, cost of sizes, and damage."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from glassfs.errors import Damaged
from glassfs.tree import File
from tests.formats.derived import shown_in, whole
from tests.formats.kinodb_files import patched, three_episodes
from tests.view.pages import Page, listed, plotted

PAGES = ("index.html", "data.js", "poster")


def shown_of(source: Path | bytes) -> dict[str, File]:
    """All files by their paths from the root."""
    return {place.lstrip("/"): node for place, node in shown_in(source, "html").items()}


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


@pytest.mark.parametrize(("damage", "note", "lost"), [
    ({"meta_length": 3}, "The metadata cannot be read: the metadata of episode 1: ", None),
    ({"images_length": 7}, "The cameras cannot be shown: ", "poster"),
    ({"actions_length": 10}, "The steps cannot be plotted: the state/action section of episode 1: is ", "data.js"),
])
def test_pages_report_damage(tmp_path: Path, damage: dict[str, int], note: str, lost: str | None) -> None:
    path = tmp_path / "damaged.kdb"
    path.write_bytes(patched(three_episodes(tmp_path), 1, **damage))
    shown = shown_of(path)
    pages = [Page(whole(shown[f"episodes/{number}/index.html"])) for number in range(3)]
    assert any(line.startswith(note) for line in pages[1].of("li"))
    assert len(pages[1].facts["cameras"]) == (lost != "poster")
    assert not [line for number in (0, 2) for line in pages[number].of("li") if "cannot" in line]
    if lost is None:
        assert pages[1].of("h1") == ["Episode"] and pages[1].of("td") == []
    else:
        with pytest.raises(Damaged):
            whole(shown[f"episodes/1/{lost}"])


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

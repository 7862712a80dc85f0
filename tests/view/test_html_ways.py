"""Ways between pages in Chromium: back, to the next episode, to two side by side; and that lists fit their contents."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from tests.chromium import Browser, NotDone, needs_chromium
from tests.view.browsing import arrive, exported, image, labels, text, ways
from tests.view.pages import files, recording, table
from tests.waiting import wait_until

pytestmark = [needs_chromium, pytest.mark.slow]


def test_keys_lead_through_the_episodes_and_back(chromium: Browser, run: Path) -> None:
    """The page needs nobody to say where its list is."""
    chromium.open(run / "episodes/1/index.html")
    assert ways(chromium)["back"] == "../../index.html"
    for key, number in (("n", 2), ("n", 3), ("p", 2), ("p", 1), ("p", 0)):
        chromium.press(key)
        arrive(chromium, f"episodes/{number}")
    assert "earlier" not in ways(chromium)
    chromium.press("l")
    arrive(chromium, "run")
    assert len(labels(chromium)) == 100
    chromium.open(run / "episodes/249/index.html")
    chromium.press("n")
    arrive(chromium, "run")  # there is no next one, which only the list knows
    assert not chromium.complaints


@pytest.mark.parametrize(("place", "position", "back"), [
    ("sub/a", None, "../"), (".glassfs/views/sub/a", None, "../../index.html"),
    ("by-task/cup/a~0", 0, "../../../index.html"), ("exported/a~3-cup", 3, "../"),
    (".glassfs/views/a/episodes/1", 1, "../../index.html"),
])
def test_page_opened_by_its_path_leads_back(
    chromium: Browser, tmp_path: Path, place: str, position: int | None, back: str,
) -> None:
    (tmp_path / place).mkdir(parents=True)
    for name, data in files(recording({"position": position})).items():
        (tmp_path / place / name).write_bytes(data.whole())
    chromium.open(tmp_path / place / "index.html")
    assert ways(chromium).pop("back") == back
    assert ("later" in ways(chromium)) == place.endswith("/1")
    assert not chromium.complaints


def test_next_episode_is_that_of_the_filtered_list(chromium: Browser, run: Path) -> None:
    chromium.open(f"{(run / 'index.html').as_uri()}#filter=cup+17&sort=-label")
    assert labels(chromium)[:3] == ["217", "179", "178"]
    chromium.evaluate("document.querySelector('#rows a').click()")
    arrive(chromium, "episodes/217")
    assert "earlier" not in ways(chromium)
    for key, number in (("n", 179), ("n", 178), ("p", 179)):
        chromium.press(key)
        arrive(chromium, f"episodes/{number}")
    chromium.press("l")
    arrive(chromium, "run")
    assert len(labels(chromium)) == 13
    chromium.evaluate("[...document.querySelectorAll('#rows a')].at(-1).click()")
    arrive(chromium, "episodes/17")
    assert "later" not in ways(chromium) and "earlier" in ways(chromium)
    assert not chromium.complaints


def in_frame(page: Browser, number: int, expression: str, expected: object) -> None:
    """Wait until an expression has a value in a frame."""

    def is_so() -> bool:
        with suppress(NotDone, AssertionError, LookupError):  # it is being loaded
            return bool(page.evaluate_in_frame(number, expression) == expected)
        return False

    wait_until(is_so, 60, f"{expression} in frame {number}")


NOW = "document.getElementById('now')?.textContent.split(' ')[0]"


def test_two_episodes_are_compared_step_by_step(chromium: Browser, run: Path, tmp_path: Path) -> None:
    with KinoWriter(tmp_path / "two.kdb") as writer:
        for length in (30, 8, 20):
            writer.add_episode(
                np.zeros((length, 2)), np.zeros((length, 1)), images=({"c": image(step)} for step in range(length)),
            )
    root = exported(tmp_path / "two.kdb", tmp_path)
    chromium.open(root / "index.html")
    assert chromium.evaluate("document.getElementById('compare').disabled")
    for number in (2, 0, 1):  # a third one takes the place of the first
        chromium.evaluate(f"document.querySelectorAll('.pick input')[{number}].click()")
    assert chromium.evaluate("[...document.querySelectorAll('.pick input')].map((one) => one.checked)") == [
        True, True, False,
    ]
    chromium.evaluate("document.getElementById('compare').click()")
    chromium.wait_for("location.hash.startsWith('#compare=0,1')")
    for frame in (0, 1):
        in_frame(chromium, frame, "document.readyState + document.querySelectorAll('.chart').length", "complete4")
    chromium.evaluate("document.querySelector('iframe').focus()")
    for key, steps in (("ArrowRight", "11"), ("PageDown", "44"), ("End", "29 7"), ("ArrowLeft", "28 7")):
        chromium.press(key)
        for frame, step in enumerate(steps.split() if " " in steps else steps):
            in_frame(chromium, frame, NOW, step)
    chromium.evaluate("document.querySelectorAll('iframe')[1].focus()")
    chromium.press("Home")
    in_frame(chromium, 0, NOW, "0")
    # Only numbers are passed on, only to and from the two.
    chromium.evaluate("""document.querySelectorAll("iframe").forEach((frame) => {
        for (const sent of ["3", {step: 3}, 2.5, 1e99, null]) frame.contentWindow.postMessage(sent, "*");
    })""")
    chromium.evaluate("window.postMessage(5, '*')")
    chromium.press("ArrowRight")
    in_frame(chromium, 0, NOW, "1")
    in_frame(chromium, 1, NOW, "1")
    tops = "[...document.querySelectorAll('iframe')].map((frame) => frame.getBoundingClientRect().top)"
    first, second = chromium.evaluate(tops)
    assert first == second
    try:
        chromium.resize(400, 800)
        first, second = chromium.evaluate(tops)
        assert second > first + 200 and chromium.evaluate("document.documentElement.scrollWidth") <= 400
    finally:
        chromium.resize(1200, 900)
    chromium.evaluate("document.getElementById('back').click()")
    chromium.wait_for("document.querySelector('iframe') === null")
    assert labels(chromium) == ["0", "1", "2"]
    assert not chromium.complaints


@pytest.mark.parametrize("words", ["0", "0,1,2", "0,999", "0,-1", "0,length", "javascript:0,1", "__proto__,0"])
def test_only_rows_of_the_list_are_compared(chromium: Browser, run: Path, words: str) -> None:
    chromium.open(f"{(run / 'index.html').as_uri()}#compare={words}")
    assert chromium.evaluate("document.querySelector('iframe') === null")
    assert len(labels(chromium)) == 100


def test_ten_thousand_episodes_are_shown_a_page_at_a_time(chromium: Browser, tmp_path: Path) -> None:
    records = [
        {"position": number, "language_instruction": f"fetch {number}", "cameras": []} for number in range(10_000)
    ]
    for name, data in files(table(records, block=1000)).items():
        (tmp_path / name).write_bytes(data.whole())
    chromium.open(tmp_path / "index.html")
    assert text(chromium, "#count") == "10,000 episodes"
    assert chromium.evaluate("document.getElementsByTagName('*').length") < 2000
    chromium.press("/")
    chromium.write("fetch 99")
    assert text(chromium, "#count") == "280 of 10,000 episodes"
    assert labels(chromium)[:3] == ["99", "199", "299"]
    for _ in range(2):
        chromium.evaluate("document.getElementById('after').click()")
    assert labels(chromium)[-3:] == ["9997", "9998", "9999"] and len(labels(chromium)) == 80
    assert not chromium.complaints


def test_rows_and_bars_are_as_high_as_their_contents(chromium: Browser, tmp_path: Path) -> None:
    """Rows without images are one line, columns without values are left out, and long values wrap."""
    with KinoWriter(tmp_path / "plain.kdb") as writer:
        for number in range(3):
            writer.add_episode(
                np.zeros((9, 1)), np.zeros((9, 1)), task=("cup", "x" * 3000, "a " * 900)[number],
                embodiment=("", "y" * 300, "")[number],
            )
    root = exported(tmp_path / "plain.kdb", tmp_path)
    heights = "[...document.querySelectorAll('#rows tr, .tools, #transport')].map((one) => one.offsetHeight)"
    try:
        for width, limit in ((1280, 45), (400, 100)):
            chromium.resize(width, 800)
            chromium.open(root / "index.html")
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width
            assert chromium.evaluate("(() => { const box = document.querySelector('.wide');"
                                     "return box.scrollWidth <= box.clientWidth; })()")
            tools, first, second, third = chromium.evaluate(heights)
            assert tools < 60 and first < limit and max(second, third) < 220
            assert chromium.evaluate("document.querySelectorAll('#rows tr')[1].title") == (
                f"Instruction: {'x' * 3000}\nEmbodiment: {'y' * 300}\n"
            )
            assert text(chromium, "#heads") == "EpisodeInstructionEmbodimentFramesFrames/sStateActionId"
            chromium.open(root / "episodes/1/index.html")
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width
            assert chromium.evaluate(heights) < [90]
            label, value = chromium.evaluate(
                "[...document.querySelector('.facts tr').cells].map((cell) => cell.offsetWidth)")
            assert label < value
    finally:
        chromium.resize(1200, 900)

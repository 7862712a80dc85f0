"""Pages in Chromium, from files and without a server: what users see, what keys do, and that no other script runs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from writers.kinodb import KinoWriter, Stored, jpeg

from tests.chromium import Browser, needs_chromium
from tests.view.browsing import arrive, color, exported, image, labels, text, ways
from tests.view.pages import files, table
from tests.view.test_html import HOSTILE, OverFolder

pytestmark = [needs_chromium, pytest.mark.slow]
ATTACK = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


def pixel(page: Browser, selector: str) -> tuple[int, int, int]:
    """Return the color in the middle of an element once its image is loaded."""
    element = f"document.querySelector({selector!r})"
    page.wait_for(f"{element}.complete && {element}.naturalWidth > 0")
    page.evaluate(f"{element}.decode().then(() => new Promise(requestAnimationFrame))")
    x, y = page.evaluate(
        f"(() => {{ const box = {element}.getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    with Image.open(io.BytesIO(page.screenshot())) as seen:
        found: tuple[int, int, int] = seen.convert("RGB").getpixel((int(x), int(y)))  # type: ignore[assignment]
    return found


def test_keys_step_through_frames(chromium: Browser, run: Path) -> None:
    chromium.open(run / "episodes/0/index.html")
    for key, step in (
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 29), ("PageUp", 26), ("Home", 0),
        ("ArrowLeft", 0), ("PageDown", 3), ("ArrowRight", 4),
    ):
        chromium.press(key)
        assert text(chromium, "#now").startswith(f"{step} / 29 "), key
    assert text(chromium, ".camera a") == "000004.png"
    assert np.abs(np.subtract(pixel(chromium, ".camera img"), color(4))).max() <= 3
    # The other camera saw nothing in this frame.
    assert np.abs(np.subtract(pixel(chromium, ".camera:last-child img"), color(3))).max() <= 3
    assert text(chromium, ".camera:last-child p") == "There is no frame 4: this is the previous one."
    assert chromium.evaluate("[...document.querySelectorAll('.camera b')].map((name) => name.textContent)") == [
        "front", "wrist",
    ]
    assert not chromium.complaints


def test_plots_are_drawn_and_seek_on_click(chromium: Browser, run: Path) -> None:
    chromium.open(run / "episodes/0/index.html")
    chromium.wait_for("document.querySelectorAll('.chart canvas').length === 4")
    drawn = chromium.evaluate("""[...document.querySelectorAll(".chart canvas")].map((canvas) => {
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const colors = new Set();
        for (let place = 0; place < data.length; place += 4) {
            if (data[place + 3] === 255) colors.add(data.slice(place, place + 3).join());
        }
        return colors.size;
    })""")
    assert all(colors >= 1 for colors in drawn) and drawn[0] >= 3
    assert text(chromium, ".legend button") == "0: 0"
    box = chromium.evaluate("""(() => {
        const chart = document.querySelector(".chart");
        chart.scrollIntoView({block: "center"});
        const {x, y, width, height} = chart.getBoundingClientRect();
        return [x, y, width, height];
    })()""")
    chromium.click(box[0] + box[2] - 8, box[1] + box[3] / 2)
    assert text(chromium, "#now").startswith("29 / 29 ")
    assert text(chromium, ".legend button") == f"0: {float(f'{np.sin(6):.4g}'):g}"
    chromium.evaluate("document.querySelector('.legend button').click()")
    assert chromium.evaluate("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    assert not chromium.complaints


@pytest.mark.slow
def test_playback_stops_at_the_end(chromium: Browser, run: Path) -> None:
    chromium.open(f"{(run / 'episodes/0/index.html').as_uri()}#up=2&step=7")
    assert text(chromium, "#now").startswith("7 / 29 ")
    assert chromium.evaluate("document.getElementById('back').href").endswith("/run/index.html")
    chromium.press(" ")
    assert text(chromium, "#play") == "Pause"
    chromium.wait_for("document.getElementById('now').textContent.startsWith('29 / 29 ')")
    chromium.wait_for("document.getElementById('play').textContent === 'Play'")
    assert np.abs(np.subtract(pixel(chromium, ".camera img"), color(29))).max() <= 3
    assert not chromium.complaints


@pytest.mark.slow
def test_video_is_requested_only_when_opened(chromium: Browser, run: Path, tmp_path: Path) -> None:
    chromium.open(run / "episodes/0/index.html")
    assert not [address for address in chromium.requested if address.endswith(".mp4")]
    chromium.evaluate("document.querySelector('.camera details').open = true")
    chromium.wait_for("(document.querySelector('video') ?? {}).readyState >= 2")
    chromium.evaluate("document.querySelector('video').currentTime = 0.205")
    chromium.wait_for("document.getElementById('now').textContent.startsWith('20 / 29 ')")
    assert not chromium.complaints
    (run / "episodes/0/images/front.mp4").rename(tmp_path / "front.mp4")
    try:
        chromium.open(run / "episodes/0/index.html")
        chromium.evaluate("document.querySelector('.camera details').open = true")
        chromium.wait_for("document.querySelector('.camera details p') !== null")
    finally:
        (tmp_path / "front.mp4").rename(run / "episodes/0/images/front.mp4")


def test_list_filters_sorts_and_links_to_pages(chromium: Browser, run: Path) -> None:
    chromium.open(run / "index.html")
    assert (text(chromium, "h1"), text(chromium, "#count")) == ("run", "250 episodes")
    assert labels(chromium) == [str(number) for number in range(100)]
    chromium.press("/")
    chromium.write("CUP 17")
    assert text(chromium, "#count") == "13 of 250 episodes"
    assert labels(chromium) == ["17", "117", *(str(number) for number in range(170, 180)), "217"]
    chromium.evaluate("document.querySelector('[data-name=total_reward] button').click()")
    rewards = [number * 37 % 101 for number in map(int, labels(chromium))]
    assert rewards == sorted(rewards)
    chromium.evaluate("document.querySelector('[data-name=total_reward] button').click()")
    assert [number * 37 % 101 for number in map(int, labels(chromium))] == rewards[::-1]
    assert chromium.evaluate("location.hash") == "#filter=CUP+17&sort=-total_reward"
    chromium.evaluate("document.getElementById('outcome').value = 'false'")
    chromium.evaluate("document.getElementById('outcome').onchange()")
    assert all(int(number) % 3 == 2 for number in labels(chromium))
    chromium.open(f"{(run / 'index.html').as_uri()}#page=3")
    assert labels(chromium) == [str(number) for number in range(200, 250)]
    chromium.open(run / "index.html")
    chromium.wait_for("document.querySelector('#rows img').naturalWidth === 64")
    assert np.abs(np.subtract(pixel(chromium, "#rows img"), color(0))).max() <= 3
    # Only what may be seen soon is asked for.
    assert len([address for address in chromium.requested if address.endswith("/poster")]) < 100
    assert not chromium.complaints
    chromium.press("ArrowDown")
    chromium.press("Enter")
    chromium.wait_for("location.pathname.endsWith('/episodes/0/index.html')")
    chromium.wait_for("document.querySelector('.camera a') !== null")
    assert ways(chromium) == {"back": "../../index.html", "later": "../1/index.html#up=2&number=1&of=250"}
    chromium.evaluate("document.getElementById('later').click()")
    arrive(chromium, "episodes/1")
    assert ways(chromium)["earlier"] == "../0/index.html#up=2&number=0&of=250"


def test_hostile_names_stay_text(chromium: Browser, tmp_path: Path) -> None:
    names = [*HOSTILE, ATTACK]
    carried = [name.encode("utf-8", "replace").decode() for name in names]
    cameras = [name.replace("/", "-").encode() for name in carried]
    pixels = np.zeros((2, 2, 3), np.uint8)
    with KinoWriter(tmp_path / "hostile.kdb") as writer:
        for name in carried:
            writer.add_episode(
                np.zeros((2, 1)), np.zeros((2, 1)), task=name, embodiment=name,
                images=[[(camera, pixels) for camera in [*cameras, b"\xff\xfe"]]] * 2,
            )
    root = exported(tmp_path / "hostile.kdb", tmp_path)
    chromium.open(root / "index.html")
    told = chromium.evaluate("[...document.querySelectorAll('#rows .title')].map((cell) => cell.textContent)")
    assert told == carried
    assert not chromium.complaints
    assert chromium.evaluate("window.hacked === undefined && document.querySelectorAll('script').length === 3")
    for number in (0, 3, 6, len(names) - 1):
        chromium.open(root / f"episodes/{number}/index.html")
        expected = carried[number].replace("\0", "\ufffd")
        assert text(chromium, "h1") == expected
        assert text(chromium, ".line span[dir]") == expected
        shown = chromium.evaluate("[...document.querySelectorAll('.camera b')].map((name) => name.textContent)")
        assert shown == [*(camera.decode() for camera in cameras), "\ufffd\ufffd"]
        chromium.wait_for("[...document.querySelectorAll('.camera img')].every((image) => image.naturalWidth === 2)")
        assert chromium.evaluate("window.hacked === undefined && document.querySelectorAll('script').length === 3")
        assert chromium.evaluate("document.querySelectorAll('.camera').length") == len(cameras) + 1
        assert all(address.startswith(root.as_uri()) for address in chromium.requested)
        assert not chromium.complaints


@pytest.mark.slow
def test_policy_refuses_injected_scripts_and_requests(chromium: Browser, run: Path) -> None:
    """The policy of the page: scripts that were put in, and requests to others, are refused."""
    chromium.open(run / "episodes/0/index.html")
    assert chromium.evaluate("""(() => {
        try { document.body.innerHTML = "<b>"; return "set"; } catch (error) { return error.name; }
    })()""") == "TypeError"
    assert chromium.evaluate("fetch('https://example.org/').then(() => 'sent', () => 'refused')") == "refused"
    assert chromium.evaluate("""(() => {
        const button = document.createElement("button");
        try { button.setAttribute("onclick", "window.hacked = 1"); } catch {}
        button.click();
        return window.hacked === undefined;
    })()""")


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    "up=javascript:window.hacked=1", "up=-1&number=-1&of=1e999", "up=1e9&number=x&of=3", "number=3&of=2",
    "step=NaN&up=", "up=0.5", "number=javascript:0&of=5", "step=-7", "step=1e99",
])
def test_hostile_fragments_are_ignored(chromium: Browser, run: Path, words: str) -> None:
    chromium.open(f"{(run / 'episodes/0/index.html').as_uri()}#{words}")
    assert ways(chromium) == {"back": "../../index.html", "later": "../../index.html#from=0&by=1"}
    assert text(chromium, "#now").split(" ")[0] in ("0", "29")
    assert not chromium.complaints


@pytest.mark.slow
def test_frames_are_tried_with_both_suffixes(chromium: Browser, tmp_path: Path) -> None:
    with KinoWriter(tmp_path / "mixed.kdb") as writer:
        shots = [
            {"c": image(number) if number % 2 else Stored(jpeg(image(number), 95), 64, 48)} for number in range(6)
        ]
        writer.add_episode(np.zeros((6, 1)), np.zeros((6, 1)), images=shots)
    chromium.open(exported(tmp_path / "mixed.kdb", tmp_path) / "episodes/0/index.html")
    for number in range(1, 6):
        chromium.press("ArrowRight")
        chromium.wait_for("document.querySelector('.camera img').naturalWidth === 64")
        name = f"00000{number}.{('jpg', 'png')[number % 2]}"
        chromium.wait_for(f"document.querySelector('.camera a').textContent === '{name}'")
        assert np.abs(np.subtract(pixel(chromium, ".camera img"), color(number))).max() <= 12


@pytest.mark.slow
def test_page_reports_unreadable_files(chromium: Browser, run: Path, tmp_path: Path) -> None:
    place = tmp_path / "episode"
    (place / "images/front").mkdir(parents=True)
    (place / "index.html").write_bytes((run / "episodes/0/index.html").read_bytes())
    (place / "images/front/000000.png").write_bytes(b"no picture")
    chromium.open(place / "index.html")
    chromium.wait_for("document.querySelector('.camera p').textContent === 'This frame cannot be read.'")
    assert "data.js, beside this page, cannot be read" in text(chromium, "#notes")
    (tmp_path / "index.html").write_bytes((run / "index.html").read_bytes())
    chromium.open(tmp_path / "index.html")
    assert "data.js, beside this page, cannot be read" in text(chromium, "#notes")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "episodes/0/index.html"])
def test_pages_fit_color_schemes_and_small_windows(chromium: Browser, run: Path, page: str) -> None:
    """The background follows the reader's wish, text stands out, and nothing sticks out of a small window."""
    try:
        for scheme in ("light", "dark"):
            chromium.prefer(scheme)
            chromium.open(run / page)
            back, ink = chromium.evaluate("""(() => {
                const style = getComputedStyle(document.body);
                const sum = (color) => color.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);
                return [sum(style.backgroundColor), sum(style.color)];
            })()""")
            assert (back > ink + 400) if scheme == "light" else (ink > back + 400)
        chromium.resize(360, 640)
        chromium.open(run / page)
        assert chromium.evaluate("document.documentElement.scrollWidth") <= 360
        named = "button, input, select, a, canvas, img:not([alt=''])"
        assert chromium.evaluate(f"""[...document.querySelectorAll("{named}")]
            .filter((one) => !one.hidden && one.offsetParent)
            .every((one) => (one.getAttribute("aria-label") ?? one.alt ?? one.textContent).trim() !== "")""")
    finally:
        chromium.prefer("light")
        chromium.resize(1200, 900)


@pytest.mark.slow
def test_folder_page_links_into_containers(chromium: Browser, run: Path, tmp_path: Path) -> None:
    """It runs no data.js that lies in the folder."""
    names = ["sub/a b%#?.kdb", "javascript:window.hacked=1", "ü/x.wshard"]
    records = [{"container": name, "position": number, "success": None} for number, name in enumerate(names)]
    plain = table(records, directory=b"")
    joined = OverFolder(plain)
    (tmp_path / "index.html").write_bytes(files(joined)["index.html"].whole())
    (tmp_path / "data.js").write_text("window.hacked = 1")
    for name, number in zip(names, range(3), strict=True):
        place = tmp_path / f"{name}/{number}"
        place.mkdir(parents=True)
        (place / "index.html").write_bytes((run / "episodes/1/index.html").read_bytes())
        (place / "data.js").write_bytes((run / "episodes/1/data.js").read_bytes())
        (place / "poster").write_bytes((run / "episodes/0/poster").read_bytes())
    for number, label in enumerate(("a b%#?.kdb · 0", "javascript:window.hacked=1 · 1", "x.wshard · 2")):
        chromium.open(tmp_path / "index.html")
        assert text(chromium, "h1") == OverFolder.title
        assert labels(chromium)[number] == label
        chromium.wait_for("[...document.querySelectorAll('#rows img')].every((image) => image.naturalWidth === 64)")
        assert "left out: 3" in text(chromium, "#notes") and "</script>" in text(chromium, "#notes")
        assert not chromium.complaints and chromium.evaluate("window.hacked === undefined")
        chromium.evaluate(f"document.querySelectorAll('#rows a')[{number}].click()")
        chromium.wait_for(f"location.pathname.endsWith('/{number}/index.html')")
        back = chromium.wait_for("document.getElementById('back')?.href")
        assert back == (tmp_path / "index.html").as_uri()
        if number < 2:  # the list looks up the next one, in another container
            chromium.press("n")
            arrive(chromium, str(number + 1))
        else:
            assert "later" not in ways(chromium)

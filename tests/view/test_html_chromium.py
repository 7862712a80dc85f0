"""Pages in Chromium, without a server: what users see, what keys do, where ways lead, and that no other script runs."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from writers.kinodb import KinoWriter, Stored, jpeg

from tests.chromium import Browser, NotDone, browser, needs_chromium
from tests.formats.derived import shown_in
from tests.view.pages import files, recording
from tests.view.test_html import HOSTILE, OverFolder
from tests.waiting import wait_until

pytestmark = [needs_chromium, pytest.mark.slow]
ATTACK = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
FRAMES = 30
NOW = "document.getElementById('now')?.textContent.split(' ')[0]"


def exported(container: Path, folder: Path, views: str = "html") -> Path:
    """All files of a container, in a folder of its name."""
    root = folder / container.stem
    for path, node in shown_in(container, views).items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(node.read(0, node.size))
    return root


def color(number: int) -> tuple[int, int, int]:
    return (number * 8, 255 - number * 8, number % 2 * 200)


def image(number: int) -> np.ndarray:
    return np.full((48, 64, 3), color(number), np.uint8)


def text(page: Browser, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector({selector!r}).textContent"))


def labels(page: Browser) -> list[str]:
    return list(page.evaluate("[...document.querySelectorAll('#rows a')].map((link) => link.textContent)"))


def ways(page: Browser) -> dict[str, str]:
    """Return the shown links of an episode's page to others."""
    return dict(page.evaluate(
        "[...document.querySelectorAll('.ways a:not([hidden])')].map((way) => [way.id, way.getAttribute('href')])"
    ))


def arrive(page: Browser, place: str) -> None:
    """Wait until the page in a folder is loaded."""
    page.wait_for(f"location.pathname.endsWith('/{place}/index.html') && document.readyState === 'complete'")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def chromium(started: Browser) -> Browser:
    started.prefer("light")
    started.resize(1200, 900)
    return started


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    steps = np.linspace(0, 6, FRAMES)
    # All frames of one camera, and every third of the other.
    frames = [{name: image(step) for name in ("front", "wrist")[: 1 + (step % 3 == 0)]} for step in range(FRAMES)]
    with KinoWriter(folder / "run.kdb") as writer:
        writer.add_episode(
            np.sin(np.stack([steps, steps + 1, steps + 2], 1)), np.stack([steps], 1), images=frames,
            task="open the top drawer", embodiment="arm", fps=100, success=True,
        )
        for number in range(1, 250):
            writer.add_episode(
                np.zeros((1, 1)), np.zeros((1, 1)), task=f"fetch cup {number}", embodiment=("arm", "hand")[number % 2],
                success=(None, True, False)[number % 3], total_reward=float(number * 37 % 101),
            )
    return exported(folder / "run.kdb", folder, "html+mp4")


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
        return seen.convert("RGB").getpixel((int(x), int(y)))  # type: ignore[return-value]


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
    chromium.evaluate("document.getElementById('after').click()")
    assert labels(chromium) == [str(number) for number in range(100, 200)]
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


@pytest.mark.parametrize("words", [
    "up=javascript:window.hacked=1", "up=-1&number=-1&of=1e999", "up=1e9&number=x&of=3", "number=3&of=2",
    "step=NaN&up=", "up=0.5", "number=javascript:0&of=5", "step=-7", "step=1e99",
])
def test_hostile_fragments_are_ignored(chromium: Browser, run: Path, words: str) -> None:
    chromium.open(f"{(run / 'episodes/0/index.html').as_uri()}#{words}")
    assert ways(chromium) == {"back": "../../index.html", "later": "../../index.html#from=0&by=1"}
    assert text(chromium, "#now").split(" ")[0] in ("0", "29")
    assert not chromium.complaints


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


@pytest.mark.parametrize("page", ["index.html", "episodes/0/index.html"])
def test_pages_fit_color_schemes_and_small_windows(chromium: Browser, run: Path, page: str) -> None:
    """The background follows the reader's wish, text stands out, and nothing sticks out of a small window."""
    for scheme in ("light", "dark"):
        chromium.prefer(scheme)
        chromium.open(run / page)
        back, ink = (
            sum(map(int, re.findall(r"\d+", chromium.evaluate(f"getComputedStyle(document.body).{name}"))[:3]))
            for name in ("backgroundColor", "color")
        )
        assert (back > ink + 400) if scheme == "light" else (ink > back + 400)
    chromium.resize(360, 640)
    chromium.open(run / page)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 360
    named = "button, input, select, a, canvas, img:not([alt=''])"
    assert chromium.evaluate(f"""[...document.querySelectorAll("{named}")]
        .filter((one) => !one.hidden && one.offsetParent)
        .every((one) => (one.getAttribute("aria-label") ?? one.alt ?? one.textContent).trim() !== "")""")


def test_folder_page_links_into_containers(chromium: Browser, run: Path, tmp_path: Path) -> None:
    """It runs no data.js that lies in the folder."""
    names = ["sub/a b%#?.kdb", "javascript:window.hacked=1", "ü/x.wshard"]
    records = [{"container": name, "position": number, "success": None} for number, name in enumerate(names)]
    (tmp_path / "index.html").write_bytes(files(OverFolder(records))["index.html"].whole())
    (tmp_path / "data.js").write_text("window.hacked = 1")
    for number, name in enumerate(names):
        shutil.copytree(run / "episodes/1", tmp_path / f"{name}/{number}")
        shutil.copy(run / "episodes/0/poster", tmp_path / f"{name}/{number}")
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
    chromium.evaluate_in_frame(1, "addEventListener('message', ({data}) => { document.title = data })")
    chromium.evaluate("document.querySelector('iframe').focus()")
    for key, steps in (("ArrowRight", "11"), ("PageDown", "44"), ("End", "29 7"), ("ArrowLeft", "28 7")):
        chromium.press(key)
        for frame, step in enumerate(steps.split() if " " in steps else steps):
            in_frame(chromium, frame, NOW, step)
    in_frame(chromium, 1, "document.title", "28")  # its step does not show that the message has arrived
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
    chromium.resize(400, 800)
    first, second = chromium.evaluate(tops)
    assert second > first + 200 and chromium.evaluate("document.documentElement.scrollWidth") <= 400
    chromium.evaluate("document.getElementById('back').click()")
    chromium.wait_for("document.querySelector('iframe') === null")
    assert labels(chromium) == ["0", "1", "2"]
    assert not chromium.complaints


@pytest.mark.parametrize("words", ["0", "0,1,2", "0,999", "0,-1", "0,length", "javascript:0,1", "__proto__,0"])
def test_only_rows_of_the_list_are_compared(chromium: Browser, run: Path, words: str) -> None:
    chromium.open(f"{(run / 'index.html').as_uri()}#compare={words}")
    assert chromium.evaluate("document.querySelector('iframe') === null")
    assert len(labels(chromium)) == 100


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
    width_of = "document.querySelector('{}').{}Width"
    for width, limit in ((1280, 45), (400, 100)):
        chromium.resize(width, 800)
        chromium.open(root / "index.html")
        assert chromium.evaluate(width_of.format("html", "scroll")) <= width
        assert chromium.evaluate(width_of.format(".wide", "scroll")) <= chromium.evaluate(
            width_of.format(".wide", "client"))
        tools, first, second, third = chromium.evaluate(heights)
        assert tools < 60 and first < limit and max(second, third) < 220
        title = chromium.evaluate("document.querySelectorAll('#rows tr')[1].title")
        assert title == f"Instruction: {'x' * 3000}\nEmbodiment: {'y' * 300}\n"
        assert text(chromium, "#heads") == "EpisodeInstructionEmbodimentFramesFrames/sStateActionId"
        chromium.open(root / "episodes/1/index.html")
        assert chromium.evaluate(width_of.format("html", "scroll")) <= width
        assert chromium.evaluate(heights) < [90]
        assert chromium.evaluate(width_of.format(".facts th", "offset")) < chromium.evaluate(
            width_of.format(".facts td", "offset"))

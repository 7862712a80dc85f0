"""Pages: facts about episodes, frames and plots, untrusted text that stays text, and sizes from lengths alone."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import (
    Array,
    Blob,
    Column,
    Content,
    Counted,
    Member,
    Memory,
    Selection,
    Table,
    Unreadable,
    Video,
    Zeros,
)
from glassfs.content.summary import Joined
from glassfs.errors import Changed, Damaged
from glassfs.names import component
from glassfs.view import html
from glassfs.view import html as view_html
from glassfs.view.html import page
from tests.view.pages import Page, files, listed, page_of, plotted, recording, table
from tests.view.videos import flat, raw, stored, video
from tests.view.views import Noted, array_column, whole

RED = raw(flat(8, 6, 200, 30, 60))
PNG, JPEG = stored(flat(8, 6, 1, 2, 3), "png"), stored(flat(8, 6, 1, 2, 3), "jpeg")
HOSTILE = (
    "</script><script>alert(1)</script>", "<!--<script>", "]]>", "\"'`><img src=x onerror=alert(1)>",
    "javascript:alert(1)", "\u202egnp.exe", "a\0b", "line\u2028and\u2029", "&lt;&#60;&amp;",
    "\r\n\t\x0b\x0c\x1f\x7f\x80\x9f", "\ud800 \udfff",
    "${1}", "{title}", "%s %b", "é😀",
)
DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(categories=None), max_size=40))


def shown(text: str) -> str:
    """What is seen of a text: HTML has no NUL and no halves of characters."""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


@given(TEXTS)
@settings(max_examples=300)
@example("".join(map(chr, range(256))))
def test_text_in_html_stays_text(text: str) -> None:
    made = page.html(text)
    assert not set(made) & set("<>\"'`\0\r")
    found = Page(f'<p title="{made}">{made}</p>'.encode())
    assert found.tags == [("p", {"title": shown(text)})]
    assert found.of("p") == [shown(text)]


@given(st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)))
@settings(max_examples=200)
def test_values_in_scripts_stay_values(value: object) -> None:
    made = page.script(value)
    assert not set(made.decode()) & set("<>&\u2028\u2029\0\n\r")

    def expected(value: object) -> object:
        if isinstance(value, list):
            return [expected(item) for item in value]
        return re.sub("[\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value

    found = json.loads(made)
    if not isinstance(value, dict):  # keys that become equal are told apart
        assert isinstance(value, list) or found == expected(value)


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"..", b".", b"", b"javascript:x", b"//host", b"a?b#c"]),
                min_size=1, max_size=4))
@settings(max_examples=200)
def test_address_of_any_name_is_a_path_below_the_page(parts: list[bytes]) -> None:
    made = page.address(parts, ".mp4")
    assert re.fullmatch(r"\./[A-Za-z0-9_.~%/-]+", made)
    steps = made.split("/")[1:]
    assert ".." not in steps and "." not in steps and "" not in steps
    assert [unquote(step) for step in steps] == [*map(component, parts[:-1]), component(parts[-1], ".mp4")]


@given(TEXTS, TEXTS, TEXTS)
@settings(max_examples=60)
def test_names_in_pages_make_no_tags(text: str, name: str, key: str) -> None:
    camera = Member((b"images", name.encode("utf-8", "surrogatepass")), video([RED], 8, 6))
    record = {"language_instruction": text, "embodiment": name, key: [text, {name: key}]}
    found = page_of(record, cameras=[camera])
    plain = page_of({"language_instruction": "a", "embodiment": "b", "c": ["a"]}, cameras=[camera])
    tags, expected = ([tag for tag, _ in page.tags if tag not in ("tr", "th", "td")] for page in (found, plain))
    assert tags == expected
    assert len(found.of("td")) == len(record)
    if text.strip():
        assert found.of("h1") == [shown(text)]
    code = page.PARTS["common.js"] + page.PARTS["episode.js"]
    assert found.of("script")[1:] == [code, ""]
    assert code.count("</") == 0


def test_pages_load_only_files_beside_them() -> None:
    for made in (files(recording({"episode_id": 7}))["index.html"], files(table([{"position": 0}]))["index.html"]):
        data = bytes(made.whole()).decode()
        found = Page(data.encode())
        policies = [attributes["content"] for tag, attributes in found.tags
                    if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"]
        assert len(policies) == 1 and policies[0] is not None
        assert policies[0].startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policies[0]
        assert [attributes["src"] for _, attributes in found.tags if "src" in attributes] == ["data.js"]
        assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(|\son\w+=\"", data)


def test_metadata_are_in_the_page_without_a_script() -> None:
    record = {"position": 3, "episode_id": 9, "embodiment": "arm", "success": True, "fps": 29.97, "total_reward": None,
              "num_frames": 2, "more": {"a": [1, "x"]}}
    found = page_of(record)
    assert found.of("title") == ["Episode 9"] and found.of("h1") == ["Episode 9"]
    assert "succeeded" in found.of("span")
    assert dict(zip(found.of("th"), found.of("td"), strict=True)) == {
        "Position": "3", "Id": "9", "Embodiment": "arm", "Success": "yes", "Frames a second": "29.97",
        "Total reward": "unknown", "Frames": "2", "More": '{"a": [1, "x"]}',
    }


def test_very_long_values_are_cut() -> None:
    record = {"language_instruction": "x" * 100_000, "blob": b"\xff" * 100_000, "list": list(range(100_000)),
              "deep": json.loads("[" * 500 + "]" * 500), **{f"key {number}": number for number in range(50_000)}}
    data = bytes(files(recording(record))["index.html"].whole())
    assert len(data) < page.BUDGET + 50_000
    found = Page(data)
    assert found.of("h1") == ["x" * 200 + "…"]
    assert len(found.of("td")) > 5000


def camera_of(content: Content) -> dict[str, Any]:
    """Return the facts about a camera."""
    (found,) = page_of(cameras=[Member((b"images", b"camera 0"), content)]).facts["cameras"]
    return dict(found)


def test_frames_are_listed_as_runs() -> None:
    mixed: list[Content] = [JPEG, PNG, JPEG, JPEG, Blob(b"", Memory(b"x")), RED]
    camera = camera_of(video(mixed, 8, 6, present=[0, 1, 2, 5, 6, 9], count=20))
    assert (camera["name"], camera["folder"]) == ("camera 0", "./images/camera%200/")
    assert camera["video"] == "./images/camera%200.mp4"
    assert (camera["runs"], camera["count"]) == ([0, 3, 2, 2, 2, 1], 20)


def test_no_frame_is_looked_at() -> None:
    looked: list[int] = []

    def frame(number: int) -> Content:
        looked.append(number)
        return JPEG

    for present, runs in ((None, [0, 1 << 32]), (range(50, 100_000, 50), [50, 1] + [49, 1] * 1998)):
        camera = camera_of(Video(b"", 1 << 32, 10, 8, 6, frame, present))
        assert camera["runs"] == runs and not looked


def test_too_many_gaps_are_cut_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "BUDGET", 1000)
    camera = Member((b"c",), Video(b"", 1000, 10, 8, 6, lambda number: RED, range(0, 1000, 2)))
    found = page_of(cameras=[camera])
    assert found.of("li") == ["Of c, only the frames before 125 are shown."]


def test_video_array_is_a_camera() -> None:
    pixels = np.zeros((5, 6, 8, 3), np.uint8)
    array = Array(b"signal/rgb", Memory(pixels.tobytes()), "|u1", pixels.shape, fps=25.0)
    not_a_video = Array(b"signal/x", Memory(bytes(5)), "|u1", (5,))
    members = [Member((b"signal", b"x"), not_a_video), Member((b"signal", b"rgb"), array)]
    found = page_of(cameras=members).facts
    (camera,) = found["cameras"]
    assert (camera["name"], camera["folder"], camera["runs"]) == ("rgb", "./signal/rgb/", [0, 5])
    assert found["fps"] == 25


@pytest.mark.parametrize(("fps", "expected"), [(12.5, 12.5), (0, 10), (float("nan"), 10), ("7", 10), (None, 10)])
def test_frame_rate_is_the_record_s_or_the_default(fps: object, expected: float) -> None:
    camera = Member((b"c",), video([RED], 8, 6, fps=0))
    found = page_of({"fps": fps}, cameras=[camera])
    assert found.facts["fps"] == expected
    assert len(found.of("li")) == (expected != fps)


def test_poster_is_the_first_image() -> None:
    first = video([JPEG], 8, 6, present=[7], count=9)
    cameras = [Member((b"none",), video([], 8, 6, present=[], count=9)), Member((b"c",), first)]
    assert whole(lambda: files(recording({}, cameras=cameras))["poster"]) == JPEG.data.whole()
    nothing = files(recording())["poster"]
    assert not nothing.is_sized and nothing.whole() == view_html.NO_IMAGE


def test_page_notes_damage_and_poster_fails() -> None:
    record, cameras = Damaged("is cut", "x.kdb", "metadata"), Damaged("breaks </li>off", "x.kdb", "images")
    shown = files(recording(record, Damaged("is short", "x.kdb", "steps"), cameras=cameras))  # type: ignore[arg-type]
    found = Page(bytes(shown["index.html"].whole()))
    assert found.of("li") == [
        "The metadata cannot be read: metadata: is cut", "The cameras cannot be shown: images: breaks </li>off",
        "The steps cannot be plotted: steps: is short",
    ]
    with pytest.raises(Damaged):
        _ = shown["poster"].size


def test_passing_errors_are_not_noted_as_damage() -> None:
    with pytest.raises(Changed):
        _ = files(recording(Changed("is another file")))["index.html"].size


RECORDS = [
    {"position": number, "episode_id": number * 2, "language_instruction": HOSTILE[number % len(HOSTILE)],
     "success": None, "total_reward": number / 7}
    for number in range(40)
]


def test_rows_of_a_list() -> None:
    made = table(RECORDS)
    rows, told = listed(whole(lambda: files(made)["data.js"]))
    assert (told["names"], told["total"], told["directory"]) == (list(RECORDS[0]), 40, "./episodes")
    assert [row[1] for row in rows] == [number * 2 for number in range(40)]
    assert rows[0][2] == HOSTILE[0]
    assert b"</" not in files(made)["data.js"].whole()
    assert whole(lambda: files(made)["index.html"]) == whole(lambda: files(table([]))["index.html"])


def test_rows_with_other_fields_keep_their_names() -> None:
    records = [{"a": 1, "b": 2}, {"b": 3, "c": [4]}, {"a": 5, "b": 6}]
    rows, told = listed(bytes(files(table(records))["data.js"].whole()))
    assert told["names"] == ["a", "b"]
    assert rows == [[1, 2], {"b": 3, "c": [4]}, [5, 6]]
    rows, told = listed(bytes(files(table([]))["data.js"].whole()))
    assert rows == [] and told["total"] == 0


def test_integers_beyond_script_precision_are_text() -> None:
    values = [1, 2**53 - 1, 2**53 + 1, 2**64 - 1, -(2**60) - 1, 10**200]
    rows, _ = listed(bytes(files(table([{"id": value} for value in values]))["data.js"].whole()))
    assert [row[0] for row in rows] == [1, 2**53 - 1, str(2**53 + 1), str(2**64 - 1), str(-(2**60) - 1), "…"]


@pytest.mark.parametrize(("name", "value", "expected"), [("MOST_ROWS", 10, 10), ("MOST_BYTES", 700, None)])
def test_too_long_list_is_cut(monkeypatch: pytest.MonkeyPatch, name: str, value: int, expected: int | None) -> None:
    monkeypatch.setattr(html, name, value)
    data = whole(lambda: files(table(RECORDS))["data.js"])
    rows, told = listed(data)
    assert told["total"] == 40
    assert len(rows) == expected if expected else 0 < len(rows) < 40 and len(data) < value + 200


def test_tables_without_directories_have_no_page() -> None:
    assert not files(table(RECORDS, directory=b""))
    assert not files(Table(b"steps", 4, list))


class OverFolder(Joined):
    """A table over a folder, with these records."""

    name = "episodes"
    title = "robots </script>"
    is_first = True
    rows = 0

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.key, self.records, self.directory = b"", table(records).records, b""
        self.tables = lambda: [self.name, "</script>"]

    def path_of(self, record: dict[str, Any]) -> str:
        return f"{record['container']}/{record['position']}"

    def attributes(self) -> dict[str, str]:
        return {"omitted": "3", "error": "</script>"}


def test_folder_page_loads_no_data() -> None:
    """A folder may have a data.js of its own."""
    records = [{"container": f"{text}.kdb", "position": number} for number, text in enumerate(HOSTILE)]
    found = files(OverFolder(records))
    assert list(found) == ["index.html"]
    data = whole(lambda: found["index.html"])
    rows, told = listed(data)
    names = [shown(text) if "\0" not in text else text for text in HOSTILE]
    assert rows == [[f"{name}.kdb", number, f"{name}.kdb/{number}"] for number, name in enumerate(names)]
    assert (told["omitted"], told["error"], told["directory"]) == ("3", "</script>", None)
    assert told["title"] == OverFolder.title
    assert (told["table"], told["tables"]) == ("episodes", ["episodes", "</script>"])
    tags = Page(data).tags
    assert [tag for tag, _ in tags].count("script") == 2
    (policy,) = [attributes["content"] for _, attributes in tags if attributes.get("http-equiv")]
    assert policy is not None and "script-src 'sha256-" in policy
    assert "file:" not in policy.partition("script-src")[2].partition(";")[0]


def test_lists_have_the_text_of_their_selection() -> None:
    of_folder = OverFolder([{"container": "a", "position": 0}])
    for one, name in ((table(RECORDS), "data.js"), (of_folder, "index.html")):
        assert listed(bytes(files(one)[name].whole()))[1]["selection"] is None
        one.selection = Selection("success\n</script>" + 5000 * "x")
        assert listed(bytes(files(one)[name].whole()))[1]["selection"] == one.selection.text[:4000] + "…"


def test_pages_of_other_tables_have_their_names() -> None:
    class Others(OverFolder):
        name = "<b>things"
        is_first = False

    found = files(Others([{"container": "a", "position": 0, "size": 3}]))
    assert list(found) == ["<b>things.html"]
    page = whole(lambda: found["<b>things.html"])
    assert "b" not in [tag for tag, _ in Page(page).tags] and b"things.jsonl" in page
    rows, told = listed(page)
    assert rows == [["a", 0, 3, "a/0"]] and told["table"] == "<b>things"


def test_list_takes_no_memory_beyond_the_cache() -> None:
    cache = BlockCache(1 << 20)
    many = [{"language_instruction": "x" * 900, "position": number} for number in range(8000)]
    data = files(table(many, block=500), cache)["data.js"]
    assert data.size > 6 << 20
    assert sum(map(len, data.pieces())) == data.size
    assert cache.used <= cache.budget


def data_of(*columns: Column, rows: int) -> bytes:
    return whole(lambda: files(recording({}, columns, rows))["data.js"])


@given(st.sampled_from(DTYPES), st.integers(1, 9000), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=60)
def test_points(dtype: str, rows: int, channels: int, seed: int) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, rows * channels * np.dtype(dtype).itemsize, np.uint8)
    array = (raw & 1 if dtype == "|b1" else raw).view(dtype).reshape(rows, channels)
    told, (points,) = plotted(data_of(array_column(b"values", array), rows=rows))
    (shown,) = told["columns"]
    assert points is not None and points.shape[1] <= view_html.POINTS
    with np.errstate(invalid="ignore"):
        expected: Any = array.astype(points.dtype)
    if rows <= view_html.POINTS:
        np.testing.assert_array_equal(points, expected.T)
        return
    stretch = shown["stretch"]
    assert shown["taken"] == stretch
    for number in range(0, points.shape[1] // 2, 37):
        part = expected[number * stretch : (number + 1) * stretch]
        np.testing.assert_array_equal(points[:, 2 * number], np.fmin.reduce(part))
        np.testing.assert_array_equal(points[:, 2 * number + 1], np.fmax.reduce(part))


def test_large_integers_stay_distinct() -> None:
    ticks = np.arange(50, dtype="<i8") * 33_000_000 + 1_700_000_000_000_000_000
    _, (points,) = plotted(data_of(array_column(b"ticks", ticks), rows=50))
    assert points is not None and len(set(points[0])) == 50


def test_size_reads_no_values() -> None:
    state, reward = Noted(4 * 7 * 100_000), Noted(4 * 100_000)
    arrays = Array(b"", state, "<f4", (100_000, 7)), Array(b"", reward, "<f4", (100_000,))
    data = files(recording({}, [Column(b"", array) for array in arrays], 100_000))["data.js"]
    assert data.size > 4 * 8 * view_html.POINTS
    assert data.read(0, 100).startswith(b'"use strict";\nglassfs.columns({')
    assert not state.read_ranges and not reward.read_ranges
    data.read(data.size - 10, 10)
    assert reward.read_ranges and not state.read_ranges


def test_only_some_of_very_many_bytes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_html, "MOST_READ", 1 << 20)
    noted = Noted(4 * 1000 * 4_000_000_000)
    array = Array(b"x", noted, "<f4", (4_000_000_000, 1000))
    told, (points,) = plotted(bytes(files(recording({}, [Column(b"x", array)], 4_000_000_000))["data.js"].whole()))
    (shown,) = told["columns"]
    assert points is not None and points.shape == (view_html.MOST_CHANNELS // 2, view_html.POINTS)
    assert shown["taken"] < shown["stretch"] == 4_000_000
    assert noted.bytes_read <= 2 << 20
    assert told["leftOut"] == 1000 - view_html.MOST_CHANNELS // 2


def test_read_limit_covers_all_columns_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_html, "MOST_READ", 1 << 20)
    many = [Noted(4 * 1_000_000) for _ in range(8)]
    columns = [Column(b"x", Array(b"x", noted, "<f4", (1_000_000,))) for noted in many]
    files(recording({}, columns, 1_000_000))["data.js"].whole()
    assert 0 < sum(noted.bytes_read for noted in many) <= 1 << 20


def test_channels_are_limited() -> None:
    columns = [array_column(b"c%d" % number, np.zeros((10, 60), "<f4")) for number in range(6)]
    told, points = plotted(data_of(*columns, rows=10))
    assert [shown["channels"] for shown in told["columns"]] == [60, 60, 60, 60, 16]
    assert told["leftOut"] == 44 + 60 and len(points) == 5


def test_only_numbers_are_plotted() -> None:
    arrays = {
        "film": np.zeros((4, 8, 8, 3), "u1"), "when": np.zeros(4, "<M8[s]"), "complex": np.zeros(4, "<c8"),
        "none": np.zeros((4, 0), "<f4"), "other": np.zeros(5, "<f4"), "good": np.zeros((4, 2, 3), "<f4"),
    }
    columns = [Column(b"frame", Array(b"frame", Counted(4), "<i8", (4,)))]
    columns += [array_column(name.encode(), array) for name, array in arrays.items()]
    told, _ = plotted(data_of(*columns, rows=4))
    assert [(shown["name"], shown["items"]) for shown in told["columns"]] == [("good", 6)]
    told, _ = plotted(data_of(rows=0))
    assert told["columns"] == []


def test_damaged_column_leaves_others_readable() -> None:
    bad = Column(b"b", Array(b"b", Unreadable(400, Damaged("is cut")), "<f4", (100,)))
    _, points = plotted(data_of(array_column(b"a", np.ones(100)), bad, array_column(b"c", np.ones(100)), rows=100))
    assert [shown is None for shown in points] == [False, True, False]


def test_names_are_values() -> None:
    name = '"</script>\u2028'.encode() + b"\xff" * 1000
    told, _ = plotted(data_of(array_column(name, np.zeros(3, "<f4")), rows=3))
    assert told["columns"][0]["name"] == '"</script>\u2028' + "\ufffd" * 189 + "…"


def test_values_take_no_memory_beyond_the_cache() -> None:
    cache = BlockCache(2 << 20)
    columns = [
        Column(b"c%d" % number, Array(b"", Zeros(8 * 64 * 50_000), "<f8", (50_000, 64))) for number in range(4)
    ]
    data = files(recording({}, columns, 50_000), cache)["data.js"]
    assert sum(map(len, data.pieces())) == data.size
    assert cache.used <= cache.budget

"""Lists in Chromium: the command that selects what a page shows, and the selection that a table is of."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from glassfs.content import Selection
from glassfs.content.summary import COLUMNS
from glassfs.datasets.where import condition
from tests.chromium import Browser, needs_chromium
from tests.view import test_html_chromium
from tests.view.pages import files, table
from tests.view.test_html import OverFolder
from tests.view.test_html_chromium import labels, text

pytestmark = [needs_chromium, pytest.mark.slow]
started, chromium = test_html_chromium.started, test_html_chromium.chromium


@pytest.mark.parametrize("words", [
    "drawer", "OPEN arm", "it's", '"quoted"', "a\\b", "$(id) `id` !x", "слово 🤖 \x1b[0m", "front", "none",
])
def test_list_copies_its_filter_as_a_command(chromium: Browser, tmp_path: Path, words: str) -> None:
    """A shell and the condition take from it what the page shows."""
    rows = [
        (task, cameras, success) for task in ("open the drawer", "", f"{words}.") for cameras in ([], ["Front"], None)
        for success in (True, False, None) if task != "none."
    ]
    records = [
        {
            **dict.fromkeys(COLUMNS), "container": f"{number}.kdb", "position": 0, "language_instruction": task,
            "embodiment": "arm", "success": success, "cameras": cameras, "num_frames": 3,
        }
        for number, (task, cameras, success) in enumerate(rows)
    ]
    (tmp_path / "index.html").write_bytes(files(OverFolder(records))["index.html"].whole())
    chromium.open(tmp_path / "index.html")
    chromium.evaluate("""Object.defineProperty(navigator, "clipboard", {
        value: { writeText: async (text) => { window.copied = text; } },
    })""")
    assert chromium.evaluate("document.getElementById('copy').disabled")
    chromium.press("/")
    chromium.write(words)
    conditions = {"": "", "true": " and success", "false": " and not success", "null": " and success is null"}
    for outcome, end in conditions.items():
        chromium.evaluate(f"document.getElementById('outcome').value = '{outcome}'")
        chromium.evaluate("document.getElementById('outcome').onchange()")
        chromium.evaluate("document.getElementById('copy').click()")
        *command, found, source = shlex.split(chromium.evaluate("window.copied"))
        assert (command, source) == (["glassfs", "select", "--where"], OverFolder.title)
        assert found.endswith(f"){end}")
        is_chosen = condition(found)
        assert [f"{row['container']} · 0" for row in records if is_chosen(row)] == labels(chromium)
    assert all("/poster" in complaint for complaint in chromium.complaints)  # there are no images


@pytest.mark.parametrize(("column", "expected"), [
    ("language_instruction", """'(task ~ "cup")'"""), ("channels", """'(channels ~ "cup")'"""), ("mood", ""),
])
def test_command_of_a_container_has_its_columns(
    chromium: Browser, tmp_path: Path, column: str, expected: str,
) -> None:
    """Conditions know no other columns. The page does not know the name of the container's file."""
    for name, data in files(table([{column: "cup"}])).items():
        (tmp_path / name).write_bytes(data.whole())
    chromium.open(f"{(tmp_path / 'index.html').as_uri()}#filter=cup")
    found = chromium.evaluate("document.getElementById('copy').title")
    assert found == (expected and f"glassfs select --where {expected} SOURCE")
    assert chromium.evaluate("document.getElementById('copy').disabled") == (not expected)


def test_page_of_another_table_shows_its_selection(chromium: Browser, tmp_path: Path) -> None:
    records = [{"container": "a", "position": 0, "num_frames": 3}]
    page = OverFolder(records)
    page.selection = Selection("from </script>\n  <b>a</b>")
    page.name = "things"
    (tmp_path / "index.html").write_bytes(files(page)["index.html"].whole())
    chromium.open(f"{(tmp_path / 'index.html').as_uri()}#filter=a")
    assert chromium.evaluate("document.getElementById('copy').hidden")
    assert text(chromium, "#selection pre") == page.selection.text
    assert not chromium.evaluate("document.getElementById('selection').hidden")
    assert not chromium.complaints

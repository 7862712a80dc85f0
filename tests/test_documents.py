"""Documents and comments: cited sections exist, links have targets, commands, options and code are valid and work."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import make_samples
import numpy as np
import pytest
from writers.kinodb import KinoWriter

from glassfs.cache import BlockCache
from glassfs.cli import COMMANDS
from glassfs.cli import glassfs as program
from glassfs.content import Array, Memory
from glassfs.datasets.selections import read
from glassfs.mount.options import DESCRIPTIONS
from glassfs.view import View
from tests.cli.glassfs_command import glassfs
from tests.conftest import ROOT, Scale
from tests.library.conftest import write_datasets
from tests.mount.mounts import require
from tests.optional import package

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
LONGEST_README = 150

FORMAT_OF_MODULE = {"kastore": "kastore", "tskit": "kastore", "safetensors": "safetensors"}
FOREIGN_OPTIONS = {"--device", "--cap-add"}
NUMBERS = {"DEPTH": "1"}

# Names of documents; the sections after one belong to it.
_DOCUMENT = re.compile(r"(?P<page>(?:[\w.]+/)*\w+\.md)|(?P<foreign>RFC \d+|W3C Recommendation|PEP \d+)")
_SECTION = re.compile(r"§(\d+(?:\.\d+)*)")
_COMMENT = re.compile(r'^ *"""(?s:.*?)"""|(?:^(?:.*  )?# .*\n)+', re.MULTILINE)


def comments() -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and text of docstrings and of runs of adjacent comments in this project."""
    files = [path for place in ("src", "tests", "scripts") for path in sorted((ROOT / place).rglob("*"))]
    for path in (*files, ROOT / "setup.py", ROOT / ".ci/run"):
        if path.suffix == ".py" or (path.parent.name in ("scripts", ".ci") and path.is_file()):
            whole = path.read_text(encoding="utf-8")
            for match in _COMMENT.finditer(whole):
                yield path, whole.count("\n", 0, match.start()) + 1, match[0]


def page_of(path: Path) -> str:
    """Return the document that a bare § in this file refers to; "" if there is none."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[:3] != ("src", "glassfs", "formats"):
        return ""
    return f"formats/{FORMAT_OF_MODULE.get(parts[3], parts[3])}.md"


def citations(text: str, default: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of document and section ("" for the whole), except of documents of others, such as RFCs."""
    page: str | None = default
    for match in re.finditer(f"{_DOCUMENT.pattern}|{_SECTION.pattern}", text):
        if match["page"]:
            page = match["page"]
            yield page, ""
        elif match["foreign"]:
            page = None
        elif page is not None:
            yield page, match[3]


@cache
def found(page: str) -> Path | None:
    """Return the path of a cited document, given from the root of the repository or from docs/."""
    return next((path for path in (ROOT / page, DOCS / page) if page and path.is_file()), None)


@cache
def headings(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*)$", text, re.MULTILINE)


def has_section(path: Path, section: str) -> bool:
    return any(re.match(rf"{re.escape(section)}[. ]", heading) for heading in headings(path))


def error_in(page: str, section: str) -> str | None:
    """Return why the citation has no target, or None if it has one."""
    path = found(page)
    if path is None:
        return f"§{section} of no document" if not page else f"{page} is not there"
    return None if not section or has_section(path, section) else f"{page} has no §{section}"


def test_cited_sections_exist() -> None:
    cited: set[str] = set()
    wrong = []
    for path, line, text in comments():
        for page, section in citations(text, page_of(path)):
            cited.add(page)
            if error := error_in(page, section):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {error}")
    assert not wrong
    assert {f"formats/{name}.md" for name in ("ikv", "idv", "kastore", "kinodb", "npz", "wshard")} <= {
        page.removeprefix("docs/") for page in cited
    }


@pytest.mark.parametrize("path", sorted((DOCS / "formats").glob("*.md")), ids=lambda path: path.stem)
def test_sections_of_format_pages_are_numbered(path: Path) -> None:
    numbers = [int(match[1]) for heading in headings(path) if (match := re.match(r"(\d+)\. ", heading))]
    assert numbers == list(range(1, len(numbers) + 1))
    page = f"formats/{path.name}"
    wrong = [error for cited, section in citations(path.read_text(encoding="utf-8"), page)
             if cited == page and (error := error_in(cited, section))]
    assert not wrong


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, fragment = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (fragment and fragment not in map(anchor, headings(path))):
            wrong.append(target)
    assert not wrong


def test_architecture_page_names_modules_that_exist() -> None:
    modules = {path.name for place in ("src", "tests") for path in (ROOT / place).rglob("*.py")}
    named = set(re.findall(r"\b\w+\.py\b", (DOCS / "architecture.md").read_text(encoding="utf-8")))
    assert named and not named - modules


def test_security_page_cites_tests_that_exist() -> None:
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    cited = re.findall(r"`((?:[\w.]+/)*test_\w+\.py)(?:::(\w+))?`", text)
    assert len(cited) > 30
    for name, function in cited:
        path = ROOT / name if name.startswith("tests/") else ROOT / "tests/security" / name
        assert path.is_file(), name
        assert not function or f"def {function}(" in path.read_text(encoding="utf-8"), f"{name}::{function}"


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LONGEST_README


def command_of(name: str) -> click.Command | None:
    return program.get_command(click.Context(program), name)


def spellings(command: click.Command) -> set[str]:
    """Return all spellings of the options of a command."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {"--", "-h", "--help", *(name for option in options for name in (*option.opts, *option.secondary_opts))}


def lines_to_type(text: str) -> Iterator[str]:
    """Yield the glassfs commands in code blocks, each up to the first operator of the shell."""
    for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines() if language in ("", "sh") else ():
            match = re.match(r" *(?:\$ )?(?:sudo )?(?:[\w.]+/bin/)?glassfs +([^|>&#]*)", line)
            if match:
                yield match[1]


def lines_in_passing(text: str) -> Iterator[str]:
    """Yield the glassfs commands between backticks, literal ones and patterns."""
    for code in re.findall(r"`([^`]+)`", text):
        match = re.match(r"(?:sudo )?(?:[\w.]+/bin/)?glassfs +([^|>&#\\]*)", code)
        if match:
            yield re.sub(r"[][…]", " ", match[1])


def arguments(line: str) -> list[str]:
    return [NUMBERS.get(word, word) for word in shlex.split(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_valid(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in lines_to_type(text):
        name, *rest = arguments(line)
        command = command_of(name) if name in COMMANDS else None
        if name.startswith("-"):
            assert name in {"-V", "--version", "-h", "--help"}, line
            continue
        assert command is not None, line
        if not {"-h", "--help"} & set(rest):
            command.make_context(name, rest)  # raises click.UsageError for what the command does not take
    for line in lines_in_passing(text):
        name, *rest = arguments(line)
        assert name in COMMANDS or name in ("COMMAND", "--help", "--version"), line
        if name in COMMANDS:
            command = command_of(name)
            assert command is not None
            assert {word for word in rest if word.startswith("-") and word != "-"} <= spellings(command), line


def test_options_in_text_are_valid() -> None:
    known = set().union(*(spellings(command) for name in COMMANDS if (command := command_of(name)))) | FOREIGN_OPTIONS
    for page in (README, *sorted((DOCS / "manual").glob("*.md"))):
        for code in re.findall(r"`(-[^`]+)`", page.read_text(encoding="utf-8")):
            assert {word for word in code.split() if word.startswith("--")} <= known, f"{page.name}: {code}"


def rows(page: Path, heading: str) -> dict[str, str]:
    """Return the rows of the first table after a heading, by their first column."""
    text = page.read_text(encoding="utf-8").split(f"# {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    return {re.split(r"(?<!\\)\|", line)[1]: line for line in table[0].splitlines()[2:]}


def test_every_command_and_option_is_in_the_manual() -> None:
    lines = [line for cell in rows(DOCS / "manual/commands.md", "Commands") for line in lines_in_passing(cell)]
    described = {words[0]: words for words in map(arguments, lines)}
    assert described.keys() == COMMANDS.keys()
    for name, words in described.items():
        command = command_of(name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                assert {*option.opts, *option.secondary_opts} & set(words), f"glassfs {name}: {option.opts}"


def test_every_mount_option_is_in_the_manual() -> None:
    def names(text: str) -> set[str]:
        return set(re.findall(r"([a-z_]{3,})(?:=[A-Z]+)?(?:`|,|$)", text))

    described = {name for cell in rows(DOCS / "manual/mounting.md", "Options") for name in names(cell)}
    assert described == {name for text in DESCRIPTIONS for name in names(text)} - {"default_permissions"}


# Commands and code do what the documents say.


WITHOUT_A_MOUNT = {"ls", "tree", "cat", "info", "export", "verify"}


def python_in(page: str, containing: str) -> str:
    """Return the block of Python on a page that contains this text."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if containing in block)
    return block


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder as in the documents: robot.kdb beside a folder of containers."""
    (tmp_path / "datasets").mkdir()
    for path in (tmp_path / "robot.kdb", tmp_path / "datasets/robot.kdb"):
        make_samples.write_kinodb(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_commands_work(place: Path) -> None:
    lines = [words for words in map(arguments, lines_to_type(README.read_text(encoding="utf-8")))
             if words[0] in WITHOUT_A_MOUNT and "://" not in " ".join(words)]
    printed: dict[str, bytes] = {}
    assert {words[0] for words in lines} >= {"tree", "cat", "info", "export", "verify"}
    for words in lines:
        done = glassfs(*words)
        assert done.status == 0, f"glassfs {' '.join(words)}: {done.errors}"
        if words[0] == "cat":
            printed[words[2]] = done.output
    for path, data in printed.items():
        assert data and (place / "exported" / path).read_bytes() == data


def test_commands_of_selections_work(place: Path) -> None:
    """Those of the page in one shell, which unmounts what they mount; its example has no other keys than it may."""
    require()
    page = (DOCS / "manual/selecting.md").read_text(encoding="utf-8")
    commands, example = re.findall(r"^```\w*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    used = r"\1; ls mnt/robot.kdb/episodes; glassfs umount mnt"
    script = re.sub(r"^(glassfs mount .*? mnt)\b.*$", used, commands, flags=re.MULTILINE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, env=os.environ | {"PATH": path}, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["success"] for line in done.stdout.splitlines() if line[:1] == "{"] == [False]
    assert (place / "out/robot.kdb/episodes").is_dir() and not (place / "mnt").exists()
    (place / "example.toml").write_text(example)
    assert read(str(place / "example.toml")).splits == {"train": "0:90%", "valid": "90%:"}


def test_python_guide_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """All blocks, from top to bottom, as in a notebook."""
    write_datasets(tmp_path / "datasets")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "run2.kdb/episodes/2 24\n" in printed and "/episodes/0/state.npy\n" in printed
    assert "run1.kdb/episodes/0/sate: there is no such entry; the nearest: run1.kdb/episodes/0/state.npy" in printed
    assert names["data"]["run1.kdb"].attributes["format"] == "kinodb"
    assert names["array"].shape == (24, 7) and names["video"].shape[3] == 3
    assert str(names["times"][1]).startswith("1970-01-02")
    assert names["failed"]["language_instruction"].tolist() == ["open the drawer"] * 2
    assert names["actions"].shape == (24, 7) and (tmp_path / "episode.mp4").read_bytes()[4:8] == b"ftyp"
    assert names["nodes"]["time"].tolist() == [0, 0, 12.5] and names["sites"] == ["A", "G", "ACGT"]
    assert str(names["columns"]["Time"].dtype).startswith("datetime64")
    assert names["png"].startswith(b"\x89PNG")


def test_extras_of_the_guide_exist() -> None:
    extras = re.findall(r"glassfs\[(\w+)\]", (ROOT / "docs/python.md").read_text(encoding="utf-8"))
    offered = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extras and all(f"\n{extra} = [" in offered for extra in extras)


def test_advice_for_100ns_times_is_exact(tmp_path: Path) -> None:
    """Also for years that NumPy prints wrong as ``<M8[100ns]``."""
    assert '.astype("M8[us]")' in python_in("docs/python.md", "columns/Time")
    ticks = np.array([0, 15_778_800_000_000_000, 10**17], "<i8")
    path = tmp_path / "Time.npy"
    np.save(path, ticks.view("<M8[100ns]"))
    times = np.load(path).astype("M8[us]")
    assert (times.view("<i8") * 10 == ticks).all() and str(times[1]).startswith("2020-01-01")


def test_example_view_works() -> None:
    names: dict[str, object] = {}
    exec(python_in("docs/manual/views.md", "View("), names)
    view = names["SHAPE"]
    assert isinstance(view, View)
    (shown,) = view.show(Array(b"", Memory(bytes(24)), "<f8", (3,)), BlockCache(), ("version",))
    assert isinstance(shown.thing, Memory)
    assert (shown.suffix, shown.thing.read(0, shown.thing.size)) == (".shape", b"<f8 [3]\n")


# Examples run as they are, and type checkers accept what users write.


EXAMPLE = ROOT / "docs/examples/torch_dataset.py"
LINES = 60


def run_example(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the example, which warns where there are more workers than cores."""
    package("torch", "torch")
    command = [sys.executable, EXAMPLE, *map(str, words)]
    environment = os.environ | {"PYTHONWARNINGS": "ignore::UserWarning"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_dataset_for_pytorch(tmp_path: Path, scale: Scale) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("run1.kdb", "deep/run2.kdb"):
        make_samples.write_kinodb(tmp_path / name)
    done = run_example(tmp_path, "front", scale(2, 8))
    assert (done.stdout, done.stderr, done.returncode) == ("144 steps\n", "", 0)
    assert len(EXAMPLE.read_text().splitlines()) <= LINES


def test_the_dataset_says_what_is_missing(tmp_path: Path) -> None:
    make_samples.write_all(tmp_path)
    with KinoWriter(tmp_path / "other.kdb") as writer:
        image = np.zeros((96, 128, 3), np.uint8)
        writer.add_episode(np.zeros((2, 3), "<f4"), np.zeros((2, 7), "<f4"), images=[{"front": image}] * 2)
        writer.add_episode(np.zeros((2, 7), "<f4"), np.zeros((2, 7), "<f4"))
    done = run_example(tmp_path, "front")
    assert (done.stdout, done.returncode) == ("72 steps\n", 0)
    said = "they lack camera 'front', or a state of 7 and an action of 7 values"
    assert done.stderr == f"{tmp_path}: 4 of 7 episodes are left out: {said}\n"
    done = run_example(tmp_path, "top", 2)
    assert (done.stdout, done.returncode) == ("", 1)
    cameras = "'front' in 4, 'wrist' in 3, 'signal/rgb' in 1"
    assert f"no episode has camera 'top', state and action; cameras: {cameras}" in done.stderr


def test_the_dataset_gives_each_step_its_own(tmp_path: Path) -> None:
    package("torch", "torch")
    make_samples.write_kinodb(tmp_path / "run.kdb")
    spec = importlib.util.spec_from_file_location("torch_dataset", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    steps = module.Steps(str(tmp_path), "wrist")
    assert len(steps) == 72
    for number in (0, 23, 24, 47, 48, 71):
        image, state, action = steps[number]
        episode = steps.data[f"run.kdb/episodes/{number // 24}"]
        assert (image == episode[f"images/wrist/{number % 24:06d}"].numpy()).all()
        assert (state == episode["state"].numpy()[number % 24]).all()
        assert (action == episode["action"].numpy()[number % 24]).all()


# Type checkers, in a project of a user's own, find what is wrong in it.


PROJECT = ROOT / "tests/library/user_project.py"
WRONG = """
import glassfs

with glassfs.open("a") as data:
    data["a"].numpy().nothing_of_arrays
    data["a"].nothing
    data["a"]["b"].nothing
    data["a"][1:].nothing_of_arrays
    number: int = data["a"].bytes()
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_type_checkers_accept_what_users_write(checker: str, tmp_path: Path) -> None:
    """basedpyright is pyright with a Node.js of its own, so that nothing has to be fetched to run it."""
    shutil.copy(PROJECT, tmp_path / "right.py")
    (tmp_path / "wrong.py").write_text(WRONG)
    settings = {"typeCheckingMode": "strict", "venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = {"mypy": ["mypy", "--strict", "--cache-dir", str(tmp_path)], "basedpyright": ["basedpyright"]}[checker]

    def complaints(name: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", *command, name], cwd=tmp_path, capture_output=True, text=True, check=False,
        )
        return [line for line in done.stdout.splitlines() if " error: " in line or " - error" in line]

    assert complaints("right.py") == []
    assert len(complaints("wrong.py")) >= 5

"""What a container has and its tree does not show: every command names it (docs/manual/contents.md, "Not shown")."""

from __future__ import annotations

import html
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import glassfs as library
from glassfs.errors import NoSuchEntry
from tests.cli.glassfs_command import glassfs
from tests.formats.hdf5_files import nested, write_aloha

MEMBERS = {"df/table", "link", "only/far"}


def write_partly_shown(path: Path) -> Path:
    """Write a dataset that is shown, one of a type that is not, and external links, one of them in a group alone."""
    with h5py.File(path, "w") as file:
        file["df/kept"] = np.arange(3)
        kind = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
        kind.insert(b"values", 0, h5py.h5t.array_create(nested(9), (2,)))
        h5py.h5d.create(file["df"].id, b"table", kind, h5py.h5s.create_simple((3,)))
        file["link"] = h5py.ExternalLink("other.h5", "/x")
        file["only/far"] = h5py.ExternalLink("other.h5", "/x")
    return path


def write_damaged(path: Path) -> Path:
    """Write a group with an object whose header is no header; the library cannot describe it."""
    with h5py.File(path, "w") as file:
        file["kept"] = np.arange(3)
        file["lost"] = np.arange(4)
        offset = h5py.h5o.get_info(file["lost"].id).addr
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(data)
    return path


@pytest.fixture
def partly(tmp_path: Path) -> Path:
    return write_partly_shown(tmp_path / "a.h5")


def test_ls_names_the_omitted_members_of_the_listed_group(partly: Path) -> None:
    reason = "external link: other.h5: is missing"
    assert glassfs("ls", partly).errors == [f"glassfs: omitted: link: {reason}"]
    done = glassfs("ls", partly, "/df")
    assert done.status == 0 and done.lines == ["kept.npy"]
    assert [line.partition(": ")[2].partition(": comp")[0] for line in done.errors] == ["omitted: df/table"]
    assert len(glassfs("ls", "-R", partly).errors) == len(MEMBERS)


def test_tree_ends_each_group_with_what_it_omits(partly: Path) -> None:
    lines = glassfs("tree", partly).lines
    assert lines[-1] == "└── omitted: link: external link: other.h5: is missing"
    assert "│   └── omitted: far: external link: other.h5: is missing" in lines


def test_info_names_and_counts_what_is_omitted(partly: Path) -> None:
    found = json.loads(glassfs("info", "--json", partly).output)
    assert {line.partition(":")[0] for line in found["omitted"]} == MEMBERS
    assert found["contents"]["omitted"] == 3 and not found["unreadable"]
    assert sum("  omitted: " in line for line in glassfs("info", partly).lines) == 3
    assert json.loads(glassfs("info", "--json", f"{partly}/df").output)["contents"]["omitted"] == 1


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_export_ends_with_status_1_unless_omissions_are_allowed(partly: Path, tmp_path: Path, jobs: int) -> None:
    target = tmp_path / "out"
    done = glassfs("export", partly, target, "--jobs", str(jobs))
    assert done.status == 1 and (target / "df/kept.npy").is_file()
    assert {name for name in MEMBERS for line in done.errors if f"/{name}: omitted: " in line} == MEMBERS
    assert "3 of its contents are omitted" in done.errors[-1]
    done = glassfs("export", partly, target, "--overwrite", "--allow-omissions", "--jobs", str(jobs))
    assert done.status == 0 and sum(": omitted: " in line for line in done.errors) == 3


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_verify_names_omissions_apart_from_faults(partly: Path, jobs: int) -> None:
    done = glassfs("verify", "--json", partly.parent, "--jobs", str(jobs))
    found = [json.loads(line) for line in done.lines]
    assert done.status == 0 and {one["place"] for one in found} == MEMBERS and all(one["omitted"] for one in found)
    done = glassfs("verify", partly, "--jobs", str(jobs))
    assert done.status == 0 and done.errors == ["1 container, 0 faults, 3 omitted"]


def test_a_report_has_omissions_and_a_resumed_run_counts_them(partly: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    glassfs("verify", partly, "--report", report)
    (line,) = map(json.loads, report.read_text().splitlines())
    assert line["ok"] and not line["faults"] and len(line["omitted"]) == 3
    assert glassfs("verify", partly, "--report", report, "--resume").errors[0].startswith("1 container, 0 faults, 3 om")


def test_python_gives_the_reason_for_a_missing_member(partly: Path) -> None:
    with library.open(partly) as data:
        for path in ("df/table", "df/table.npy"):
            with pytest.raises(NoSuchEntry, match="omitted: table: compound"):
                data[path]
        assert data.get("df/table") is None
        assert data.attributes["omitted"].startswith("link: external link: ")
    assert "omitted: table: compound" in glassfs("cat", f"{partly}/df/table").errors[0]


def test_members_that_cannot_be_described_are_damage(tmp_path: Path) -> None:
    path = write_damaged(tmp_path / "a.h5")
    done = glassfs("verify", path)
    assert done.status == 1 and len(done.lines) == 1 and f"{path}: lost: " in done.lines[0]
    assert done.errors == ["1 container, 1 fault"]
    for command in ("ls", "tree"):
        done = glassfs(command, path)
        assert done.status == 1 and any("damaged: lost: " in line for line in [*done.lines, *done.errors])
    assert glassfs("export", path, tmp_path / "out", "--allow-omissions").status == 1
    with library.open(path) as data, pytest.raises(NoSuchEntry, match="damaged: lost: "):
        data["lost"]


def test_the_page_of_an_episode_names_what_the_episode_omits(tmp_path: Path) -> None:
    path = write_aloha(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["observations/<far>"] = h5py.ExternalLink("other.h5", "/x")
    page = glassfs("cat", path, "index.html").output.decode()
    assert "<far>" not in page and "Left out: observations/<far>: external link: " in html.unescape(page)


def test_lines_about_very_many_members_are_bounded(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(250):
            file[f"link{number}"] = h5py.ExternalLink("other.h5", "/x")
    errors = glassfs("ls", tmp_path / "a.h5").errors
    assert len(errors) == 101 and errors[-1] == "glassfs: omitted: 150 more"
    with library.open(tmp_path / "a.h5") as data:
        assert data.attributes["omitted"].endswith("; 150 more")

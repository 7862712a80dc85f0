"""What a folder, a bucket or a container has and its tree does not show: every command names it.

See docs/manual/contents.md, "Not shown": "0 faults" says of what.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import glassfs as library
from glassfs.datasets.selecting import open_sources
from glassfs.errors import NoSuchEntry
from glassfs.tree import Directory, Symlink
from glassfs.tree.omissions import Omission
from tests.cli.glassfs_command import glassfs
from tests.datasets.batch.many import sound
from tests.formats.hdf5_files import nested, write_aloha
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, S3Server

DEEPEST = 256
MEMBERS = {"df/table", "link", "only/far"}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """The snapshot of a download by Hugging Face: links to one container, to missing data, and to a folder."""
    tmp_path.chmod(0o755)
    (tmp_path / "blobs").mkdir(mode=0o755)
    sound(tmp_path / "blobs/4d7a")
    snapshot = tmp_path / "snapshots/0123"
    snapshot.mkdir(parents=True, mode=0o755)
    for name, target in (("run.kas", "4d7a"), ("gone.kas", "none")):
        (snapshot / name).symlink_to(f"../../blobs/{target}")
    return snapshot


def test_a_container_behind_a_link_is_a_directory(snapshot: Path, tmp_path: Path) -> None:
    for name, target in (("gone.txt", "../../blobs/none"), ("folder", "../../blobs/"), ("inside.kas", "nowhere.kas")):
        (snapshot / name).symlink_to(target)
    with open_sources([str(snapshot)]).tree as tree:
        assert tree.file("run.kas/nodes/time.npy").size > 40
        assert isinstance(tree.lookup("folder"), Symlink)
        omitted = {one.name: one for one in tree.root.omitted()}
    named = f"link out of the source: ../../blobs/: {tmp_path}/blobs is a folder, which has to be named itself"
    assert omitted == {
        "folder": Omission("folder", named),
        "gone.kas": Omission("gone.kas", "link to nothing: ../../blobs/none", True),
        "inside.kas": Omission("inside.kas", "link to nothing: nowhere.kas", True),
    }
    assert np.array_equal(library.open(snapshot)["run.kas/nodes/time"][:], np.arange(20.0))
    with open_sources([str(snapshot)], follows=False).tree as tree:  # as a mount does unless asked
        assert {type(node) for node in tree.root.listing()} == {Symlink}
        reasons = {one.name: one.reason for one in tree.root.omitted()}
    assert set(reasons) == {"run.kas", "gone.kas", "gone.txt", "folder"}
    assert all("-o follow_links" in reason for reason in reasons.values())


def test_a_replaced_blob_is_noticed(snapshot: Path, tmp_path: Path) -> None:
    """Nothing reports changes in the folder of the blobs."""
    with open_sources([str(snapshot)]).tree as tree:
        before = tree.lookup("run.kas")
        assert isinstance(before, Directory)
        sound(tmp_path / "new").replace(tmp_path / "blobs/4d7a")
        assert tree.file("run.kas/nodes/time.npy").size > 40
        assert tree.lookup("run.kas").origin.identity != before.origin.identity


def test_containers_behind_links_are_verified(snapshot: Path, tmp_path: Path) -> None:
    lost = f"{snapshot}/gone.kas: link to nothing: ../../blobs/none"
    done = glassfs("verify", snapshot)
    assert (done.status, done.lines, done.errors) == (1, [lost], ["1 container, 1 fault"])
    done = glassfs("info", snapshot)
    assert done.lines[0].startswith(f"{snapshot}: 1 container") and done.lines[-1] == f"  unreadable: {lost}"
    (snapshot / "gone.kas").unlink()
    for number, options in enumerate(((), ("--report", tmp_path / "report"))):
        done = glassfs("export", *options, snapshot, tmp_path / f"out{number}")
        assert done.status == 0 and not [path for path in (tmp_path / f"out{number}").rglob("*") if path.is_symlink()]
    (tmp_path / "blobs/4d7a").write_bytes(b"damaged")
    assert glassfs("verify", snapshot).lines == [f"{snapshot}/run.kas: is not a container of a known format"]


def test_links_that_are_not_followed_are_omitted(snapshot: Path, tmp_path: Path) -> None:
    (snapshot / "gone.kas").unlink()
    (tmp_path / "blobs").chmod(0o777)
    reason = f"link out of the source: ../../blobs/4d7a: others may write in {snapshot.parent.parent}/blobs"
    done = glassfs("verify", snapshot)
    assert (done.status, done.errors) == (0, ["0 containers, 0 faults, 1 omitted"])
    assert done.lines == [f"{snapshot}/run.kas: omitted: {reason}"]
    assert f"  omitted: {snapshot}/run.kas: {reason}" in glassfs("info", snapshot).lines
    assert any("omitted" in line and reason in line for line in glassfs("ls", snapshot).errors)
    assert any("omitted" in line and reason in line for line in glassfs("tree", snapshot).lines)
    for number, options in enumerate(((), ("--report", tmp_path / "report"))):
        out = tmp_path / f"out{number}"
        done = glassfs("export", *options, snapshot, out)
        assert done.status == 1 and reason in done.errors[0] and (out / "run.kas").is_symlink()
        assert glassfs("export", "--overwrite", "--allow-omissions", snapshot, out).status == 0
    with pytest.raises(KeyError, match="others may write"):
        library.open(snapshot)["run.kas"]


def test_unknown_bytes_under_the_name_of_a_container_are_a_fault(tmp_path: Path) -> None:
    """Damage of the first bytes looks just like it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/other.kdb").write_bytes(b"\x03\xd9\xa2\x9a of a password manager")
    (tmp_path / "data/notes.txt").write_bytes(b"text")
    line = f"{tmp_path}/data/other.kdb: is not a container of a known format"
    assert glassfs("verify", tmp_path / "data").lines == [line]
    done = glassfs("info", "--json", tmp_path / "data")
    assert (done.status, json.loads(done.output)["unreadable"]) == (1, [line])
    assert glassfs("episodes", tmp_path / "data").errors == [f"glassfs: {line}"]


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    data = sound(tmp_path / "sound.kas").read_bytes()
    keys = ("ok.kas", "both.kas", "both.kas/inner.kas", "double//slash.kas", "dot/./x.kas")
    return Bucket({"empty.kas": b""} | dict.fromkeys(keys, data))


def test_objects_that_no_file_shows_are_named_by_commands(s3: S3Server, tmp_path: Path) -> None:
    options = ("-o", f"endpoint={s3.url}", "s3://bucket")
    done = glassfs("verify", *options)
    assert (done.status, done.errors) == (1, ["3 containers, 1 fault, 3 omitted"])
    assert {line.split(": ")[0] for line in done.lines if "omitted: object name" in line} == {
        "s3://bucket/both.kas", "s3://bucket/double//", "s3://bucket/dot/./",
    }
    assert "s3://bucket/empty.kas: is empty" in done.lines
    assert sum("  omitted: s3://bucket/" in line for line in glassfs("info", *options).lines) == 3
    done = glassfs("export", *options, tmp_path / "out")
    assert done.status == 1 and sum("omitted: object name" in line for line in done.errors) == 3
    assert glassfs("export", "--allow-omissions", *options, tmp_path / "again").status == 0


@pytest.mark.parametrize("command", [
    ["verify"], ["tree"], *(pytest.param(each, marks=pytest.mark.slow) for each in (["info"], ["ls", "-R"])),
])
def test_folders_without_end_are_named(command: list[str]) -> None:
    def answer(request: Request) -> Reply:
        page = b'<html><title>Index of /</title><body><a href="d/">d/</a></body></html>'
        return Reply(200, [("Content-Type", "text/html")], page) if request.method == "GET" else Reply(405)

    with HttpServer(answer) as server:
        done = glassfs(*command, f"{server.url}/")
    assert done.status == 1
    (said,) = [line for line in [*done.lines, *done.errors] if f"is more than {DEEPEST} folders deep" in line]
    assert command == ["tree"] or "/d" * (DEEPEST + 1) in said


# In containers.


@pytest.fixture
def partly(tmp_path: Path) -> Path:
    """Return a dataset that is shown, one of a type that is not, and external links, one of them in a group alone."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["df/kept"] = np.arange(3)
        kind = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
        kind.insert(b"values", 0, h5py.h5t.array_create(nested(9), (2,)))
        h5py.h5d.create(file["df"].id, b"table", kind, h5py.h5s.create_simple((3,)))
        file["link"] = h5py.ExternalLink("other.h5", "/x")
        file["only/far"] = h5py.ExternalLink("other.h5", "/x")
    return path


def test_ls_and_tree_name_the_omitted_members_of_each_group(partly: Path) -> None:
    reason = "external link: other.h5: is missing"
    assert glassfs("ls", partly).errors == [f"glassfs: omitted: link: {reason}"]
    done = glassfs("ls", partly, "/df")
    assert done.status == 0 and done.lines == ["kept.npy"]
    assert [line.partition(": ")[2].partition(": comp")[0] for line in done.errors] == ["omitted: df/table"]
    assert len(glassfs("ls", "-R", partly).errors) == len(MEMBERS)
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
def test_verify_names_omissions_apart_from_faults(partly: Path, tmp_path: Path, jobs: int) -> None:
    done = glassfs("verify", "--json", partly.parent, "--jobs", str(jobs))
    found = [json.loads(line) for line in done.lines]
    assert done.status == 0 and {one["place"] for one in found} == MEMBERS and all(one["omitted"] for one in found)
    report = tmp_path / "report.jsonl"
    for more in ((), ("--resume",)):
        done = glassfs("verify", partly, "--jobs", str(jobs), "--report", report, *more)
        assert done.status == 0 and done.errors == [f"1 container, 0 faults, 3 omitted; report in {report}"]
    (line,) = map(json.loads, report.read_text().splitlines())
    assert line["ok"] and not line["faults"] and len(line["omitted"]) == 3


def test_python_gives_the_reason_for_a_missing_member(partly: Path) -> None:
    with library.open(partly) as data:
        for path in ("df/table", "df/table.npy"):
            with pytest.raises(NoSuchEntry, match="omitted: table: compound"):
                data[path]
        assert data.get("df/table") is None
        assert data.attributes["omitted"].startswith("link: external link: ")
    assert "omitted: table: compound" in glassfs("cat", f"{partly}/df/table").errors[0]


def test_members_that_cannot_be_described_are_damage(tmp_path: Path) -> None:
    """The header of an object is no header."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["kept"], file["lost"] = np.arange(3), np.arange(4)
        offset = h5py.h5o.get_info(file["lost"].id).addr
    with path.open("r+b") as raw:
        raw.seek(offset)
        raw.write(b"\xff" * 8)
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

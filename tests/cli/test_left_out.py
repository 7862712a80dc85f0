"""What a folder has and a tree does not show is named: "0 faults" says of what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import glassfs as api
from tests.cli.glassfs_command import glassfs
from tests.datasets.batch.many import sound
from tests.remote import servers
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, S3Server

DEEPEST = 256


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
        api.open(snapshot)["run.kas"]


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
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    data = sound(tmp_path / "sound.kas").read_bytes()
    keys = ("ok.kas", "both.kas", "both.kas/inner.kas", "double//slash.kas", "dot/./x.kas", "empty.kas")
    with S3Server({"bucket": Bucket({key: b"" if key == "empty.kas" else data for key in keys})}) as server:
        for name, value in {**servers.CREDENTIALS, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        yield


def test_objects_that_no_file_shows_are_named_by_commands(bucket: None, tmp_path: Path) -> None:
    done = glassfs("verify", "s3://bucket")
    assert (done.status, done.errors) == (1, ["3 containers, 1 fault, 3 omitted"])
    assert {line.split(": ")[0] for line in done.lines if "omitted: object name" in line} == {
        "s3://bucket/both.kas", "s3://bucket/double//", "s3://bucket/dot/./",
    }
    assert "s3://bucket/empty.kas: is empty" in done.lines
    assert sum("  omitted: s3://bucket/" in line for line in glassfs("info", "s3://bucket").lines) == 3
    done = glassfs("export", "s3://bucket", tmp_path / "out")
    assert done.status == 1 and sum("omitted: object name" in line for line in done.errors) == 3
    assert glassfs("export", "--allow-omissions", "s3://bucket", tmp_path / "again").status == 0


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

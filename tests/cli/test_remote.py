"""Test the commands on URLs: a bucket, and a web server with signed URLs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from glassfs import installing
from tests.cli.conftest import VALUES
from tests.cli.glassfs_command import fails, glassfs
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, S3Server, answer_object

SECRET = "hunter2"


@pytest.fixture
def bucket(store: Path, robot: Path) -> Bucket:
    return Bucket({
        "data/store.kas": store.read_bytes(), "data/sub/robot.kdb": robot.read_bytes(), "data/text.txt": b"text",
        "lone.kas": store.read_bytes(), "odd/plain": store.read_bytes(), "odd/wrong.kas": b"text",
    })


@pytest.fixture
def web(bucket: Bucket) -> Iterator[HttpServer]:
    """Serve objects to requests with the signature; refuse listings."""

    def answer(request: Request) -> Reply:
        made = bucket.get(request.path.removeprefix("/"))
        is_allowed = request.query.get("X-Amz-Signature") == SECRET
        return answer_object(made, request) if made is not None and is_allowed else Reply(404 if is_allowed else 403)

    with HttpServer(answer) as server:
        yield server


def test_commands_print_the_same_as_for_files(s3: S3Server, store: Path, robot: Path) -> None:
    options = ["-o", f"endpoint={s3.url}", "-o", "region=us-east-1"]
    assert glassfs("ls", *options, "s3://bucket").lines == ["data/", "lone.kas/", "odd/"]
    assert glassfs("ls", *options, "s3://bucket/data/").lines == ["store.kas/", "sub/", "text.txt"]
    assert glassfs("ls", *options, "s3://bucket/data/store.kas/nodes").lines == ["flags.npy", "time.npy"]
    assert glassfs("tree", *options, "s3://bucket/lone.kas").lines[1:] == glassfs("tree", store).lines[1:]
    raw = glassfs("cat", *options, "s3://bucket/data/store.kas/nodes/time.npy").output
    assert np.array_equal(np.load(io.BytesIO(raw)), VALUES)
    assert glassfs("cat", *options, "s3://bucket", "data/text.txt").output == b"text"
    names = [json.loads(line)["name"] for line in glassfs("arrays", store).lines]
    found = [json.loads(line) for line in glassfs("arrays", "--hash", *options, "s3://bucket/data/").lines]
    assert [(row["container"], row["name"]) for row in found] == [("store.kas", name) for name in names] and names
    episode = "episodes/0/meta/episode.json"
    both = glassfs("cat", *options, f"s3://bucket/data/sub/robot.kdb/{episode}", "s3://bucket/lone.kas/nodes/flags.npy")
    assert both.output == glassfs("cat", robot, episode).output + glassfs("cat", store, "nodes/flags.npy").output
    compared = glassfs("diff", *options, "s3://bucket/data/store.kas", store)
    assert (compared.lines, compared.errors, compared.status) == ([], ["glassfs: 4 same"], 0)
    compared = glassfs("diff", *options, "s3://bucket/data/", "s3://bucket/odd/")
    assert (len(compared.lines), compared.status) == (5, 1)


def test_names_decide_what_is_listed_as_a_container(s3: S3Server, store: Path, tmp_path: Path) -> None:
    """A file with a container's name is a file to all commands that read it."""
    options = ["-o", f"endpoint={s3.url}"]
    assert glassfs("ls", *options, "s3://bucket/odd").lines == ["plain", "wrong.kas/"]
    for words in (["ls", "-R"], ["tree"], ["export"]):
        done = glassfs(*words, *options, "s3://bucket/odd", *[tmp_path / "out"][: words == ["export"]])
        assert (done.status, len(done.errors)) == (0, words == ["export"])
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        "plain": store.read_bytes(), "wrong.kas": b"text",
    }
    assert glassfs("cat", *options, "s3://bucket/odd", "wrong.kas").output == b"text"
    assert glassfs("ls", *options, "s3://bucket/odd", "wrong.kas").lines == ["wrong.kas"]
    assert glassfs("ls", *options, "s3://bucket/odd/plain").lines == glassfs("ls", store).lines


def test_info_of_a_bucket(s3: S3Server, bucket: Bucket, store: Path) -> None:
    options = ["-o", f"endpoint={s3.url}"]
    remote = json.loads(glassfs("info", "--json", *options, "s3://bucket/lone.kas").output)
    assert remote | {"source": str(store)} == json.loads(glassfs("info", "--json", store).output)
    bucket.put("data/broken.kas", b"\x89KAS\r\n\x1a\n")
    done = glassfs("info", "--json", *options, "s3://bucket/data")
    found = json.loads(done.output)
    assert {name: sums["containers"] for name, sums in found["formats"].items()} == {"kastore": 1, "kinodb": 1}
    assert [sentence.split(": ")[0] for sentence in found["unreadable"]] == ["s3://bucket/data/broken.kas"]
    assert (done.status, done.errors) == (1, [])


def test_info_reads_only_objects_named_like_containers(s3: S3Server) -> None:
    glassfs("info", "-o", f"endpoint={s3.url}", "s3://bucket/data")
    asked = {request.path for request in s3.requests if not request.is_listing}
    assert asked == {"/bucket/data/store.kas", "/bucket/data/sub/robot.kdb"}


@pytest.mark.slow
def test_commands_read_signed_urls(web: HttpServer) -> None:
    url = f"{web.url}/lone.kas?X-Amz-Signature={SECRET}"
    assert glassfs("ls", url, "nodes").lines == ["flags.npy", "time.npy"]
    raw = glassfs("cat", url, "nodes/time.npy").output
    assert np.array_equal(np.load(io.BytesIO(raw)), VALUES)
    done = glassfs("info", "--quick", url)
    assert done.lines[0].startswith(f"{web.url}/lone.kas: kastore 1.0")
    fails(glassfs("cat", url, "nodes/tim"), (
        f"nodes/tim: no such file or directory in {web.url}/lone.kas; the nearest: nodes/time.npy"
    ))
    assert glassfs("tree", url).lines[0] == f"{web.url}/lone.kas"


@pytest.mark.parametrize("words", [
    ["ls"], *(pytest.param(words, marks=pytest.mark.slow) for words in (["tree"], ["info"], ["cat", "nodes/time.npy"])),
])
def test_errors_are_one_line_without_secrets(web: HttpServer, words: list[str]) -> None:
    for place, query in (
        ("lone.kas", "?X-Amz-Signature=hunter3"), ("none.kas", f"?X-Amz-Signature={SECRET}"),
        ("data/text.txt", f"?X-Amz-Signature={SECRET}"), ("lone.kas", ""),
    ):
        command, *paths = words
        done = glassfs(command, f"{web.url}/{place}{query}", *paths)
        assert (done.status, done.output, len(done.errors)) == (1, b"", 1)
        assert done.errors[0].startswith(f"glassfs: {web.url}/{place}: ")
        assert "hunter" not in done.errors[0]
        assert done.errors[0].count(web.url) == 1


@pytest.mark.slow
def test_a_missing_remote_package_is_named(store: Path, tmp_path: Path) -> None:
    (tmp_path / "obstore").mkdir()
    (tmp_path / "obstore/__init__.py").write_text("raise ImportError")
    (tmp_path / "mnt").mkdir()
    keys = {"AWS_ACCESS_KEY_ID": "glass", "AWS_SECRET_ACCESS_KEY": "see-through", "PYTHONPATH": str(tmp_path)}
    for command, *more in (["ls"], ["mount", str(tmp_path / "mnt")]):
        done = glassfs(command, "s3://bucket/run.kdb", *more, **keys)
        fails(done, f"s3://bucket/run.kdb: needs more than is installed: {installing.command('remote')}")
    assert glassfs("ls", store, "nodes", **keys).lines == ["flags.npy", "time.npy"]

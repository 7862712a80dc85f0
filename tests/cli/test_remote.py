"""Test commands on URLs: a bucket, a web server with signed URLs, and names without a server."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from glassfs.cli.common import Located, located, name_of
from glassfs.errors import Refused
from glassfs.source.remote.options import CREDENTIALS
from tests.cli.conftest import VALUES
from tests.cli.glassfs_command import fails, glassfs
from tests.cli.test_showing import offered
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
    asked = {request.path for request in s3.requests if not request.is_listing}
    assert asked == {f"/bucket/{name}" for name in (
        "lone.kas", "data/store.kas", "data/sub/robot.kdb", "data/broken.kas",
    )}, "and no other object of the folder"


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
        fails(done, "s3://bucket/run.kdb: needs more than is installed: install glassfs[remote]")
    assert glassfs("ls", store, "nodes", **keys).lines == ["flags.npy", "time.npy"]


# Names: where a source ends, which parts are secret, and suggestions for typos.


SHOWN = "https://127.0.0.1:1/a/run.kdb"
SIGNED = f"{SHOWN}?X-Amz-Signature={SECRET}"


@pytest.mark.parametrize("typed", [
    "s3://bucket", "s3://bucket/", "s3://bucket.kdb/run", "s3://bucket/datasets", "s3://bucket/run.kdb",
    "s3://bucket/run.kdb//", "s3://bucket/run.kdb|/episodes/0", "s3://bucket/RUN.KDB|/episodes/",
    "s3://bucket/data/a.kdb|/b.kas", "https://host:8000/x/run.trees|/nodes/time.npy",
    "https://host/run.kdb?a=/b/c.kas/d", "https://host/run.kdb/x?a=b", "ssh://me@host/data/run.kdb|/x",
])
def test_a_url_is_split_at_its_first_container(typed: str) -> None:
    source, _, path = typed.partition("|")
    assert located(source + path) == Located(source, path or "/")


def test_a_file_url_is_a_local_name(store: Path) -> None:
    assert located(f"file://{store}/nodes") == Located(str(store), "/nodes")
    assert glassfs("ls", f"file://{store}/nodes").lines == ["flags.npy", "time.npy"]
    assert glassfs("cat", f"file://localhost{store}", "nodes/time.npy").output.endswith(VALUES.tobytes())
    for words in (["info", "--quick"], ["tree"], ["ls", "-l"]):
        assert glassfs(*words, f"file://{store}").status == 0


@pytest.mark.parametrize(("typed", "shown"), [
    ("s3://bucket/a/", "s3://bucket/a"), (SIGNED, SHOWN), ("a/b?c", "a/b?c"),
    ("sftp://me@host/a", "sftp://host/a"), ("file:///a/b", "/a/b"),
])
def test_shown_names_have_no_secrets(typed: str, shown: str) -> None:
    assert name_of(typed) == shown


@pytest.mark.parametrize("url", [
    f"https://me:{SECRET}@host/run.kdb", f"https://{SECRET}@host/run.kdb", f"s3://KEY:{SECRET}@bucket/run.kdb",
    f"ftp://me:{SECRET}@host/run.kdb", f"HTTP://me:{SECRET}@host/run.kdb/episodes?x",
])
def test_a_password_on_the_command_line_is_refused(url: str) -> None:
    with pytest.raises(Refused) as caught:
        located(url)
    assert str(caught.value) == f"{name_of(url)}: {CREDENTIALS}"
    assert SECRET not in str(caught.value)


def test_a_password_is_refused_by_every_command(tmp_path: Path) -> None:
    url = f"https://me:{SECRET}@host/run.kdb"
    for words in (["ls", url], ["tree", url], ["cat", url, "x"], ["info", url], ["mount", url, str(tmp_path)]):
        fails(glassfs(*words), f"https://host/run.kdb: {CREDENTIALS}")


def test_a_local_name_may_have_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fails(glassfs("ls", "host:data"), "host:data: No such file or directory")
    (tmp_path / "s3:").mkdir()
    done = glassfs("ls", "s3:/")
    assert (done.output, done.errors) == (b"", [])


def test_usage_errors_show_urls_without_secrets(store: Path) -> None:
    end = "(see 'glassfs --help')"
    fails(glassfs(SIGNED), f"no such command: '{SHOWN}'; did you mean 'glassfs ls {SHOWN}'? {end}", 2)
    needed = f"{SHOWN}: name a path inside it; 'glassfs ls {SHOWN}' shows what is there"
    fails(glassfs("cat", SIGNED), f"{needed} (see 'glassfs cat --help')", 2)
    done = glassfs("cat", store, SIGNED)
    assert done.errors[0].startswith(f"glassfs: {SHOWN}: no such file or directory in {store}")
    assert SECRET not in done.raw_errors.decode()
    done = glassfs("ls", store, "nodes", SIGNED)
    assert done.status == 2
    assert SECRET not in done.raw_errors.decode()
    assert SHOWN in done.errors[0]


def test_options_for_urls_are_accepted_with_files_and_unknown_ones_refused(store: Path) -> None:
    for words in (["ls", store], ["tree", store], ["cat", store, "x"], ["info", store]):
        end = f"(see 'glassfs {words[0]} --help')"
        fails(glassfs(*words, "-o", "uid=5"), f"unknown option 'uid=5' {end}", 2)
    options = ["-o", "endpoint=http://127.0.0.1:1,anonymous", "-o", "timeout=1"]
    assert glassfs("ls", *options, store, "nodes").lines == ["flags.npy", "time.npy"]


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "info", "mount", "export"])
def test_urls_are_not_completed_and_their_options_are(command: str) -> None:
    assert offered(command, "s3://bucket/run.kdb/ep") == []
    assert offered(command, f"https://me:{SECRET}@host/") == []
    assert offered("ls", "-o", "anonymous,end") == ["plain,anonymous,endpoint="]
    assert "plain,timeout=" in offered("mount", "-o", "ti")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not let a process change its arguments")
def test_secrets_are_removed_from_arguments(tmp_path: Path) -> None:
    """The program waits for a writer of a pipe instead of running a command. Other arguments stay unchanged."""
    pipe = tmp_path / "pipe.kdb"
    os.mkfifo(pipe)
    waiting = "from glassfs import cli; cli.execute = lambda words: len(open(words[-1]).read()); cli.main()"
    words = [
        sys.executable, "-c", waiting, "ls", SIGNED, "-o", f"endpoint=https://me:{SECRET}@host/x?{SECRET}",
        "s3://bucket/unchanged", str(pipe),
    ]
    process = subprocess.Popen(words)
    try:
        with pipe.open("w"):  # the process has opened it, so it has removed them
            raw = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            arguments = [word.decode().rstrip() for word in raw.removesuffix(b"\0").split(b"\0")]
    finally:
        process.wait()
    assert process.returncode == 0
    assert SECRET.encode() not in raw
    assert arguments == [*words[:4], SHOWN, "-o", "endpoint=https://host/x", *words[-2:]]


def test_harmless_removes_secrets_from_any_text() -> None:
    program = (
        "import sys, click; from glassfs import arguments; arguments.hide(); "
        "print(arguments.harmless(f'no {sys.argv[1]!r} there, {sys.argv[1].partition(chr(63))[2]}'))"
    )
    done = subprocess.run([sys.executable, "-c", program, SIGNED], capture_output=True, text=True, check=True)
    assert done.stdout == f"no '{SHOWN}' there, …\n"


def test_export_writes_to_local_folders_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_text("a")
    for url in ("https://host/x", "s3://bucket/x", "unknown://x"):
        fails(glassfs("export", "data", url), f"{url}: export writes to folders of this machine only")
    fails(
        glassfs("export", "data", "s3:/lab/x"),
        "s3:/lab/x: looks like a URL; write ./s3:/lab/x for a folder of that name",
    )
    done = glassfs("export", "data", "s3://key:secret@lab/x")
    assert done.status == 1 and "secret" not in done.errors[0]
    assert glassfs("export", "data", "a", f"file://{tmp_path}/out").status == 0
    assert (tmp_path / "out/a").is_file() and {path.name for path in tmp_path.iterdir()} == {"data", "out"}

"""Sources that are URLs, as far as names go: where they end, what of them is secret, and what people mistype first.

No server is asked here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from glassfs import cli
from glassfs.cli.common import Located, located, name_of
from glassfs.errors import Refused
from glassfs.mount import mountpoint
from glassfs.source.remote.options import CREDENTIALS, meant_by
from tests.cli.conftest import VALUES
from tests.cli.glassfs_command import fails, glassfs

SECRET = "hunter2"
SIGNED = f"https://127.0.0.1:1/a/run.kdb?X-Amz-Signature={SECRET}"


@pytest.mark.parametrize(("typed", "source", "path"), [
    ("s3://bucket", "s3://bucket", "/"),
    ("s3://bucket/", "s3://bucket/", "/"),
    ("s3://bucket.kdb/run", "s3://bucket.kdb/run", "/"),
    ("s3://bucket/datasets", "s3://bucket/datasets", "/"),
    ("s3://bucket/run.kdb", "s3://bucket/run.kdb", "/"),
    ("s3://bucket/run.kdb/", "s3://bucket/run.kdb/", "/"),
    ("s3://bucket/run.kdb//", "s3://bucket/run.kdb//", "/"),
    ("s3://bucket/run.kdb/episodes/0", "s3://bucket/run.kdb", "/episodes/0"),
    ("s3://bucket/RUN.KDB/episodes/", "s3://bucket/RUN.KDB", "/episodes/"),
    ("s3://bucket/data/a.kdb/b.kas", "s3://bucket/data/a.kdb", "/b.kas"),
    ("https://host:8000/x/run.trees/nodes/time.npy", "https://host:8000/x/run.trees", "/nodes/time.npy"),
    ("https://host/run.kdb?a=/b/c.kas/d", "https://host/run.kdb?a=/b/c.kas/d", "/"),
    ("https://host/run.kdb/x?a=b", "https://host/run.kdb/x?a=b", "/"),
    ("ssh://me@host/data/run.kdb/x", "ssh://me@host/data/run.kdb", "/x"),
])
def test_where_a_url_ends_and_a_path_begins(typed: str, source: str, path: str) -> None:
    assert located(typed) == Located(source, path)


def test_a_file_url_is_a_local_name(store: Path) -> None:
    assert located(f"file://{store}/nodes") == Located(str(store), "/nodes")
    assert glassfs("ls", f"file://{store}/nodes").lines == ["flags.npy", "time.npy"]
    assert glassfs("cat", f"file://localhost{store}", "nodes/time.npy").output.endswith(VALUES.tobytes())
    for words in (["info", "--quick"], ["tree"], ["ls", "-l"]):
        assert glassfs(*words, f"file://{store}").status == 0


@pytest.mark.parametrize(("typed", "shown"), [
    ("s3://bucket/a/", "s3://bucket/a"), (SIGNED, "https://127.0.0.1:1/a/run.kdb"), ("a/b?c", "a/b?c"),
    ("sftp://me@host/a", "sftp://host/a"), ("file:///a/b", "/a/b"),
])
def test_what_is_shown_of_a_source(typed: str, shown: str) -> None:
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


def test_a_user_of_a_server_is_no_secret() -> None:
    assert located("sftp://me@host/data").path == "/"
    assert located("abfss://container@account.dfs.core.windows.net/data").path == "/"


@pytest.mark.parametrize(("typed", "meant"), [
    ("s3:/bucket/run.kdb", "s3://bucket/run.kdb"), ("s3:bucket/run.kdb", "s3://bucket/run.kdb"),
    ("https:/host/run.kdb?X=hunter2", "https://host/run.kdb"), (" s3://bucket/run.kdb", "s3://bucket/run.kdb"),
    ("file:/none/run.kdb", "file:///none/run.kdb"),
])
def test_urls_that_were_meant(typed: str, meant: str) -> None:
    assert meant_by(typed) == f"; did you mean '{meant}'?"


@pytest.mark.parametrize("typed", ["run.kdb", "host:/data", "a/s3:/b", "s3:", "C:/data", "s3"])
def test_names_by_which_no_url_was_meant(typed: str) -> None:
    assert meant_by(typed) == ""


def test_every_command_tells_what_was_meant(tmp_path: Path) -> None:
    meant = "did you mean 's3://bucket/run.kdb'?"
    for command in ("ls", "tree", "info"):
        fails(glassfs(command, "s3:/bucket/run.kdb"), f"s3:/bucket/run.kdb: No such file or directory; {meant}")
    for words in ([str(tmp_path)], []):
        fails(glassfs("mount", "s3:/bucket/run.kdb", *words), f"s3:/bucket/run.kdb: no such file or folder; {meant}")
    assert glassfs("cat", "s3:/bucket/run.kdb").errors[0].startswith(
        f"glassfs: s3:/bucket/run.kdb: no such file; {meant}",
    )


def test_a_local_name_with_a_colon_is_no_url(tmp_path: Path) -> None:
    fails(glassfs("ls", "host:/data"), "host:/data: No such file or directory")
    (tmp_path / "s3:").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "glassfs", "ls", "s3:/"], cwd=tmp_path, capture_output=True, check=False,
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_blank_at_the_end() -> None:
    fails(glassfs("ls", "s3://bucket/run.kdb "), "s3://bucket/run.kdb : ends with a space")


def test_a_url_in_the_place_of_a_command() -> None:
    end = "(see 'glassfs --help')"
    shown = "https://127.0.0.1:1/a/run.kdb"
    fails(glassfs(SIGNED), f"no such command: '{shown}'; did you mean 'glassfs ls {shown}'? {end}", 2)


def test_cat_with_a_url_and_no_path() -> None:
    shown = "https://127.0.0.1:1/a/run.kdb"
    needed = f"{shown}: name a path inside it; 'glassfs ls {shown}' shows what is there"
    fails(glassfs("cat", SIGNED), f"{needed} (see 'glassfs cat --help')", 2)


def test_wrong_options(store: Path) -> None:
    for words in (["ls", store], ["tree", store], ["cat", store, "x"], ["info", store]):
        end = f"(see 'glassfs {words[0]} --help')"
        fails(glassfs(*words, "-o", "uid=5"), f"unknown option 'uid=5' {end}", 2)


def test_options_for_urls_do_no_harm_to_files(store: Path) -> None:
    options = ["-o", "endpoint=http://127.0.0.1:1,anonymous", "-o", "timeout=1"]
    assert glassfs("ls", *options, store, "nodes").lines == ["flags.npy", "time.npy"]


def offered(*words: str) -> list[str]:
    shell = BashComplete(cli.glassfs, {}, "glassfs", "_GLASSFS_COMPLETE")
    *before, last = words
    return [shell.format_completion(item) for item in shell.get_completions(before, last)]


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "info", "mount", "export"])
def test_urls_are_not_completed(command: str) -> None:
    assert offered(command, "s3://bucket/run.kdb/ep") == []
    assert offered(command, f"https://me:{SECRET}@host/") == []


def test_paths_in_urls_are_not_completed_and_options_are() -> None:
    assert offered("ls", "s3://bucket/run.kdb", "ep") == []
    assert offered("cat", "s3://bucket/run.kdb", "a", "ep") == []
    assert offered("export", "s3://bucket/run.kdb", "ep") == ["dir,ep"]
    assert offered("ls", "-o", "anonymous,end") == ["plain,anonymous,endpoint="]
    assert "plain,timeout=" in offered("mount", "-o", "ti")


@pytest.mark.parametrize(("source", "name"), [
    ("s3://bucket/datasets", "datasets-glassfs"), ("s3://bucket", "bucket-glassfs"), ("s3://bucket/run.kdb", "run"),
    ("s3://bucket/run.kdb/", "run.kdb-glassfs"), (SIGNED, "run"), ("https://host:8000/", "host-glassfs"),
    ("https://host/a%0A.kas", "a%0A"), ("https://host/-x.kas", "./-x"),
])
def test_a_mount_point_that_is_made_for_a_url(
    source: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    made = mountpoint.make(source)
    assert made.name == name
    assert os.listdir(tmp_path) == [os.path.basename(name)]


@pytest.mark.skipif(sys.platform != "linux", reason="the arguments stay where they are on other systems")
def test_nothing_secret_is_in_the_arguments_of_a_process(tmp_path: Path) -> None:
    """While it runs: it waits for somebody to read from a pipe. What follows in the arguments is as it was."""
    pipe = tmp_path / "pipe.kdb"
    os.mkfifo(pipe)
    words = [
        sys.executable, "-c", "import sys; from glassfs.arguments import hide; hide(); open(sys.argv[-1]).read()",
        "ls", SIGNED, "-o", f"endpoint=https://me:{SECRET}@host/x?{SECRET}", "s3://bucket/as-it-is", str(pipe),
    ]
    process = subprocess.Popen(words)
    try:
        with pipe.open("w"):  # it has been opened, so it is past the beginning
            raw = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            told = [word.decode().rstrip() for word in raw.removesuffix(b"\0").split(b"\0")]
    finally:
        process.wait()
    assert SECRET.encode() not in raw
    shown = ["https://127.0.0.1:1/a/run.kdb", "-o", "endpoint=https://host/x", *words[-2:]]
    assert told == [*words[:4], *shown]


def test_nothing_secret_is_in_sentences(tmp_path: Path) -> None:
    """Whoever has made them."""
    program = (
        "import sys, click; from glassfs import arguments; arguments.hide(); "
        "print(arguments.harmless(f'no {sys.argv[1]!r} there, {sys.argv[1].partition(chr(63))[2]}'))"
    )
    done = subprocess.run([sys.executable, "-c", program, SIGNED], capture_output=True, text=True, check=True)
    assert done.stdout == "no 'https://127.0.0.1:1/a/run.kdb' there, …\n"


def test_too_many_words_are_told_without_what_is_secret(store: Path) -> None:
    done = glassfs("ls", store, "nodes", SIGNED)
    assert done.status == 2
    assert SECRET not in done.raw_errors.decode()
    assert "https://127.0.0.1:1/a/run.kdb" in done.errors[0]


def test_a_url_where_a_path_is_wanted(store: Path) -> None:
    shown = "https://127.0.0.1:1/a/run.kdb"
    done = glassfs("cat", store, SIGNED)
    fails(done, f"{shown}: no such file or directory in {store}; it is a separate file; only one source is allowed")

"""Test names of URLs without a server: where a source ends, which parts are secret, and suggestions for typos."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassfs.cli.common import Located, located, name_of
from glassfs.errors import Refused
from glassfs.source.remote.options import CREDENTIALS, meant_by
from tests.cli.conftest import VALUES
from tests.cli.glassfs_command import fails, glassfs
from tests.cli.test_complete import offered

SECRET = "hunter2"
SHOWN = "https://127.0.0.1:1/a/run.kdb"
SIGNED = f"{SHOWN}?X-Amz-Signature={SECRET}"


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
def test_a_url_is_split_at_its_first_container(typed: str, source: str, path: str) -> None:
    assert located(typed) == Located(source, path)


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


@pytest.mark.parametrize(("typed", "meant"), [
    ("s3:/bucket/run.kdb", "s3://bucket/run.kdb"), ("s3:bucket/run.kdb", "s3://bucket/run.kdb"),
    ("https:/host/run.kdb?X=hunter2", "https://host/run.kdb"), (" s3://bucket/run.kdb", "s3://bucket/run.kdb"),
    ("file:/none/run.kdb", "file:///none/run.kdb"),
])
def test_mistyped_urls_get_a_suggestion(typed: str, meant: str) -> None:
    assert meant_by(typed) == f"; did you mean '{meant}'?"


@pytest.mark.parametrize("typed", ["run.kdb", "host:data", "a/b@host:/c", "a/s3:/b", "s3:", "C:/data", "s3"])
def test_other_names_get_no_suggestion(typed: str) -> None:
    assert meant_by(typed) == ""


@pytest.mark.parametrize(("typed", "meant"), [
    ("root@host:/data/run.kdb", "'ssh://root@host/data/run.kdb'"), ("host.example:/data", "'ssh://host.example/data'"),
    ("me@[::1]:/data", "'ssh://me@[::1]/data'"),
    ("me@host:run.kdb", "'ssh://me@host/…' with the whole path, from the root"),
    ("host:~/run.kdb", "'ssh://host/…' with the whole path, from the root"),
])
def test_names_as_of_scp_get_a_suggestion(typed: str, meant: str) -> None:
    assert meant_by(typed) == f"; write {meant}"
    for words in (["ls", typed], ["info", typed], ["cat", typed], ["mount", typed]):
        assert glassfs(*words).errors[0].split(" (see ")[0].endswith(f"; write {meant}")


def test_every_command_suggests_the_url(tmp_path: Path) -> None:
    meant = "did you mean 's3://bucket/run.kdb'?"
    for command in ("ls", "tree", "info", "verify", "episodes"):
        fails(glassfs(command, "s3:/bucket/run.kdb"), f"s3:/bucket/run.kdb: No such file or directory; {meant}")
    for words in ([str(tmp_path)], []):
        fails(glassfs("mount", "s3:/bucket/run.kdb", *words), f"s3:/bucket/run.kdb: no such file or folder; {meant}")
    assert glassfs("cat", "s3:/bucket/run.kdb").errors[0].startswith(
        f"glassfs: s3:/bucket/run.kdb: no such file; {meant}",
    )


def test_a_local_name_with_a_colon_is_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fails(glassfs("ls", "host:data"), "host:data: No such file or directory")
    (tmp_path / "s3:").mkdir()
    done = glassfs("ls", "s3:/")
    assert (done.output, done.errors) == (b"", [])


def test_a_space_at_the_end_of_a_url_is_refused() -> None:
    fails(glassfs("ls", "s3://bucket/run.kdb "), "s3://bucket/run.kdb : ends with a space")


def test_usage_errors_show_urls_without_secrets(store: Path) -> None:
    end = "(see 'glassfs --help')"
    fails(glassfs(SIGNED), f"no such command: '{SHOWN}'; did you mean 'glassfs ls {SHOWN}'? {end}", 2)
    needed = f"{SHOWN}: name a path inside it; 'glassfs ls {SHOWN}' shows what is there"
    fails(glassfs("cat", SIGNED), f"{needed} (see 'glassfs cat --help')", 2)
    done = glassfs("cat", store, SIGNED)
    fails(done, f"{SHOWN}: no such file or directory in {store}; it is a separate file; only one source is allowed")
    done = glassfs("ls", store, "nodes", SIGNED)
    assert done.status == 2
    assert SECRET not in done.raw_errors.decode()
    assert SHOWN in done.errors[0]


def test_unknown_options_are_usage_errors(store: Path) -> None:
    for words in (["ls", store], ["tree", store], ["cat", store, "x"], ["info", store]):
        end = f"(see 'glassfs {words[0]} --help')"
        fails(glassfs(*words, "-o", "uid=5"), f"unknown option 'uid=5' {end}", 2)


def test_options_for_urls_are_accepted_with_files(store: Path) -> None:
    options = ["-o", "endpoint=http://127.0.0.1:1,anonymous", "-o", "timeout=1"]
    assert glassfs("ls", *options, store, "nodes").lines == ["flags.npy", "time.npy"]


@pytest.mark.parametrize("command", ["ls", "tree", "cat", "info", "mount", "export"])
def test_urls_are_not_completed(command: str) -> None:
    assert offered(command, "s3://bucket/run.kdb/ep") == []
    assert offered(command, f"https://me:{SECRET}@host/") == []


def test_options_are_completed() -> None:
    assert offered("ls", "-o", "anonymous,end") == ["plain,anonymous,endpoint="]
    assert "plain,timeout=" in offered("mount", "-o", "ti")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not let a process change its arguments")
def test_secrets_are_removed_from_arguments(tmp_path: Path) -> None:
    """The program waits for a writer of a pipe instead of running a command. Other arguments stay unchanged."""
    pipe = tmp_path / "pipe.kdb"
    os.mkfifo(pipe)
    waiting = "from glassfs import cli; cli.run = lambda words: len(open(words[-1]).read()); cli.main()"
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

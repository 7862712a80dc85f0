"""Mounts of URLs: their names, owners and modes, how they fail, and how they are interrupted."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter

from tests.mount.conftest import Mounted
from tests.mount.mounts import COMMAND, PATIENCE, glassfs, is_mounted, mountinfo, processes_with
from tests.remote.http_server import HttpServer
from tests.remote.requests import Reply, Request
from tests.remote.s3 import Bucket, S3Server, answer_object
from tests.system.test_service import helper
from tests.waiting import wait_until

SECRET = "hunter2"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    path = tmp_path_factory.mktemp("bucket") / "store.kas"
    with KastoreWriter(path) as writer:
        writer.add("nodes/time", np.arange(1000.0))
    return Bucket({"data/store.kas": path.read_bytes(), "data/text.txt": b"text"})


@pytest.fixture
def s3(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server for one test, and the environment that directs commands to it."""
    with S3Server({"bucket": bucket}) as server:
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "glass"), ("AWS_SECRET_ACCESS_KEY", "see-through"), ("AWS_ENDPOINT_URL", server.url),
        ):
            monkeypatch.setenv(name, value)
        yield server


def test_folder_of_a_bucket(mounted: Mounted, s3: S3Server) -> None:
    with mounted("s3://bucket/data/") as mount:
        assert set(os.listdir(mount.path)) - {".glassfs"} == {"store.kas", "text.txt"}
        assert (mount.path / "text.txt").read_bytes() == b"text"
        assert np.array_equal(np.load(mount.path / "store.kas/nodes/time.npy"), np.arange(1000.0))
        assert mount.status()["sources"] == ["s3://bucket/data"]
        (line,) = mountinfo(mount.path)
        assert line[-2].rstrip("/") == "s3://bucket/data"
        mount.unmount()
        assert not is_mounted(mount.path)


@pytest.mark.slow
def test_secrets_of_a_url_show_nowhere(mounted: Mounted, bucket: Bucket) -> None:
    def answer(request: Request) -> Reply:
        made = bucket.get(request.path.removeprefix("/"))
        return Reply(404) if made is None or request.query.get("X-Amz-Signature") != SECRET else (
            answer_object(made, request)
        )

    with HttpServer(answer) as server, mounted(f"{server.url}/data/store.kas?X-Amz-Signature={SECRET}") as mount:
        assert (mount.path / "nodes/time.npy").stat().st_size > 8000
        shown = f"{server.url}/data/store.kas"
        (line,) = mountinfo(mount.path)
        assert line[-2] == shown
        seen = [
            Path(f"/proc/{mount.pid}/cmdline").read_text(), (mount.path / ".glassfs/status.json").read_text(),
            Path("/proc/mounts").read_text(), glassfs("status").stdout, "\n".join(mount.log_lines()),
        ]
        assert all(shown in text for text in seen)
        assert not any(SECRET in text for text in seen)


@pytest.mark.parametrize(("options", "folder", "file"), [
    ("", 0o500, 0o400), pytest.param("umask=0", 0o555, 0o444, marks=pytest.mark.slow),
    pytest.param("umask=027", 0o550, 0o440, marks=pytest.mark.slow),
    pytest.param("uid=12,gid=34", 0o500, 0o400, marks=pytest.mark.slow),
])
def test_owner_and_modes_of_remote_files(mounted: Mounted, s3: S3Server, options: str, folder: int, file: int) -> None:
    owner = (12, 34) if "uid" in options else (os.geteuid(), os.getegid())
    with mounted("s3://bucket/data", options=[options]) as mount:
        modes = {".": folder, "store.kas": folder, "store.kas/nodes/time.npy": file, "text.txt": file}
        for name, mode in modes.items():
            status = (mount.path / name).stat()
            assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (mode, *owner), name


@pytest.mark.parametrize(("url", "options", "sentence"), [
    ("s3://none/data", "", "there is no such bucket"),
    ("s3://bucket/data", "endpoint=http://127.0.0.1:1,timeout=1", "the connection is refused"),
    *(pytest.param(*words, marks=pytest.mark.slow) for words in (
        ("s3://bucket/none.kas", "", "there is no such object"),
        ("s3://bucket/none", "", "there is no such object or folder"),
        ("s3://bucket/data/text.txt", "", "is not a container of a known format"),
    )),
])
@pytest.mark.usefixtures("s3")
def test_remote_failure_is_one_message(fuse: None, tmp_path: Path, url: str, options: str, sentence: str) -> None:
    done = glassfs("mount", "-o", options, url, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"glassfs: {url}: {sentence}\n")
    assert not is_mounted(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("url", "status"), [
    ("s3://bucket/data", 0), pytest.param("s3://bucket/none", 1, marks=pytest.mark.slow),
])
def test_only_the_daemon_loads_remote_libraries(
    fuse: None, s3: S3Server, tmp_path: Path, url: str, status: int,
) -> None:
    """Remote libraries do not work in a child that was forked after they were loaded."""
    program = (
        "import sys; from glassfs.cli import execute; status = execute(sys.argv[1:]); "
        "print(status, *[name for name in sys.modules if name.partition('.')[0] in ('obstore', 'fsspec', 'asyncio')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "mount", url, str(tmp_path)], capture_output=True, text=True, check=True,
    )
    try:
        assert done.stdout == f"{status}\n"
        assert is_mounted(tmp_path) == (status == 0)
    finally:
        if is_mounted(tmp_path):
            glassfs("umount", tmp_path)


@pytest.mark.slow
def test_mount_glassfs_takes_urls(fuse: None, s3: S3Server, tmp_path: Path) -> None:
    options = f"rw,endpoint={s3.url},_netdev,umask=022"
    done = helper("s3://bucket/data", tmp_path, "-o", options)
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "text.txt").read_bytes() == b"text"
    finally:
        glassfs("umount", tmp_path)
    done = helper(f"https://me:{SECRET}@host/run.kdb", tmp_path, "-o", options)
    assert done.returncode == 32
    assert done.stderr.startswith("mount.glassfs: https://host/run.kdb: credentials are taken from the environment")
    assert SECRET not in done.stderr


@pytest.mark.slow
def test_interrupted_mount_command_leaves_no_mount(fuse: None, s3: S3Server, tmp_path: Path) -> None:
    """Ctrl-C while the daemon waits for an answer; when that comes, the daemon ends."""
    mountpoint, log = tmp_path / "mnt", tmp_path / "log"
    mountpoint.mkdir()
    s3.hold()
    words = [*COMMAND, "mount", "--log-file", str(log), "s3://bucket/data", str(mountpoint)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: bool(s3.requests))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        s3.release()
    # The daemon holds stderr until it ends.
    assert process.communicate(timeout=PATIENCE)[1] == "glassfs: interrupted\n"
    wait_until(lambda: not processes_with(log))
    assert not is_mounted(mountpoint)
    assert "Traceback" not in log.read_text()

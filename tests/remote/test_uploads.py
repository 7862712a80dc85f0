"""Test ``glassfs export`` to buckets: objects are whole or not there, exports continue, local folders never appear."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.kastore import KastoreWriter

from glassfs.source import Connection
from glassfs.source.remote.objects import PART, upload_options
from glassfs.source.remote.open import bucket_of
from glassfs.source.remote.url import parsed
from tests.cli.glassfs_command import fails, glassfs
from tests.datasets.batch.many import robot
from tests.optional import package
from tests.remote import servers
from tests.remote.conftest import Serving
from tests.remote.s3 import Bucket

LARGE = 3 * PART + 12345


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.moto(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture
def client(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in {**servers.CREDENTIALS, "AWS_ENDPOINT_URL": moto}.items():
        monkeypatch.setenv(name, value)
    with closing(package("boto3").client("s3")) as found:
        for one in found.list_buckets()["Buckets"]:
            for each in found.list_objects_v2(Bucket=one["Name"]).get("Contents", []):
                found.delete_object(Bucket=one["Name"], Key=each["Key"])
        found.create_bucket(Bucket="lab")
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    robot(folder / "a.kdb")
    with KastoreWriter(folder / "large.kas") as writer:
        writer.add("large", np.random.default_rng(1).integers(0, 255, LARGE, np.uint8))
    (folder / "below/odd # näme?").write_text("odd")
    (folder / "below/empty").write_text("")
    (folder / "below/link").symlink_to("../a.kdb/meta")
    os.utime(folder / "below/empty", ns=(0, 1_234_567_890_123_456_789))
    monkeypatch.chdir(tmp_path)
    return folder


def stored(client: Any) -> dict[str, bytes]:
    found = client.list_objects_v2(Bucket="lab").get("Contents", [])
    return {one["Key"]: client.get_object(Bucket="lab", Key=one["Key"])["Body"].read() for one in found}


def expected(folder: Path, out: Path) -> dict[str, bytes]:
    """Return what an export to a folder with all links followed has."""
    assert glassfs("export", "--links", "follow", folder, out).status == 0
    return {f"x/{path.relative_to(out)}": path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--jobs", "2"]])
def test_bucket_has_the_files_of_a_folder(client: Any, folder: Path, words: list[str], tmp_path: Path) -> None:
    done = glassfs("export", folder, "s3://lab/x", *words)
    files = expected(folder, tmp_path / "out")
    assert stored(client) == files and max(map(len, files.values())) > LARGE
    assert done.status == 0 and done.errors[-1].startswith(f"{len(files)} files in s3://lab/x, ")
    head = client.head_object(Bucket="lab", Key="x/below/empty")
    assert head["Metadata"] == {"mtime": "1234567890.123456789"}
    assert not list(tmp_path.glob("s3*"))
    # What glassfs has written it can read.
    assert glassfs("cat", "s3://lab/x", "below/odd # näme?").output == b"odd"


@pytest.mark.slow
def test_only_a_resumed_export_goes_to_a_filled_prefix(client: Any, folder: Path, tmp_path: Path) -> None:
    assert glassfs("export", folder, "s3://lab/x").status == 0
    files = stored(client)
    done = glassfs("export", folder, "s3://lab/x")
    reason = "is not empty; use --overwrite to replace files in it or --resume to continue an export"
    fails(done, f"s3://lab/x: {reason}")
    client.delete_object(Bucket="lab", Key="x/below/empty")
    client.put_object(Bucket="lab", Key="x/large.kas/large.npy", Body=b"part")
    before = client.head_object(Bucket="lab", Key="x/below/odd # näme?")["LastModified"]
    done = glassfs("export", "--resume", folder, "s3://lab/x")
    assert done.status == 0 and stored(client) == files
    assert done.errors == [f"{len(files)} files in s3://lab/x, 24M written"]
    assert client.head_object(Bucket="lab", Key="x/below/odd # näme?")["LastModified"] == before
    assert glassfs("export", "--overwrite", folder, "s3://lab/x").status == 0


@pytest.mark.slow
def test_object_of_a_damaged_file_does_not_appear(client: Any) -> None:
    def pieces(size: int) -> Iterator[memoryview]:
        while size > PART:
            yield memoryview(bytes(1 << 20))
            size -= 1 << 20
        raise KeyboardInterrupt

    with closing(bucket_of(parsed("s3://lab"), Connection(), upload_options)) as server:
        for size in (PART, LARGE):
            with pytest.raises(KeyboardInterrupt):
                server.put(("broken",), size, 0, pieces(size))
    assert stored(client) == {}
    assert not client.list_multipart_uploads(Bucket="lab").get("Uploads")


def test_other_servers_and_mistyped_urls_are_refused(folder: Path, tmp_path: Path) -> None:
    for url in ("https://host/x", "sftp://host/x", "hf://datasets/x", "unknown://x"):
        reason = "cannot be written to; export writes to folders and to s3://, gs://, az://"
        fails(glassfs("export", folder, url), f"{url}: {reason}")
    fails(
        glassfs("export", folder, "s3:/lab/x"),
        "s3:/lab/x: looks like a URL; write ./s3:/lab/x for a folder of that name",
    )
    done = glassfs("export", folder, "s3://key:secret@lab/x")
    assert done.status == 1 and "secret" not in done.errors[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.slow
def test_missing_buckets_and_the_source_are_refused(client: Any, folder: Path, tmp_path: Path) -> None:
    fails(glassfs("export", folder, "s3://none/x"), "s3://none/x: there is no such bucket")
    client.put_object(Bucket="lab", Key="data/a.kdb", Body=(folder / "a.kdb").read_bytes())
    for target in ("s3://lab/data", "s3://lab/data/below"):
        done = glassfs("export", "--overwrite", "s3://lab/data/", target)
        fails(done, f"{target}: is the source itself or inside it; name another folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.slow
def test_names_too_long_for_objects_are_left_out(client: Any, folder: Path) -> None:
    (folder / "below/long").mkdir()
    deep = folder / "below/long"
    for _ in range(5):
        deep = deep / ("n" * 250)
        deep.mkdir()
    (deep / "text").write_text("text")
    done = glassfs("export", folder, "below", "s3://lab/x")
    assert done.status == 1
    assert "its name is longer than 1,024 bytes" in done.errors[0]
    assert stored(client)["x/below/odd # näme?"] == b"odd"


def test_failing_server_ends_the_export(folder: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in serves but takes no objects."""
    with serving(Bucket({"other/x": b"x"})):
        done = glassfs("export", folder, "s3://bucket/x")
    assert done.status == 1 and done.errors[-1].endswith("continue with --resume") and len(done.errors) == 1


def test_a_local_folder_named_as_a_file_url(folder: Path, tmp_path: Path) -> None:
    assert glassfs("export", folder, "below/empty", f"file://{tmp_path}/out").status == 0
    assert (tmp_path / "out/below/empty").is_file()

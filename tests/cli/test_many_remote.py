"""``verify``, ``export`` and ``episodes`` of what is elsewhere, by one process and by several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch.many import cut_short, lines_of, robot, sound
from tests.cli.glassfs_command import glassfs
from tests.remote.s3 import Bucket, S3Server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is in the bucket, as files."""
    place = tmp_path / "here" / "data"
    (place / "sub").mkdir(parents=True)
    sound(place / "a.kas")
    robot(place / "sub/robot.kdb", 3)
    robot(place / "sub/odd % name?#.kdb", 2)
    cut_short(place / "sub/cut.kas")
    (place / "text.txt").write_text("text")
    return place


@pytest.fixture
def s3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    files = (path for path in folder.rglob("*") if path.is_file())
    bucket = Bucket({str(path.relative_to(folder.parent)): path.read_bytes() for path in files})
    with S3Server({"bucket": bucket}) as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "glass")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "see-through")
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        yield server


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_verify(s3: S3Server, jobs: str, tmp_path: Path) -> None:
    options = ("-o", f"endpoint={s3.url},region=us-east-1", "--jobs", jobs, "--report", tmp_path / "report.jsonl")
    done = glassfs("verify", *options, "s3://bucket/data")
    assert (done.status, done.errors) == (1, ["4 containers, 1 fault"])
    assert len(done.lines) == 1 and done.lines[0].startswith("s3://bucket/data/sub/cut.kas: is cut short")
    assert sorted(str(line["path"]) for line in lines_of(tmp_path / "report.jsonl")) == [
        f"s3://bucket/data/{name}" for name in ("a.kas", "sub/cut.kas", "sub/odd % name?#.kdb", "sub/robot.kdb")
    ]
    again = glassfs("verify", *options, "--resume", "s3://bucket/data")
    assert (again.status, again.output, again.errors) == (1, b"", ["4 containers, 1 fault"])


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_episodes(s3: S3Server, folder: Path, jobs: str) -> None:
    done = glassfs("episodes", "-o", f"endpoint={s3.url},region=us-east-1", "--jobs", jobs, "s3://bucket/data")
    assert done.output == glassfs("episodes", folder).output != b""
    assert len(done.errors) == 1 and done.errors[0].startswith("glassfs: s3://bucket/data/sub/cut.kas: is cut short")


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_export(s3: S3Server, folder: Path, jobs: str, tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    options = ("-o", f"endpoint={s3.url},region=us-east-1", "--jobs", jobs, "--report", report)
    assert glassfs("export", *options, "s3://bucket/data", tmp_path / "one").status == 0
    assert glassfs("export", folder, tmp_path / "two").status == 0
    found = [
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (tmp_path / "one", tmp_path / "two")
    ]
    assert found[0] == found[1] != {}
    assert all(line["ok"] for line in lines_of(report))


def test_parts_are_those_of_files(s3: S3Server, folder: Path, tmp_path: Path) -> None:
    """A container is in the same part wherever it stands."""
    options = ("-o", f"endpoint={s3.url},region=us-east-1", "--shard", "1/3", "--report")
    glassfs("verify", *options, tmp_path / "there.jsonl", "s3://bucket/data")
    glassfs("verify", "--shard", "1/3", "--report", tmp_path / "here.jsonl", folder)
    paths = [
        {str(line["path"]).removeprefix(f"{place}/") for line in lines_of(tmp_path / name)}
        for place, name in (("s3://bucket/data", "there.jsonl"), (folder, "here.jsonl"))
    ]
    assert paths[0] == paths[1]

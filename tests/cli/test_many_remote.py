"""Test ``glassfs verify``, ``export`` and ``episodes`` of a bucket, in one process and in several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.glassfs_command import glassfs
from tests.datasets.batch.many import cut_short, lines_of, robot, sound
from tests.remote.faults import Status, for_each
from tests.remote.s3 import Bucket, S3Server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the contents of the bucket."""
    folder = tmp_path / "here" / "data"
    (folder / "sub").mkdir(parents=True)
    sound(folder / "a.kas")
    robot(folder / "sub/robot.kdb", 3)
    robot(folder / "sub/odd % name?#.kdb", 2)
    cut_short(folder / "sub/cut.kas")
    (folder / "text.txt").write_text("text")
    return folder


@pytest.fixture
def bucket(folder: Path) -> Bucket:
    files = (path for path in folder.rglob("*") if path.is_file())
    return Bucket({str(path.relative_to(folder.parent)): path.read_bytes() for path in files})


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_export_of_a_bucket_is_that_of_files(s3: S3Server, folder: Path, jobs: str, tmp_path: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_resume_retries_containers_that_a_server_refused(
    s3: S3Server, folder: Path, jobs: str, tmp_path: Path,
) -> None:
    """A container that could not be read now has no line in the report."""
    report = tmp_path / "report.jsonl"
    options = ("-o", f"endpoint={s3.url},region=us-east-1,timeout=1", "--jobs", jobs, "--report")
    verify = ("verify", *options, report, "s3://bucket/data")
    export = ("export", *options, tmp_path / "export.jsonl", "s3://bucket/data/sub", tmp_path / "target")
    s3.faults = for_each(Status(503), lambda request: "a.kas" in request.path or "robot.kdb" in request.path)
    done = glassfs(*verify)
    assert (done.status, done.errors) == (1, [f"4 containers, 3 faults; report in {report}"])
    assert any(line.startswith("s3://bucket/data/sub/cut.kas: is cut short") for line in done.lines)
    assert sorted(str(line["path"]) for line in lines_of(report)) == [
        f"s3://bucket/data/sub/{name}" for name in ("cut.kas", "odd % name?#.kdb")
    ]
    assert glassfs(*export).status == 1
    assert not [line for line in lines_of(tmp_path / "export.jsonl") if "robot" in str(line["path"])]
    s3.faults = []
    again = glassfs(*verify, "--resume")
    assert (again.status, again.output, again.errors) == (1, b"", [f"4 containers, 1 fault; report in {report}"])
    assert len(lines_of(report)) == 4
    glassfs(*export, "--resume")
    assert (tmp_path / "target/robot.kdb").is_dir()

"""docs/fsspec.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import make_samples
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.remote.s3 import Bucket, S3Server

GUIDE = ROOT / "docs/fsspec.md"


def test_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the whole guide from top to bottom."""
    (tmp_path / "datasets").mkdir()
    make_samples.write_kinodb(tmp_path / "datasets/run1.kdb")
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = glass\naws_secret_access_key = see-through\n")
    monkeypatch.chdir(tmp_path)
    bucket = Bucket()
    bucket.put_folder(tmp_path / "datasets", "datasets/")
    names: dict[str, Any] = {}
    with S3Server({"bucket": bucket}) as server:
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            exec(block, names)
    assert len(names["episodes"]) == len(names["lines"]) == 3
    state = names["state"]
    assert state.shape == (24, 7) and (np.frombuffer(names["last"], "<f4") == state[-1]).all()
    assert len(names["first"]) == 3 and (np.frombuffer(names["first"][0], "<f4") == state[0]).all()
    assert names["png"] == (tmp_path / "front/000012.png").read_bytes()
    assert len(list((tmp_path / "front").iterdir())) == 24
    assert len(names["rewards"]) == 72 and names["failed"] == [(1,)]
    assert (names["arrays"]["state"].values == state).all() and len(names["blocks"]) == 3
    assert repr(names["there"]) == "<GlassfsFileSystem of s3://bucket/datasets/run1.kdb>"


def test_what_the_guide_prints_is_so(robot: Any) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    printed = re.search(r"fs\.ls\(\"episodes/0\".*# \[(.*), …\]", text)
    assert printed is not None
    assert robot.ls("episodes/0", detail=False)[:2] == [name.strip("' ") for name in printed[1].split(",")]


def test_the_options_of_the_guide_are_understood() -> None:
    from glassfs.filesystem.system import source_of

    rows = re.findall(r"^\| (`.*?`) \| ([a-z\d, ]+) \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 8 and rows.pop(0)[1] == "for"
    values = {"anon": True, "timeout": 5, "poll": 5, "disk_cache_size": 5, "endpoint_url": "http://host"}
    for cell, protocols in rows:
        for protocol in ("s3", "gs", "az", "http") if protocols == "all" else protocols.split(", "):
            for option in re.findall(r"`(\w+)`", cell):
                _, connection = source_of("host/run.kdb", protocol, {option: values.get(option, "x")})
                assert connection != source_of("host/run.kdb", protocol)[1], (protocol, option)

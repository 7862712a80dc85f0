"""Containers written by the formats' own software show the written values: opened, exported and mounted."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import DATA
from tests.mount.mounts import Mount, require

FORMATS = ("kinodb", "wshard", "kastore", "ikv", "idv", "safetensors")
WRITTEN: dict[str, dict[str, Any] | None] = json.loads((DATA / "shown.json").read_bytes())
VERDICTS: dict[str, dict[str, str]] = json.loads((DATA / "malformed.json").read_bytes())
LARGEST = 4 << 20


def read(path: Path) -> bytes:
    """Return the first bytes of a file. A damaged file may declare any size."""
    with path.open("rb") as file:
        return file.read(LARGEST)


@pytest.fixture(scope="module", params=[
    "mount", pytest.param("export", marks=pytest.mark.slow),
])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tree of tests/data, mounted or exported."""
    place = tmp_path_factory.mktemp("real")
    if request.param == "export":
        command = [sys.executable, "-m", "glassfs", "export", str(DATA), str(place / "out")]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        assert "Traceback" not in done.stderr
        yield place / "out"
    else:
        require()
        (place / "mnt").mkdir()
        mount = Mount([DATA], place / "mnt", place / "log")
        try:
            yield mount.path
        finally:
            mount.end()


def seen(path: str, expected: Any, data: bytes) -> Any:
    """Return what a file has in the words of shown.json."""
    if path.endswith(".npy"):
        array = np.load(io.BytesIO(data), allow_pickle=False)
        return [array.dtype.str, list(array.shape), sha256(array.tobytes()).hexdigest()]
    if isinstance(expected, list):
        with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
            return [picture.mode, list(picture.size), sha256(picture.tobytes()).hexdigest()]
    if isinstance(expected, dict):
        found = json.loads(data)
        return {"document": found} if "document" in expected else {key: found.get(key) for key in expected}
    return sha256(data).hexdigest()


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_as_written(shown: Path, name: str) -> None:
    containers = {container: files for container, files in WRITTEN.items() if container.startswith(f"{name}/")}
    for container, files in containers.items():
        if files is None:
            assert (shown / container).is_file(), f"{container} is shown as a container"
            continue
        for path, expected in files.items():
            found = seen(path, expected, read(shown / container / path))
            assert repr(found) == repr(expected), f"{container}: {path}"  # 1 differs from 1.0, and 0.0 from -0.0
    assert sum(len(files or ()) for files in containers.values()) > 100


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_or_partly_readable(shown: Path, name: str) -> None:
    """Refused containers are plain files; files in the others can be read or raise OSError."""
    for file, verdict in VERDICTS[name].items():
        place = f"{name}/malformed/{file}"
        inside = [Path(above, one) for above, _, names in os.walk(shown / place) for one in names]
        if verdict == "refuse" or not inside:
            assert not inside and verdict != "accept", f"{file} is {verdict}"
            assert read(shown / place) == (DATA / place).read_bytes()
        for path in inside:
            try:
                read(path)
            except OSError as error:
                assert verdict != "accept", f"{path}: {error}"

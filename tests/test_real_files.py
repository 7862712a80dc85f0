"""Containers written by the formats' own software show the written values: opened, exported and mounted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import DATA
from tests.mount.mounts import Mount, require
from tests.real_files import expected_files, expected_of, is_refused

FORMATS = ("kinodb", "wshard", "kastore", "ikv", "idv", "safetensors")
VERDICTS: dict[str, dict[str, str]] = json.loads((DATA / "malformed.json").read_bytes())
LARGEST = 4 << 20


class Shown:
    """The tree of tests/data, mounted or exported to ``folder``. ``files`` are the paths of all regular files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files = {
            os.path.relpath(os.path.join(place, name), folder)
            for place, _, names in os.walk(folder) for name in names if ".glassfs" not in place
        }

    def read(self, path: str) -> bytes:
        """Return the first bytes of a file. A damaged file may declare any size."""
        with (self._folder / path).open("rb") as file:
            return file.read(LARGEST)

    def inside(self, container: Path) -> list[str]:
        """Return the paths of the files in a container; none if it is shown as a plain file."""
        place = f"{container.relative_to(DATA)}/"
        return sorted(path for path in self.files if path.startswith(place))


@pytest.fixture(scope="module", params=[
    "mount", pytest.param("export", marks=pytest.mark.slow),
])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    place = tmp_path_factory.mktemp("real")
    if request.param == "export":
        command = [sys.executable, "-m", "glassfs", "export", str(DATA), str(place / "out")]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        assert "Traceback" not in done.stderr
        yield Shown(place / "out")
    else:
        require()
        (place / "mnt").mkdir()
        mount = Mount([DATA], place / "mnt", place / "log")
        try:
            yield Shown(mount.path)
        finally:
            mount.end()


def containers(name: str) -> list[Path]:
    """Return the containers of a format that can be opened, at least in part."""
    found = {path.with_name(path.name.removesuffix(".expected.json")) for path in (DATA / name).rglob("*.json")}
    return sorted(path for path in found if path.is_file() and path.suffix != ".json")


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_as_written(shown: Shown, name: str) -> None:
    checked = 0
    for container in containers(name):
        place = container.relative_to(DATA)
        if is_refused(expected_of(container)):
            assert str(place) in shown.files, f"{place} is shown as a container"
            continue
        for path, check in expected_files(container):
            try:
                check(shown.read(f"{place}/{path}"))
            except (AssertionError, OSError, ValueError, KeyError) as error:
                raise AssertionError(f"{place}: {path}: {error!r}") from error
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_or_partly_readable(shown: Shown, name: str) -> None:
    """Refused containers are plain files; files in the others can be read or raise OSError."""
    for file, verdict in VERDICTS[name].items():
        container = DATA / name / "malformed" / file
        inside = shown.inside(container)
        if verdict == "refuse" or not inside:
            assert not inside and verdict != "accept", f"{container.name} is {verdict}"
            assert shown.read(str(container.relative_to(DATA))) == container.read_bytes()
        for path in inside:
            try:
                shown.read(path)
            except OSError as error:
                assert verdict != "accept", f"{path}: {error}"

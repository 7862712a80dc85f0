"""The sdist and the wheel: built without a warning, complete, and usable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

from glassfs import __version__
from glassfs.cli.man import page
from tests.conftest import ROOT
from tests.optional import package

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist", "crashes",
)

IMPORTING = """
import importlib.abc, sys

class Others(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in allowed:
            raise ModuleNotFoundError(f"{name} is not there when a wheel is built", name=name)

allowed = {"glassfs", *sys.argv[1:]}
sys.meta_path.insert(0, Others())
from glassfs.cli.man import page
assert page().startswith(".TH GLASSFS 1")
"""


class Packages(NamedTuple):
    """The files in the sdist (below its one folder) and in the wheel, by their paths."""

    sdist: dict[str, bytes]
    wheel: dict[str, bytes]
    place: Path
    executable: set[str]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    package("build")
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "tree", symlinks=True, ignore=LEFT_OUT)
    done = run("-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "tree")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = (done.stdout + done.stderr).lower()
    assert not [line for line in printed.splitlines() if "warning" in line or "deprecat" in line]
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    source, executable = {}, set()
    with tarfile.open(sdist) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                source[name] = file.read()
                if member.mode & 0o100:
                    executable.add(name)
    with zipfile.ZipFile(wheel) as packed:
        built = {name: packed.read(name) for name in packed.namelist()}
    return Packages(source, built, folder / "dist", executable)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # With this variable set, building prints a warning.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=250, check=False,
        env=environment | {"NO_COLOR": "1"},
    )


def files_below(folder: str) -> dict[str, bytes]:
    """Return the files of a folder of this repository, without those that running or installing it creates."""
    files = {}
    for place, folders, names in os.walk(ROOT / folder, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.endswith(".egg-info")]
        for path in (Path(place, name) for name in names):
            files[str(path.relative_to(ROOT))] = path.read_bytes()
    return files


def differing(left: dict[str, bytes], right: dict[str, bytes]) -> set[str]:
    return {name for name in left.keys() | right.keys() if left.get(name) != right.get(name)}


@pytest.mark.slow
def test_manual_page_needs_only_build_requirements() -> None:
    """setup.py imports the commands in an environment with nothing but build-system.requires."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("requires = "))
    required = [requirement.partition(">=")[0].strip() for requirement in line.split('"')[1::2]]
    done = run("-c", IMPORTING, *required)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_twine_accepts_the_packages(packages: Packages) -> None:
    package("twine")
    done = run("-m", "twine", "check", "--strict", *packages.place.iterdir())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2 and "warning" not in done.stdout.lower()


@pytest.mark.slow
def test_wheel_has_what_wheels_should_have(packages: Packages) -> None:
    package("check_wheel_contents")
    done = run("-m", "check_wheel_contents", *packages.place.glob("*.whl"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_version_is_the_same_everywhere() -> None:
    wanted = {
        "pyproject.toml": f'\nversion = "{__version__}"\n', "CITATION.cff": f"\nversion: {__version__}\n",
        "CHANGELOG.md": f"# Changes\n\n## {__version__}\n",
    }
    assert not [name for name, line in wanted.items() if line not in (ROOT / name).read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("folder", [".github", "docs", "scripts", "src", "systemd", "tests"])
def test_sdist_holds_the_repository(packages: Packages, folder: str) -> None:
    packed = {
        name: data for name, data in packages.sdist.items()
        if name.startswith(f"{folder}/") and ".egg-info/" not in name
    }
    assert packed and not differing(packed, files_below(folder))


@pytest.mark.slow
def test_sdist_has_pages_and_executable_scripts(packages: Packages) -> None:
    pages = {"README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "Containerfile", "SECURITY.md", "LICENSE"}
    assert pages | {"pyproject.toml", "setup.py", ".ci/run"} <= packages.sdist.keys()
    assert {".ci/run", "scripts/test", "scripts/demo"} <= packages.executable


@pytest.mark.slow
def test_wheel_holds_units_and_manual_page(packages: Packages) -> None:
    packed = {name: data for name, data in packages.wheel.items() if name.startswith("glassfs/data/")}
    units = {f"glassfs/data/{name}": data for name, data in files_below("systemd").items()}
    assert units and not differing(packed, units | {"glassfs/data/glassfs.1": page().encode()})


@pytest.mark.slow
def test_wheel_holds_only_the_program(packages: Packages) -> None:
    kinds = (".py", "/py.typed", ".css", ".html", ".js")
    program = {name.removeprefix("src/") for name in files_below("src") if name.endswith(kinds)}
    assert {name for name in packages.wheel if name.endswith(kinds)} == program
    assert {name.partition("/")[0].partition("-")[0] for name in packages.wheel} == {"glassfs"}


@pytest.mark.slow
def test_metadata(packages: Packages) -> None:
    (text,) = (data for name, data in packages.wheel.items() if name.endswith(".dist-info/METADATA"))
    found = Parser().parsestr(text.decode())
    assert found["License-Expression"] == "MIT" and found["License-File"] == "LICENSE"
    assert any(name.endswith("/licenses/LICENSE") for name in packages.wheel)
    assert found["Project-URL"] is None and found["Home-page"] is None
    assert not [value for value in found.get_all("Classifier", []) if value.startswith("License")]
    required = [name for name in found.get_all("Requires-Dist", []) if "extra ==" not in name]
    assert not [name for name in required if name.startswith(("build", "twine", "setuptools"))]

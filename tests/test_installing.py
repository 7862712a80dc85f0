"""What glassfs is run by: the extras that messages name, and the interpreter that runs processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from glassfs.sandbox import pool
from tests.formats.hdf5_files import h5py
from tests.optional import package


def test_extras_leave_the_packages_of_others_alone() -> None:
    """An upper bound, or a package that has them for botocore, makes pip replace what boto3 and others need."""
    offered = metadata.metadata("glassfs").get_all("Provides-Extra") or []
    for extra in ("", "remote", "ssh", "dask", "pandas", "arrow", "polars"):
        assert not extra or extra in offered, "messages name it"
        for line in metadata.requires("glassfs") or ():
            requirement, _, condition = line.partition(";")
            if ("extra ==" in condition) if not extra else (f'extra == "{extra}"' not in condition.replace("'", '"')):
                continue
            assert not re.search("<|==|~=", requirement), line
            assert not requirement.startswith(("s3fs", "aiobotocore", "gcsfs")), line


# Which interpreter runs processes, with what environment, and what is said where there is none.


READ = """
import sys
{before}
import glassfs
try:
    with glassfs.open(sys.argv[1]) as opened:
        print(opened["x"].numpy().tolist())
except OSError as error:
    print(type(error).__name__, error)
"""
THREE = "[0, 1, 2]\n"


def read(path: Path, before: str = "", **variables: str | Path) -> str:
    """Return what a program prints that reads a dataset, after the lines ``before``."""
    found = {name: value for name, value in os.environ.items() if name not in ("GLASSFS_PYTHON", "HDF5_PLUGIN_PATH")}
    done = subprocess.run(
        [sys.executable, "-c", READ.format(before=before), path], capture_output=True, text=True, check=False,
        env=found | {"GLASSFS_CATALOGUE": "no"} | {name: str(value) for name, value in variables.items()},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = [0, 1, 2]
    return path


def program(folder: Path, name: str = "host") -> Path:
    """Return a program that notes each of its starts in the file ``starts``, and then does what ``python`` would."""
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/starts\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("before", [
    "sys.executable = sys._base_executable = {host!r}", "sys.executable = sys._base_executable = None",
    "sys.executable = sys._base_executable = ''", "sys.frozen = True", "sys.executable = {host!r}; sys.frozen = True",
], ids=["program", "none", "empty", "frozen", "both"])
def test_program_that_is_no_interpreter_is_not_started(numbers: Path, tmp_path: Path, before: str) -> None:
    host = str(program(tmp_path))
    printed = read(numbers, before.format(host=host))
    assert printed.startswith("Unavailable ")
    assert "is not known to be a Python interpreter: name one with GLASSFS_PYTHON or glassfs.configure" in printed
    assert not (tmp_path / "starts").exists()


def test_interpreter_beside_the_program_is_used(numbers: Path) -> None:
    assert read(numbers, "sys.executable = '/bin/cat'") == THREE


@pytest.mark.parametrize("before", [
    "sys.executable = None; sys.frozen = True", pytest.param("sys.executable = None", marks=pytest.mark.slow),
])
def test_interpreter_can_be_named(numbers: Path, before: str) -> None:
    base = f"{before}; sys._base_executable = None"
    assert read(numbers, base, GLASSFS_PYTHON=sys.executable) == THREE
    assert read(numbers, f"{base}; import glassfs; glassfs.configure(python={sys.executable!r})") == THREE


def test_named_interpreter_that_does_not_exist_is_said(numbers: Path) -> None:
    assert "nothing-here, which should be the Python interpreter, cannot be run" in read(
        numbers, GLASSFS_PYTHON="nothing-here",
    )


def test_program_that_is_taken_for_an_interpreter_starts_no_further_one(numbers: Path, tmp_path: Path) -> None:
    """Named by mistake, it reads the same file again."""
    host = tmp_path / "python3"
    code = READ.format(before="")
    host.write_text(f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'starts')!r}, 'a').write('1')\n"
                    f"sys.argv[1:] = [{str(numbers)!r}]\n{code}")
    host.chmod(0o755)
    printed = read(numbers, GLASSFS_PYTHON=host)
    assert printed.startswith("Unavailable ")
    assert (tmp_path / "starts").read_text() == "1"


def test_filters_of_plugin_folders_are_used(numbers: Path, tmp_path: Path) -> None:
    """The dataset is read without the package hdf5plugin, and intact without any plugin."""
    hdf5plugin = package("hdf5plugin", "dev")
    with h5py.File(numbers, "w") as file:
        file.create_dataset("x", data=[0, 1, 2], chunks=(3,), **hdf5plugin.BZip2())
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/hdf5plugin.py").write_text("raise ImportError")
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    shutil.copy(next(Path(hdf5plugin.PLUGIN_PATH).glob("libh5bz*")), plugins)
    (plugins / "libnothing.so").write_text("no plugin")
    hidden = tmp_path / "hidden"
    assert read(numbers, PYTHONPATH=hidden, HDF5_PLUGIN_PATH=plugins) == THREE
    printed = read(numbers, PYTHONPATH=hidden)
    assert printed.startswith("NotInstalled ")
    assert "needs filter 307 (bzip2): install hdf5plugin" in printed


def test_documented_variables_reach_workers_and_a_failing_start_is_said(numbers: Path, tmp_path: Path) -> None:
    names = (*pool.PASSED, "HOME")
    (tmp_path / "h5py.py").write_text(
        f"import os\nraise RuntimeError('with', *(os.environ.get(name, '-') for name in {names}))\n",
    )
    variables = dict.fromkeys(pool.PASSED, "/some/folder") | {"PYTHONHOME": ""}
    printed = read(numbers, PYTHONPATH=tmp_path, **variables)
    assert printed == (
        f"Unavailable {numbers}: its worker process cannot be started: "
        "RuntimeError: ('with', '/some/folder', '/some/folder', '', '-')\n"
    )

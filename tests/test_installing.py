"""Messages that name an extra give the command that installs it where glassfs is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

from glassfs import installing


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stand in for the installed package, with no file but its metadata, and with a pip that the shell finds."""
    folder = tmp_path / "glassfs-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: glassfs\nVersion: 1\n")
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(folder))
    monkeypatch.setattr(shutil, "which", lambda name: os.path.join(os.path.dirname(sys.executable), name))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return folder


def test_command_for_a_checkout_installs_the_checkout(distribution: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    for information, words in (({"editable": True}, "pip install -e"), ({}, "pip install")):
        said = {"url": checkout.as_uri(), "dir_info": information}
        (distribution / "direct_url.json").write_text(json.dumps(said))
        assert installing.command("remote") == "pip install 'glassfs[remote]'"
        (checkout / "pyproject.toml").touch()
        assert installing.command("remote") == f"{words} '{checkout}[remote]'"
        (checkout / "pyproject.toml").unlink()


@pytest.mark.parametrize(("said", "package"), [
    ("", "glassfs[ssh]"), ("nonsense", "glassfs[ssh]"), ("[]", "glassfs[ssh]"), ('{"url": 3}', "glassfs[ssh]"),
    ('{"url": "https://example.org/glassfs-1-py3-none-any.whl", "archive_info": {}}', "glassfs[ssh]"),
    ('{"url": "https://example.org/g", "vcs_info": {"vcs": "git"}}', "glassfs[ssh] @ git+https://example.org/g"),
])
def test_command_for_other_installations_names_the_package(said: str, package: str, distribution: Path) -> None:
    if said:
        (distribution / "direct_url.json").write_text(said)
    assert installing.command("ssh") == f"pip install '{package}'"


@pytest.mark.parametrize(("file", "tool"), [
    ("pipx_metadata.json", "pipx install --force"), ("uv-receipt.toml", "uv tool install"),
])
def test_command_uses_the_tool_that_made_the_environment(
    file: str, tool: str, distribution: Path, tmp_path: Path,
) -> None:
    (tmp_path / file).touch()
    assert installing.command("ssh") == f"{tool} 'glassfs[ssh]'"


def test_command_uses_the_pip_of_this_python(distribution: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ("/usr/bin/pip", None):
        monkeypatch.setattr(shutil, "which", lambda name, found=found: found)
        assert installing.command("ssh") == f"{sys.executable} -m pip install 'glassfs[ssh]'"
    (distribution / "INSTALLER").write_text("uv\n")
    assert installing.command("ssh") == f"uv pip install --python {sys.executable} 'glassfs[ssh]'"


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

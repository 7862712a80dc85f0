"""Recognition of containers by file name, for stores where reading them is slow."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from glassfs.formats import registry
from glassfs.formats.registry import BUILT_IN, may_be_container
from tests.conftest import ROOT
from tests.tree.made import FORMAT


@pytest.mark.parametrize(("name", "may_be"), [
    ("run.kdb", True), ("RUN.KDB", True), ("a.b.trees", True), ("e_manifest.wshard", True), ("e.wshard.partial", True),
    ("\udcff.kas", True), ("a.ikv", True), ("a.idv", True), ("a.shard", True), ("a.wshard", True),
    ("kdb", False), ("run.kdb.gz", False), ("notes.txt", False), ("a.partial", False), ("", False),
])
def test_suffixes_decide(name: str, may_be: bool) -> None:
    assert may_be_container(name) is may_be


def test_the_manual_lists_all_suffixes() -> None:
    manual = (ROOT / "docs/manual/mounting.md").read_text(encoding="utf-8")
    assert all(f"`{suffix}`" in manual for suffixes in BUILT_IN.values() for suffix in suffixes)


def test_installed_formats_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    unnamed = replace(FORMAT, suffixes=())
    monkeypatch.setattr(registry, "installed", lambda: (unnamed, replace(FORMAT, suffixes=(".made", ".mk"))))
    assert may_be_container("a.Made")
    assert may_be_container("a.mk")
    assert may_be_container("a.kdb")
    assert not may_be_container("made")


def test_no_format_is_imported_for_a_name() -> None:
    program = """
import sys
from glassfs.formats.registry import may_be_container
assert may_be_container("a.kdb") and not may_be_container("a.txt")
print([name for name in sys.modules if name.startswith("glassfs.formats.") and not name.endswith("registry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

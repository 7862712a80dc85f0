"""Links that lead out of a source: containers behind them, and what trees say of those that are not followed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter

import glassfs
from glassfs.datasets.joined import open_sources
from glassfs.tree import Directory, Symlink
from glassfs.tree.omissions import Omission


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot of Hugging Face's cache with one container, one link to a folder, and one whose data are missing."""
    tmp_path.chmod(0o755)
    (tmp_path / "blobs").mkdir(mode=0o755)
    snapshot = tmp_path / "snapshots/0123"
    snapshot.mkdir(parents=True, mode=0o755)
    with KastoreWriter(tmp_path / "blobs/4d7a") as writer:
        writer.add("time", np.arange(5.0))
    for name, target in (("run.kas", "4d7a"), ("gone.kas", "none"), ("gone.txt", "none"), ("folder", "")):
        (snapshot / name).symlink_to(f"../../blobs/{target}")
    (snapshot / "inside.kas").symlink_to("nowhere.kas")
    return snapshot


def test_a_container_behind_a_link_is_a_directory(snapshot: Path) -> None:
    with open_sources([str(snapshot)]).tree as tree:
        assert tree.file("run.kas/time.npy").size > 40
        assert isinstance(tree.lookup("folder"), Symlink)
        omitted = {one.name: one for one in tree.root.omitted()}
    assert omitted == {
        "folder": Omission("folder", f"link out of the source: ../../blobs/: {snapshot.parent.parent}/blobs is a "
                           "folder, which has to be named itself"),
        "gone.kas": Omission("gone.kas", "link to nothing: ../../blobs/none", True),
        "inside.kas": Omission("inside.kas", "link to nothing: nowhere.kas", True),
    }
    assert np.array_equal(glassfs.open(snapshot)["run.kas/time"][:], np.arange(5.0))


def test_a_mount_follows_none_unless_asked(snapshot: Path) -> None:
    with open_sources([str(snapshot)], follows=False).tree as tree:
        assert {type(node) for node in tree.root.listing()} == {Symlink}
        reasons = {one.name: one.reason for one in tree.root.omitted()}
    assert set(reasons) == {"run.kas", "gone.kas", "gone.txt", "folder"}
    assert all("-o follow_links" in reason for reason in reasons.values())


def test_a_replaced_blob_is_noticed(snapshot: Path) -> None:
    """Nothing reports changes in the folder of the blobs."""
    with open_sources([str(snapshot)]).tree as tree:
        before = tree.lookup("run.kas")
        assert isinstance(before, Directory)
        with KastoreWriter(snapshot / "../../blobs/new") as writer:
            writer.add("time", np.arange(6.0))
        (snapshot / "../../blobs/new").replace(snapshot / "../../blobs/4d7a")
        assert tree.file("run.kas/time.npy").size == tree.file("run.kas/time.npy").size
        assert tree.lookup("run.kas").origin.identity != before.origin.identity

"""The floor of the benchmark: a FUSE server in C that shows a given tree and ends when it is unmounted."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

import pytest
from benchmarks.data import Container, Dataset
from benchmarks.sides import FLOOR, SIDES, Compiled, Place, Side

MOST_OPEN = 512
LARGE = (2 << 20) + 777  # more than one request, and no whole number of pages


@pytest.fixture
def side() -> Side:
    found = SIDES["C server"]
    reason = found.missing()
    if reason is not None:
        pytest.skip(reason)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """More files than are kept open, listings of more than one request, and awkward names and sizes."""
    root = tmp_path / "data/tree"
    many = root / "many"
    many.mkdir(parents=True)
    for number in range(MOST_OPEN + 90):
        (many / f"{number:06d}.bin").write_bytes(b"%d " % number * 50)
    (root / "empty").mkdir()
    deep = root.joinpath(*["below" * 20] * 12)
    deep.mkdir(parents=True)
    (deep / ("n" * 255)).write_bytes(b"deep")
    (root / os.fsdecode(b"two words, \xff")).touch()
    (root / "large").write_bytes(os.urandom(LARGE))
    (root / "large").chmod(0o640)
    os.utime(root / "large", ns=(5, 1_600_000_000_123_456_789))
    os.utime(many, ns=(5, 1_500_000_000_000_000_001))
    return root


def opened(side: Side, tree: Path) -> AbstractContextManager[Place]:
    return side.opened(Dataset(Container("none", 1, 1, _never_called, _never_called), tree.parent, 1))


def _never_called(*_: object) -> NoReturn:
    raise AssertionError("the tree exists already")


def _below(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return mode, mtime, size and bytes of each entry by its path. The sizes of directories are left out."""
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, len(content), content)
        assert path.is_dir() or status.st_size == len(content)
    return found


@pytest.mark.slow
def test_floor_shows_the_tree_unchanged(side: Side, tree: Path) -> None:
    with opened(side, tree) as place:
        expected = _below(tree)
        assert len(expected) > MOST_OPEN
        assert _below(place.root) == expected
        assert place.daemon is not None and place.descriptors() < MOST_OPEN + 20
        assert _below(place.root) == expected
        listed = subprocess.run(["ls", "-a", place.root], stdout=subprocess.PIPE, check=True).stdout
        assert listed == subprocess.run(["ls", "-a", tree], stdout=subprocess.PIPE, check=True).stdout
        content = (tree / "large").read_bytes()
        with open(place.root / "large", "rb", buffering=0) as file:
            for offset in (LARGE - 1, 0, 4095, 1 << 20, LARGE, LARGE + 5000):
                assert os.pread(file.fileno(), 5000, offset) == content[offset : offset + 5000]
        for name in ("large/below", "nothing", "many/nothing", "below", "n" * 256):
            with pytest.raises(OSError):
                os.stat(place.root / name)
        with pytest.raises(OSError):
            (place.root / "new").touch()
        assert os.statvfs(place.root).f_files > MOST_OPEN


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="another reason would come first")
def test_side_that_cannot_be_compiled_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("#include <linux/no-such-header.h>\n")
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('broken.c:1: error: no-such-header.h')\n")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert Compiled("C server", "tree", FLOOR).missing() == "cc not installed"
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler.chmod(0o755)
    reason = Compiled("C server", "tree", broken).missing()
    assert reason == "broken.c does not compile: broken.c:1: error: no-such-header.h"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Compiled("C server", "tree", FLOOR).missing() == "only root mounts without a library"

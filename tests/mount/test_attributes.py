"""Extended attributes, and the mount's own directory with its status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import glassfs
from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import Mount, is_running


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def test_key_is_the_exact_original_name(shown: Mount, gallery: Gallery) -> None:
    assert b"caf\xe9/x" in gallery.keys.values()
    for path, key in gallery.keys.items():
        assert os.getxattr(shown.path / path, "user.glassfs.key") == key, path


def test_format_attribute_of_every_file(shown: Mount, gallery: Gallery) -> None:
    formats = {"kdb": b"kinodb", "wshard": b"wshard", "kas": b"kastore", "ikv": b"ikv", "idv": b"idv"}
    for path in gallery.files:
        found = attributes(shown.path / path)
        if path == "notes.txt":
            assert found == {}
            continue
        container = path[: path.index("/", len("sub/") if path.startswith("sub/") else 0)]
        assert found["user.glassfs.format"] == formats[container.rpartition(".")[2]], path
        assert "user.glassfs.key" in found, path
        assert "user.glassfs.error" not in found, path


def test_status_is_json_of_the_size_in_stat(shown: Mount, gallery: Gallery) -> None:
    path = shown.path / ".glassfs/status.json"
    for _ in range(3):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read()
        assert len(data) == size
        status = json.loads(data)
        assert data.endswith(b"\n")
    assert status["version"] == glassfs.__version__
    assert status["pid"] == shown.pid and is_running(status["pid"])
    assert status["sources"] == [str(gallery.folder)]
    assert status["options"]["cache_size"] == 8 << 20
    assert status["cache"]["budget"] == 8 << 20
    assert status["cache"]["used"] <= 8 << 20


def test_status_counts_containers_and_cache_use(mounted: Mounted, gallery: Gallery) -> None:
    with mounted(gallery.folder) as mount:
        before = mount.status()
        with (mount.path / "episode.wshard/signal/rgb.npy").open("rb") as file:
            assert file.read()
            after = mount.status()
        assert str(gallery.folder / "episode.wshard") in after["open_containers"]
        assert after["cache"]["misses"] > before["cache"]["misses"]
        assert after["cache"]["used"] >= before["cache"]["used"] + 12 * 16 * 20 * 3
        assert after["errors"] == 0
        (mount.path / "episode.wshard/signal/rgb/000001.png").read_bytes()
        assert mount.status()["cache"]["hits"] > after["cache"]["hits"]

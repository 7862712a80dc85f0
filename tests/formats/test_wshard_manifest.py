"""WShard episodes in several files: joined, checked, and refused with the name of the part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.wshard import WShardWriter, pack_residual, write_chunked, write_manifest

from glassfs.cache import BlockCache
from glassfs.content import Array, Json
from glassfs.errors import Damaged, Refused
from glassfs.formats.registry import open_container
from tests.formats.wshard_files import array_of, faults_of, only, values
from tests.helpers import CountingSource, contents_of, open_path, read_in_parts

TOTAL, STEPS = 50, 20
DATA: dict[str, np.ndarray[Any, Any]] = {
    "signal/cam/rgb": np.random.default_rng(1).integers(0, 255, (TOTAL, 5, 4, 3), "u1"),
    "action/q": np.arange(TOTAL * 2, dtype="<f4").reshape(TOTAL, 2),
    "reward": np.arange(TOTAL, dtype="<f4"),
    "done": np.arange(TOTAL) == TOTAL - 1,
}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_chunked(tmp_path, "long", DATA, STEPS, codec="zstd")


def changed_manifest(path: Path, change: Any) -> Path:
    """The manifest again, its JSON changed by ``change``."""
    content = only(open_path(path), "meta/manifest")
    assert isinstance(content, Json)
    value = json.loads(content.data.whole())
    change(value)
    return write_manifest(path, value)


def test_blocks_are_joined_and_parts_are_there_whole(manifest: Path) -> None:
    container = open_path(manifest)
    for name, array in DATA.items():
        content = only(container, name)
        assert isinstance(content, Array)
        assert np.array_equal(values(content), array)
        assert read_in_parts(content.data, 99) == array.tobytes()
        assert np.array_equal(array_of(container, f"chunks/0001/{name}"), array[STEPS : 2 * STEPS])
    names = set(contents_of(container.root))
    assert {b"meta/manifest", b"chunks/0000/meta/episode", b"chunks/0002/reward"} <= names
    assert b"meta/episode" not in names
    assert [source.name for source in container.sources] == [
        "long_manifest.wshard", *(f"long_chunk_000{number}.wshard" for number in range(3)),
    ]
    assert container.facts["steps"] == TOTAL
    assert faults_of(container) == {}


def test_residuals_are_joined_by_steps_not_by_bytes(tmp_path: Path) -> None:
    bits = np.random.default_rng(2).integers(0, 2, (18, 3)).astype(bool)
    chunks = []
    for number, (first, last) in enumerate([(0, 8), (9, 17)]):
        path = tmp_path / f"{number}.wshard"
        with WShardWriter(path) as writer:
            writer.add_channel("q", np.zeros((9, 3), "<f4"))
            writer.add("residual/q/sign2nddiff", pack_residual(bits[first : last + 1]))
        chunks.append({"chunk_index": number, "uri": path.name, "timestep_range": [first, last], "length_T": 9})
    container = open_path(write_manifest(tmp_path / "m.wshard", {"chunks": chunks}))
    assert np.array_equal(array_of(container, "residual/q/sign2nddiff"), bits)
    assert faults_of(container) == {f"chunks/000{n}": "the manifest has no SHA-256 of it" for n in (0, 1)}


def test_parts_in_any_order(manifest: Path) -> None:
    changed_manifest(manifest, lambda value: value["chunks"].reverse())
    assert np.array_equal(array_of(open_path(manifest), "reward"), DATA["reward"])


def test_an_empty_manifest_has_its_metadata_only(tmp_path: Path) -> None:
    container = open_path(write_manifest(tmp_path / "m.wshard", {"chunks": [], "total_timesteps": 0}))
    assert set(contents_of(container.root)) == {b"meta/manifest"}


def gap(value: Any) -> None:
    value["chunks"][1]["timestep_range"] = [25, 44]


def duplicate(value: Any) -> None:
    value["chunks"][1]["chunk_index"] = 0


def left_out(value: Any) -> None:
    del value["chunks"][1]


def wrong_length(value: Any) -> None:
    value["chunks"][1]["length_T"] = 21


def other_length(value: Any) -> None:
    value["chunks"][2] |= {"length_T": 9, "timestep_range": [40, 48]}
    value["total_timesteps"] = TOTAL - 1


def same_file(value: Any) -> None:
    value["chunks"][1]["uri"] = value["chunks"][0]["uri"]


def outside(value: Any) -> None:
    value["chunks"][1]["uri"] = "../long_chunk_0001.wshard"


def absolute(value: Any) -> None:
    value["chunks"][1]["uri"] = "/etc/passwd"


def itself(value: Any) -> None:
    value["chunks"][1]["uri"] = "long_manifest.wshard"


def no_name(value: Any) -> None:
    value["chunks"][1]["uri"] = "\ud800\0"


def wrong_total(value: Any) -> None:
    value["total_timesteps"] = 99


def wrong_count(value: Any) -> None:
    value["total_chunks"] = 4


def no_list(value: Any) -> None:
    value["chunks"] = {"a": 1}


def no_part(value: Any) -> None:
    value["chunks"][1] = 7


def no_range(value: Any) -> None:
    value["chunks"][1]["timestep_range"] = [20, "39"]


def wrong_hash(value: Any) -> None:
    value["chunks"][1]["sha256"] = "00" * 32


@pytest.mark.parametrize(
    ("change", "reason"),
    [(gap, "long_chunk_0001"), (duplicate, "two parts have the number 0"), (left_out, "part 1 is missing"),
     (wrong_length, "long_chunk_0001"), (other_length, "long_chunk_0002"), (same_file, "named for two parts"),
     (outside, "part 1.*same folder"), (absolute, "part 1.*same folder"), (itself, "part 1.*manifest"),
     (no_name, "part 1"), (wrong_total, "99"), (wrong_count, "4"), (no_list, "not a list"), (no_part, "entry 1"),
     (no_range, "entry 1"), (wrong_hash, "long_chunk_0001.*was changed")],
)
def test_what_is_not_one_whole_episode_is_refused(manifest: Path, change: Any, reason: str) -> None:
    changed_manifest(manifest, change)
    with pytest.raises(Refused, match=f"^long_manifest.wshard: .*{reason}"):
        open_path(manifest)


def test_a_missing_part_and_a_part_that_is_no_container_are_refused_by_name(manifest: Path) -> None:
    part = manifest.with_name("long_chunk_0002.wshard")
    part.write_bytes(b"KINO" + bytes(100))
    with pytest.raises(Refused, match=r"long_chunk_0002.wshard.*not a Shard container"):
        open_path(manifest)
    part.unlink()
    with pytest.raises(Refused, match=r"long_chunk_0002.wshard.*No such file"):
        open_path(manifest)


def flip_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_changed_part_is_refused_by_name(manifest: Path) -> None:
    flip_last_byte(manifest.with_name("long_chunk_0001.wshard"))
    with pytest.raises(Refused, match=r"long_chunk_0001.wshard.*was changed"):
        open_path(manifest)


def test_large_parts_are_checked_when_they_are_first_read(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.formats.wshard.manifest.HASHED_AT_OPENING", 0)
    flip_last_byte(manifest.with_name("long_chunk_0001.wshard"))
    container = open_path(manifest)
    assert np.array_equal(array_of(container, "chunks/0000/reward"), DATA["reward"][:STEPS])
    reward = only(container, "reward")
    assert isinstance(reward, Array)
    assert reward.data.read(0, 4 * STEPS) == DATA["reward"][:STEPS].tobytes()
    for _ in range(2):
        with pytest.raises(Damaged, match=r"long_chunk_0001.wshard.*was changed"):
            reward.data.whole()
    assert "was changed" in faults_of(container)["chunks/0001"]


def test_opening_hashes_no_large_parts(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.formats.wshard.manifest.HASHED_AT_OPENING", 0)
    opened: list[CountingSource] = []

    class Counting(CountingSource):
        def sibling(self, name: str) -> CountingSource:
            opened.append(CountingSource(Path(self.path).with_name(name)))
            return opened[-1]

    container = open_container(Counting(manifest), BlockCache())
    contents_of(container.root)
    assert len(opened) == 3
    hashed = [any(offset == 0 and size == source.size for offset, size in source.reads) for source in opened]
    assert hashed == [False, False, False]
    array_of(container, "chunks/0001/reward")
    assert opened[1].bytes_read > opened[1].size
    assert opened[0].bytes_read < opened[0].size


def test_blocks_that_are_not_the_same_in_all_parts_are_told_and_stay_in_the_parts(tmp_path: Path) -> None:
    chunks = []
    for number in range(2):
        path = tmp_path / f"{number}.wshard"
        with WShardWriter(path) as writer:
            writer.add_channel("same", np.zeros((4, 2), "<f4"))
            writer.add_channel("other", np.zeros((4, 2 + number), "<f4"))
            if number:
                writer.add("late", b"1")
                writer.add("late", b"2")
        first = number * 4
        chunks.append({"chunk_index": number, "uri": path.name, "timestep_range": [first, first + 3], "length_T": 4})
    container = open_path(write_manifest(tmp_path / "m.wshard", {"chunks": chunks}))
    found = contents_of(container.root)
    assert b"signal/same" in found and b"signal/other" not in found and b"late" not in found
    assert b"chunks/0001/signal/other" in found
    assert container.root.error is not None and "signal/other" in container.root.error
    assert {"signal/other", "late"} <= set(faults_of(container))

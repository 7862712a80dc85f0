"""WShard episodes in several files: joined, checked, and refused with the name of the part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.wshard import WShardWriter, pack_residual, write_chunked, write_manifest

from glassfs.cache import BlockCache
from glassfs.content import Blob, Container, Guessed, Json
from glassfs.errors import Damaged, Refused, Unavailable
from glassfs.formats.registry import Opening, open_container
from tests.formats.wshard_files import blocks_of, channels_of, faults_of, made
from tests.helpers import array_of, contents_of, omitted_in, only, open_path, opening, read_in_parts, values_of
from tests.memory_store import MemoryStore

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
        assert np.array_equal(values_of(content), array)
        assert read_in_parts(content.data, 99) == array.tobytes()
        assert np.array_equal(array_of(container, f"chunks/0001/{name}"), array[STEPS : 2 * STEPS])
    names = set(contents_of(container.root))
    assert {b"meta/manifest", b"chunks/0000/meta/episode", b"chunks/0002/reward"} <= names
    assert b"meta/episode" not in names
    assert [Path(source.name).name for source in container.sources] == [
        "long_manifest.wshard", *(f"long_chunk_000{number}.wshard" for number in range(3)),
    ]
    assert container.facts["steps"] == TOTAL
    assert faults_of(container) == {}


def test_parts_in_any_order(manifest: Path) -> None:
    changed_manifest(manifest, lambda value: value["chunks"].reverse())
    assert np.array_equal(array_of(open_path(manifest), "reward"), DATA["reward"])


def test_an_empty_manifest_has_its_metadata_only(tmp_path: Path) -> None:
    container = open_path(write_manifest(tmp_path / "m.wshard", {"chunks": [], "total_timesteps": 0}))
    assert set(contents_of(container.root)) == {b"meta/manifest"}


@pytest.mark.parametrize(("number", "changes", "reason"), [
    (1, {"timestep_range": [25, 44]}, "long_chunk_0001.*, begins at timestep 25"),
    (1, {"chunk_index": 0}, "two parts have the number 0"),
    (1, {"chunk_index": 5}, "part 1 is missing"), (1, {"length_T": 21}, "long_chunk_0001"),
    (2, {"length_T": 9, "timestep_range": [40, 48]}, "the parts have 49 timesteps"),
    (1, {"uri": "long_chunk_0000.wshard"}, "named for two parts"),
    (1, {"uri": "../long_chunk_0001.wshard"}, "part 1.*same folder"),
    (1, {"uri": "/etc/passwd"}, "part 1.*same folder"),
    (1, {"uri": "long_manifest.wshard"}, "part 1.*manifest"), (1, {"uri": "\ud800\0"}, "part 1"),
    (1, {"timestep_range": [20, "39"]}, "entry 1"), (1, {"sha256": "00" * 32}, "long_chunk_0001.*was changed"),
    (None, {"total_timesteps": 99}, "99"), (None, {"total_chunks": 4}, "4"), (None, {"chunks": {"a": 1}}, "not a list"),
    (None, {"chunks": [7]}, "entry 0"),
])
def test_what_is_not_one_whole_episode_is_refused(
    manifest: Path, number: int | None, changes: dict[str, Any], reason: str,
) -> None:
    changed_manifest(manifest, lambda value: (value if number is None else value["chunks"][number]).update(changes))
    with pytest.raises(Refused, match=f"/long_manifest.wshard: .*{reason}"):
        open_path(manifest)


def test_a_part_of_another_length_is_refused(manifest: Path) -> None:
    def change(value: Any) -> None:
        value["chunks"][2] |= {"length_T": 9, "timestep_range": [40, 48]}
        value["total_timesteps"] = TOTAL - 1

    changed_manifest(manifest, change)
    with pytest.raises(Refused, match="long_chunk_0002"):
        open_path(manifest)


def test_missing_and_foreign_parts_are_refused_by_name(manifest: Path) -> None:
    part = manifest.with_name("long_chunk_0002.wshard")
    part.write_bytes(b"KINO" + bytes(100))
    with pytest.raises(Refused, match=r"long_chunk_0002.wshard.*not a Shard container"):
        open_path(manifest)
    part.unlink()
    with pytest.raises(Refused, match=r"long_chunk_0002.wshard.*: cannot be opened: is missing"):
        open_path(manifest)


def flip_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_large_parts_are_checked_when_they_are_first_read(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_last_byte(manifest.with_name("long_chunk_0001.wshard"))
    with pytest.raises(Refused, match=r"long_chunk_0001.wshard.*was changed"):
        open_path(manifest)
    monkeypatch.setattr("glassfs.formats.wshard.manifest.HASHED_AT_OPENING", 0)
    container = open_path(manifest)
    assert np.array_equal(array_of(container, "chunks/0000/reward"), DATA["reward"][:STEPS])
    reward = only(container, "reward")
    assert reward.data.read(0, 4 * STEPS) == DATA["reward"][:STEPS].tobytes()
    for _ in range(2):
        with pytest.raises(Damaged, match=r"long_chunk_0001.wshard.*was changed"):
            reward.data.whole()
    assert "was changed" in faults_of(container)["chunks/0001"]


def in_parts(folder: Path, steps: int, *fills: Callable[[WShardWriter], None]) -> Container:
    """Write and open an episode, each part of so many steps and filled by a function."""
    chunks = []
    for number, fill in enumerate(fills):
        path, first = folder / f"{number}.wshard", number * steps
        path.write_bytes(made(fill))
        steps_of_part = [first, first + steps - 1]
        chunks.append({"chunk_index": number, "uri": path.name, "timestep_range": steps_of_part, "length_T": steps})
    return open_path(write_manifest(folder / "m.wshard", {"chunks": chunks}))


def test_residuals_are_joined_by_steps_not_by_bytes(tmp_path: Path) -> None:
    bits = np.random.default_rng(2).integers(0, 2, (18, 3)).astype(bool)
    container = in_parts(tmp_path, 9, *(
        channels_of({"q": np.zeros((9, 3), "<f4")}, **{"residual/q/sign2nddiff": pack_residual(part)})
        for part in (bits[:9], bits[9:])
    ))
    assert np.array_equal(array_of(container, "residual/q/sign2nddiff"), bits)
    assert faults_of(container) == {f"chunks/000{n}": "has no SHA-256 in the manifest" for n in (0, 1)}


def test_blocks_that_differ_between_parts_are_not_joined(tmp_path: Path) -> None:
    same = np.zeros((4, 2), "<f4")
    container = in_parts(
        tmp_path, 4, channels_of({"same": same, "other": same}),
        channels_of({"same": same, "other": np.zeros((4, 3), "<f4")}, late=b"1"),
    )
    found = contents_of(container.root)
    assert b"signal/same" in found and b"signal/other" not in found and b"late" not in found
    assert b"chunks/0001/signal/other" in found
    assert set(omitted_in(container.root)) == {"signal/other", "late"}
    assert {"signal/other", "late"} <= set(faults_of(container))


def test_guesses_are_joined_if_all_parts_have_the_same(tmp_path: Path) -> None:
    whole = np.arange(16, dtype="<f4").reshape(8, 2)
    container = in_parts(tmp_path, 4, *(
        channels_of({"pose": part}, **{"omen/pose/model": part.tobytes(), "omen/other/model": other})
        for part, other in ((whole[:4], b"1"), (whole[4:], whole[4:].tobytes()))
    ))
    found, other = only(container, "omen/pose/model"), only(container, "omen/other/model")
    assert isinstance(found, Guessed) and found.data.whole() == whole.tobytes()
    assert np.array_equal(values_of(found.likely), whole)
    assert found.attributes()["shape"] == "[8, 2]"
    assert type(other) is Blob


# Parts and stores: many parts, descriptors that run out, links.

MANY = 300


def many_parts(count: int) -> dict[str, bytes]:
    """An episode of very many parts of one step, as files by name."""
    files: dict[str, bytes] = {}
    chunks = []
    for number in range(count):
        data, uri = made(channels_of({"q": np.full((1, 2), number, "<f4")})), f"part{number}.wshard"
        files[uri] = data
        chunks.append({"chunk_index": number, "uri": uri, "timestep_range": [number, number], "length_T": 1,
                       "sha256": hashlib.sha256(data).hexdigest()})
    files["m.wshard"] = made(blocks_of({"meta/manifest": {"chunks": chunks}}), role=4, has_metadata=False)
    return files


@pytest.fixture(scope="module")
def many() -> dict[str, bytes]:
    return many_parts(MANY)


def opened_in(store: MemoryStore, name: str = "m.wshard") -> Container:
    return open_container(Opening(store.open((name,)), BlockCache(), store, (name,)))


def park(container: Container) -> None:
    for source in container.sources:
        source.park()


def test_very_many_parts_hold_nothing_after_opening(many: dict[str, bytes]) -> None:
    store = MemoryStore(many)
    container = opened_in(store)
    assert {source.name for source in store.held} == {"memory/m.wshard"}
    assert len(container.sources) == MANY + 1
    assert {source.entry for source in container.sources} == {store.entry((name,)) for name in many}
    expected = np.repeat(np.arange(MANY, dtype="<f4"), 2).reshape(MANY, 2)
    assert np.array_equal(array_of(container, "signal/q"), expected)
    park(container)
    assert not store.held
    assert np.array_equal(array_of(container, "signal/q"), expected)
    assert not store.held
    assert faults_of(container) == {}


@pytest.mark.parametrize("place", ["opening", "reading"])
def test_descriptors_that_run_out_are_no_verdict(place: str) -> None:
    store = MemoryStore(many_parts(2))
    failures = getattr(store, place)
    failures["part1.wshard"] = Unavailable("too many open files", "memory/part1.wshard")
    with pytest.raises(Unavailable, match=r"m\.wshard: part 1, 'part1\.wshard': too many open files"):
        opened_in(store)
    assert {source.name for source in store.held} <= {"memory/m.wshard"}, "a part is still held"
    failures.clear()
    container = opened_in(store)
    failures["part1.wshard"] = Unavailable("too many open files", "memory/part1.wshard")
    park(container)
    with pytest.raises(Unavailable):
        array_of(container, "signal/q")
    with pytest.raises(Unavailable):
        faults_of(container)
    failures.clear()
    assert array_of(container, "signal/q").shape == (2, 2)


def test_a_part_that_is_a_link_is_refused_by_name(manifest: Path) -> None:
    part = manifest.with_name("long_chunk_0001.wshard")
    part.rename(manifest.with_name("elsewhere"))
    part.symlink_to("elsewhere")
    reason = r"part 1, 'long_chunk_0001.wshard': cannot be opened: is not a regular file \(link\)"
    with pytest.raises(Refused, match=reason):
        open_path(manifest)


def test_parts_have_one_allowance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.formats.wshard.metadata.EXPANSION", 0)  # of JSON, which is dropped at once
    path = write_chunked(tmp_path, "long", DATA, STEPS)  # three parts of two channels
    given = opening(path)
    given.allowance.left = 30_000
    with pytest.raises(Refused, match=r"part 2, 'long_chunk_0002.wshard': cannot be used: takes .* of memory or more"):
        open_container(given)

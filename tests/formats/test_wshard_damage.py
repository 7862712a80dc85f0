"""WShard: wrong headers, truncation, damage of single blocks, and episodes in several files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.wshard import WShardWriter, pack_residual, write_chunked, write_manifest

from glassfs.cache import BlockCache
from glassfs.content import Array, Blob, Container, Json, Omitted
from glassfs.errors import Damaged, Refused, Unavailable
from glassfs.formats.registry import Opening, open_container
from tests.formats.exercise import peak_memory
from tests.formats.sound import ARRAY, fill
from tests.formats.sound import sound as sound_named
from tests.formats.wshard_files import (
    blocks_of,
    channels_of,
    entry_of,
    faults_of,
    header_of,
    made,
    raw_of,
    state,
    with_entry,
    with_header,
)
from tests.helpers import (
    array_of,
    contents_of,
    omitted_in,
    only,
    open_bytes,
    open_path,
    opening,
    read_in_parts,
    values_of,
)
from tests.memory_store import MemoryStore

STEPS = len(ARRAY)


def sound(codec: str = "none") -> bytes:
    return sound_named(f"wshard {codec}")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("version", 1, "version 1"), ("version", 3, "version 3"), ("entry_size", 56, "56"), ("entry_size", 0, "0 bytes"),
     ("role", 1, "MoSH"), ("role", 2, "Sample"), ("role", 3, "GemmPanel"), ("role", 6, "UMSH"), ("role", 7, "role 7"),
     ("role", 8, "ColumnShard"), ("role", 0, "role 0"), ("role", 4, "meta/manifest"), ("count", (1 << 32) - 1, "index"),
     ("count", 8, "names"), ("names_offset", 64, "names"), ("names_offset", 1 << 40, "names"),
     ("data_offset", 8, "names"), ("data_offset", 1 << 63, "names")],
)
def test_impossible_headers_are_refused_with_the_reason(field: str, value: int, reason: str) -> None:
    with pytest.raises(Refused, match=f"/made: .*{reason}"):
        open_bytes(with_header(sound(), **{field: value}))


@pytest.mark.parametrize("field", ["alignment", "compression", "total_size", "schema_offset"])
def test_wrong_but_unused_header_fields_cost_nothing(field: str) -> None:
    container = open_bytes(with_header(sound(), **{field: 7}))
    assert np.array_equal(array_of(container, "signal/x"), ARRAY)
    assert ("header" in faults_of(container)) == (field == "total_size")


def test_truncated_files_keep_the_blocks_that_are_whole() -> None:
    data = made(fill, has_metadata=True)
    whole = state(open_bytes(data))
    index_end = header_of(data)["data_offset"]
    for size in range(0, len(data), 97):
        try:
            container = open_bytes(data[:size])
        except Refused:
            assert size < index_end
            continue
        assert size >= index_end
        for name, found in state(container).items():
            end = sum(entry_of(data, name.decode())[1][field] for field in ("offset", "stored"))
            assert found == (whole[name] if end <= size else "damaged") or (
                end <= size and name.startswith((b"signal/", b"residual/"))  # as bytes: its description is cut off
            )


def test_a_cut_block_keeps_its_type_where_the_length_confirms_it() -> None:
    described = {"channels": [{"id": "x", "dtype": "f32", "shape": [40]}]}
    metadata = {"meta/episode": {"length_T": STEPS}, "meta/channels": described}
    container = open_bytes(made(blocks_of(metadata | {"signal/x": ARRAY}))[:-100])
    content = only(container, "signal/x")
    assert isinstance(content, Array) and content.shape == ARRAY.shape
    with pytest.raises(Damaged, match=r"/made: signal/x: .*outside"):
        content.data.whole()


@pytest.mark.parametrize(("codec", "changed"), [
    *product(("none", "zstd", "lz4"), [
        {"offset": 1 << 40}, {"offset": (1 << 64) - 16}, {"offset": 0}, {"stored": 1 << 62}, {"stored": 9000},
        {"stored": (1 << 64) - 1, "offset": (1 << 64) - 1},
    ]),
    *product(("zstd", "lz4"), [{"original": size} for size in (0, 100, 2559, 2561, 7000, 1 << 40, (1 << 64) - 1)]),
])
def test_a_block_that_is_not_what_its_entry_says_is_damage(codec: str, changed: dict[str, int]) -> None:
    container = open_bytes(with_entry(sound(codec), "signal/x", **changed))
    content = only(container, "signal/x")
    assert content.data.size  # also of a block that declares 0 bytes: an empty file is read without an error
    assert "original" in changed or content.data.size < 1 << 20
    with pytest.raises(Damaged, match=r"/made: signal/x: "):
        content.data.whole()
    assert raw_of(container, "reward") == np.arange(STEPS, dtype="<f4").tobytes()


@pytest.mark.parametrize("changed", [{"name_offset": 1 << 31}, {"name_len": 65535}])
def test_a_block_without_a_name_is_shown_under_its_number(changed: dict[str, int]) -> None:
    container = open_bytes(with_entry(sound(), "signal/x", **changed))
    found = contents_of(container.root)
    (content,) = found[b"unnamed/0"]
    assert isinstance(content, Blob) and content.data.whole() == ARRAY.tobytes()
    assert not omitted_in(container.root)
    assert b"reward" in found


def test_names_of_very_many_parts_do_not_become_directories() -> None:
    data = made(blocks_of({"/" * 60_000: b"deep", "x": b"plain"}), has_metadata=False)
    assert [len(member.name) for member in open_bytes(data).root.members()][:2] == [256, 1]


def test_an_index_that_would_cost_much_memory_is_refused() -> None:
    def overlapping(writer: WShardWriter) -> None:
        writer.add("/" * 65_535, b"")
        for _ in range(300):
            writer.add("x", b"")

    data = made(overlapping, has_metadata=False)
    for number in range(1, 301):
        place = 64 + 48 * number + 8
        data = data[:place] + bytes(4) + b"\xff\xff" + data[place + 6 :]
    with pytest.raises(Refused, match="of memory or more for names"):
        open_bytes(data)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"7", b"null", b'{"channels": {"a": 1}}', b"[]"],
)
@pytest.mark.parametrize("name", ["meta/channels", "meta/episode"])
def test_unusable_metadata_leave_blocks_readable(name: str, text: bytes) -> None:
    container = open_bytes(made(lambda writer: [fill(writer), writer.add(name, text)]))
    assert raw_of(container, "signal/x") == ARRAY.tobytes()
    assert raw_of(container, name) == text


def test_metadata_with_a_wrong_checksum_are_not_believed() -> None:
    data = sound()
    place = data.index(b'"f32"')
    container = open_bytes(data[: place + 2] + b"6" + data[place + 3 :])
    assert isinstance(only(container, "signal/x"), Blob)
    with pytest.raises(Damaged, match="meta/channels: its checksum"):
        raw_of(container, "meta/channels")


def test_very_large_metadata_are_not_parsed() -> None:
    text = b"[" + b"{}," * 4_000_000 + b"{}]"

    container = open_bytes(made(lambda writer: [
        writer.add("signal/x", ARRAY), writer.add("meta/channels", text, "zstd"),
    ]))
    assert isinstance(only(container, "signal/x"), Blob)
    assert raw_of(container, "meta/channels") == text


@pytest.mark.parametrize(("head", "reason"), [
    *((bytes(reserved), "^starts with zeros: its writer has not finished it") for reserved in (64, 1504, 1 << 16)),
    (bytes(63) + b"x", "is not a container of a known format"),
    (b"\0\0\0\x18ftypmp42", "is not a container of a known format"),
])
def test_unfinished_recordings_are_explained(head: bytes, reason: str) -> None:
    """Zeros where the header will be, and the first pieces behind them (docs/formats/wshard.md §13)."""
    with pytest.raises(Refused) as caught:
        open_bytes(head + ARRAY.tobytes(), "episode.wshard.partial")
    assert re.search(reason, caught.value.reason)


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    b"[" + b"{}," * 1_300_000 + b"{}]", b'{"channels": [' + b'{"":0},' * 550_000 + b"{}]}",
    b'["' + b"\xf0\x9f\x98\x80" * 1_000_000 + b'"]',
], ids=["objects", "channels", "wide text"])
def test_parsed_metadata_reserve_memory_for_their_values(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "made"
    path.write_bytes(made(lambda writer: [writer.add("signal/x", ARRAY), writer.add("meta/channels", text)]))
    given = opening(path, 1 << 30)
    sizes: list[int] = []
    reserve = given.cache.reserved
    monkeypatch.setattr(given.cache, "reserved", lambda size: (sizes.append(size), reserve(size))[1])

    def look() -> None:
        with suppress(Refused):  # so many channels are
            open_container(given)

    assert peak_memory(look) < sum(sizes) < 300 << 20
    assert given.cache.used == 0


# Episodes in several files

TOTAL, PART = 50, 20
DATA: dict[str, np.ndarray[Any, Any]] = {
    "signal/cam/rgb": np.random.default_rng(1).integers(0, 255, (TOTAL, 5, 4, 3), "u1"),
    "action/q": np.arange(TOTAL * 2, dtype="<f4").reshape(TOTAL, 2),
    "reward": np.arange(TOTAL, dtype="<f4"),
    "done": np.arange(TOTAL) == TOTAL - 1,
}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_chunked(tmp_path, "long", DATA, PART, codec="zstd")


def changed_manifest(path: Path, change: Any) -> Path:
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
        assert np.array_equal(array_of(container, f"chunks/0001/{name}"), array[PART : 2 * PART])
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


def test_large_parts_are_checked_when_they_are_first_read(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = manifest.with_name("long_chunk_0001.wshard")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(Refused, match=r"long_chunk_0001.wshard.*was changed"):
        open_path(manifest)
    monkeypatch.setattr("glassfs.formats.wshard.HASHED_AT_OPENING", 0)
    container = open_path(manifest)
    assert np.array_equal(array_of(container, "chunks/0000/reward"), DATA["reward"][:PART])
    reward = only(container, "reward")
    assert reward.data.read(0, 4 * PART) == DATA["reward"][:PART].tobytes()
    for _ in range(2):
        with pytest.raises(Damaged, match=r"long_chunk_0001.wshard.*was changed"):
            reward.data.whole()
    assert "was changed" in faults_of(container)["chunks/0001"]


def in_parts(folder: Path, steps: int, *fills: Callable[[WShardWriter], None]) -> Container:
    chunks = []
    for number, write in enumerate(fills):
        path, first = folder / f"{number}.wshard", number * steps
        path.write_bytes(made(write))
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
    assert all(one.is_damage for _, one in container.root.members() if isinstance(one, Omitted))


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
    part.rename(manifest.with_name("moved"))
    part.symlink_to("moved")
    reason = r"part 1, 'long_chunk_0001.wshard': cannot be opened: is not a regular file \(link\)"
    with pytest.raises(Refused, match=reason):
        open_path(manifest)


def test_parts_have_one_allowance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.formats.wshard.metadata.EXPANSION", 0)  # of JSON, which is dropped at once
    path = write_chunked(tmp_path, "long", DATA, PART)  # three parts of two channels
    given = opening(path)
    given.allowance.left = 30_000
    with pytest.raises(Refused, match=r"part 2, 'long_chunk_0002.wshard': cannot be used: takes .* of memory or more"):
        open_container(given)

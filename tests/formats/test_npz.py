"""NPZ archives, against NumPy and Python's zipfile, and recordings of DreamerV3 in them."""

from __future__ import annotations

import io
import json
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pyarrow import parquet

import glassfs
from glassfs.cli import verify
from glassfs.content import Array, Group, Omitted, Part
from glassfs.errors import Damaged, NotInstalled, Refused, Unsuited
from glassfs.formats.npz import FORMAT
from glassfs.formats.registry import Head, open_container
from glassfs.library import arrays as library_arrays
from glassfs.tree.containers.lease import parse
from tests import optional
from tests.formats import npz_files
from tests.formats.npz_files import Arrays, npy, saved, streamed, with_zip64_end, zipped
from tests.helpers import CountingSource, contents_of, file_data, only, open_bytes, open_path, opening
from tests.weights import weight_of

X = npy(np.arange(10.0))
Y = npy(np.arange(6, dtype=">i4").reshape(2, 3))

WRITERS: dict[str, Callable[[Arrays], bytes]] = {
    "savez": saved,
    "savez_compressed": lambda values: saved(values, True),
    "data descriptors": streamed,
    "stored with data descriptors": lambda values: streamed(values, zipfile.ZIP_STORED),
    "comment": lambda values: zipped(
        *((f"{name}.npy", npy(array)) for name, array in values.items()), comment=b"PK" * 999,
    ),
    "bytes in front": lambda values: b"#!/bin/sh\n" * 7 + saved(values),
    "ZIP64 end": lambda values: with_zip64_end(saved(values)),
    "best compression": lambda values: zipped(
        *((f"{name}.npy", npy(array)) for name, array in values.items()),
        compression=zipfile.ZIP_DEFLATED, compresslevel=9,
    ),
}


def member_files(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def file_of(data: bytes, name: str) -> bytes:
    return file_data(only(open_bytes(data, "made.npz"), name)).whole()


@pytest.mark.parametrize("writer", WRITERS)
def test_arrays_are_those_of_numpy(writer: str) -> None:
    """Values, dtype and order, and files that are the members unchanged."""
    values = npz_files.arrays()
    data = WRITERS[writer](values)
    container = open_bytes(data, "made.npz")
    assert (container.format, container.facts["members"]) == ("npz", len(values))
    found = contents_of(container.root)
    files = member_files(data)
    loaded = np.lib.npyio.NpzFile(io.BytesIO(data))  # numpy.load does not recognize archives with bytes in front
    assert {name.decode() for name in found} >= set(values)
    for name, expected in values.items():
        (content,) = found[name.encode()]
        assert isinstance(content, Array), name
        assert file_data(content).whole() == files[f"{name}.npy"], name
        array = library_arrays.array_of(content, False)
        assert array is not None and array.dtype == loaded[name].dtype and array.shape == loaded[name].shape, name
        assert array.flags.f_contiguous == loaded[name].flags.f_contiguous
        assert np.array_equal(array, expected) or name in ("times", "big_times"), name
        assert array.tobytes() == loaded[name].tobytes() or array.dtype.names
    assert list(container.check()) == []


def test_sparse_matrices_of_scipy(tmp_path: Path) -> None:
    sparse = optional.package("scipy.sparse")
    matrix = sparse.random(40, 30, 0.1, format="csr", random_state=1)
    for name, made in (("csr", matrix), ("coo", matrix.tocoo())):
        for is_compressed in (True, False):
            path = tmp_path / f"{name}.npz"
            sparse.save_npz(path, made, is_compressed)
            opened = glassfs.open(path)
            assert opened["format"].numpy() == name.encode()
            assert np.array_equal(opened["data"].numpy(), made.data)
            parts = ("indices", "indptr") if name == "csr" else ("row", "col")
            assert {f"{part}.npy" for part in (*parts, "data", "format", "shape")} == set(opened)


# Recognition


@pytest.mark.parametrize(("data", "name", "is_npz"), [
    (saved({"a": np.arange(3)}), "anything", True),
    (saved({"a": np.arange(3)}), "", True),
    (b"front" + saved({"a": np.arange(3)}), "a.npz", True),
    (b"front" + saved({"a": np.arange(3)}), "a.zip", False),
    (saved({}), "a.npz", True),
    (zipped(("readme.txt", b""), ("a.npy", X)), "a.npz", True),
    (zipped(("readme.txt", b""), ("a.npy", X)), "a.zip", False),
    (zipped(("archive/data.pkl", b""), ("archive/data/0", X)), "model.pt", False),
    (zipped(("[Content_Types].xml", b"<Types/>")), "text.docx", False),
    (b"", "a.npz", False), (b"PK\3\4", "a.npz", False), (bytes(99), "a.npz", False), (X, "a.npz", False),
])
def test_recognition(data: bytes, name: str, is_npz: bool) -> None:
    head = Head(data[:4096], name, len(data), lambda offset, size: data[offset : offset + size])
    assert FORMAT.recognises(head) == is_npz


# Members


def test_members_that_are_no_arrays_keep_their_names(tmp_path: Path) -> None:
    broken = b"\x93NUMPY\1"
    data = zipped(("a.npy", X), ("notes/readme.txt", b"hello"), ("folder/", b""), ("broken.npy", broken), (".npy", Y))
    (tmp_path / "a.npz").write_bytes(data)
    opened = glassfs.open(tmp_path / "a.npz")
    assert sorted(opened) == ["%.npy", "a.npy", "broken.npy", "folder", "notes"]
    assert opened["notes/readme.txt"].bytes() == b"hello"
    assert opened["broken.npy"].bytes() == broken
    assert list(opened["folder"]) == []


def test_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    data = saved({"o": np.array([Evil()], object), "a": np.arange(3)})
    (tmp_path / "a.npz").write_bytes(data)
    opened = glassfs.open(tmp_path / "a.npz")
    assert isinstance(only(open_bytes(data), "o.npy"), Part)
    assert opened["o.npy"].bytes() == member_files(data)["o.npy"]
    with pytest.raises(Unsuited, match=r"o\.npy: is a pickle of Python objects, which is never loaded"):
        opened["o"].numpy()
    assert not (tmp_path / "made").exists()


def test_last_of_equal_names_keeps_the_name(tmp_path: Path) -> None:
    """As in NumPy. The others stay readable."""
    path = tmp_path / "a.npz"
    with pytest.warns(UserWarning, match="Duplicate"):
        path.write_bytes(zipped(("a.npy", X), ("b.npy", X), ("a.npy", Y), ("a.npy", X[:-8]), ("a.npy", Y)))
    opened = glassfs.open(path)
    assert np.array_equal(opened["a"].numpy(), np.load(path)["a"])
    assert [opened[name].bytes() for name in ("a~2.npy", "a~3.npy", "a.npy~2")] == [X, Y, X[:-8]]


def test_names_of_cp437_and_utf_8() -> None:
    old = bytearray(zipped(("aou.npy", X)))
    for place in (old.index(b"aou.npy"), old.rindex(b"aou.npy")):
        old[place : place + 3] = b"\x84\x94\x81"
    assert set(contents_of(open_bytes(bytes(old)).root)) == {"äöü".encode()}
    assert set(contents_of(open_bytes(zipped(("äöü.npy", X))).root)) == {"äöü".encode()}


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    names = ["../../etc/passwd.npy", "/absolute.npy", "back\\slash.npy", "C:\\x.npy", "line\nfeed.npy", "a/./b.npy"]
    path = tmp_path / "a.npz"
    path.write_bytes(zipped(("first.npy", X), *((name, X) for name in names)))
    found = contents_of(open_container(opening(path)).root)
    assert set(found) == {b"first"} | {name.removesuffix(".npy").encode() for name in names}
    shown = {"%", "%2E%2E", "C:\\x.npy", "a", "back\\slash.npy", "first.npy", "line%0Afeed.npy"}
    assert set(glassfs.open(path)) == shown


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_cost_their_member(tmp_path: Path, method: int) -> None:
    info = zipfile.ZipInfo("b.npy")
    info.compress_type = method
    path = tmp_path / "a.npz"
    path.write_bytes(zipped(("a.npy", X), (info, X), ("c.npy", Y)))
    opened = glassfs.open(path)
    assert opened["a.npy"].bytes() == X and opened["c.npy"].bytes() == Y
    with pytest.raises(NotInstalled, match=rf"b\.npy: is compressed with method {method}: write it with numpy\.savez"):
        opened["b.npy"].bytes()


def patched_entry(data: bytes, name: bytes, field: int, layout: str, *numbers: int) -> bytes:
    changed = bytearray(data)
    place = changed.rindex(name) - 46
    assert changed[place : place + 4] == b"PK\1\2"
    struct.pack_into(layout, changed, place + field, *numbers)
    return bytes(changed)


FLAGS, METHOD, CRC, STORED, SIZE, NAME_LENGTH, OFFSET = 8, 10, 16, 20, 24, 28, 42
BOTH = zipped(("a.npy", X), ("b.npy", Y), compression=zipfile.ZIP_STORED)
PACKED = zipped(("a.npy", X), ("b.npy", Y), compression=zipfile.ZIP_DEFLATED)
PACKED_SIZE = len(zlib.compress(Y)) - 6


@pytest.mark.parametrize(("data", "reason"), [
    (patched_entry(BOTH, b"b.npy", FLAGS, "<H", 1), "is encrypted"),
    (patched_entry(BOTH, b"b.npy", METHOD, "<H", 1234), "is compressed with method 1234"),
    (patched_entry(BOTH, b"b.npy", CRC, "<L", 5), "its checksum does not match"),
    (patched_entry(PACKED, b"b.npy", CRC, "<L", 5), "its checksum does not match"),
    (patched_entry(BOTH, b"b.npy", SIZE, "<L", len(Y) + 1), "are declared"),
    (patched_entry(BOTH, b"b.npy", STORED, "<LL", 1 << 30, 1 << 30), "overlap"),
    (patched_entry(BOTH, b"b.npy", STORED, "<LL", len(Y) + 1, len(Y) + 1), "overlap"),
    (patched_entry(PACKED, b"b.npy", SIZE, "<L", len(Y) + 1), "deflate data give"),
    (patched_entry(PACKED, b"b.npy", SIZE, "<L", len(Y) - 1), "give more than the declared"),
    (patched_entry(PACKED, b"b.npy", SIZE, "<L", 0xFFFFFFF0), "cannot give the declared"),
    (patched_entry(PACKED, b"b.npy", SIZE, "<L", 0), "declares 0 bytes, but has a checksum of others"),
    (patched_entry(BOTH, b"b.npy", STORED, "<LL", 0, 0), "declares 0 bytes, but has a checksum of others"),
    (patched_entry(BOTH, b"b.npy", OFFSET, "<L", BOTH.rindex(b"PK\3\4") + 2), "local header at [0-9]* is damaged"),
    (patched_entry(BOTH, b"b.npy", OFFSET, "<L", 0), "differs from that in the central directory"),
    (patched_entry(BOTH, b"b.npy", OFFSET, "<L", len(BOTH) - 30), "overlap"),
    (patched_entry(BOTH, b"b.npy", OFFSET, "<L", 0xFFFFFFFF), "overlap"),
])
def test_lie_of_a_member_costs_that_member(tmp_path: Path, data: bytes, reason: str) -> None:
    """Its error is one line that names it, whether it is read at once or in pieces; neighbors are readable."""
    path = tmp_path / "lie.npz"
    path.write_bytes(data)
    opened = glassfs.open(path)
    assert opened["a.npy"].bytes() == X
    for _ in range(2):
        with pytest.raises((Damaged, NotInstalled), match=reason) as caught:
            opened["b.npy"].bytes()
        assert str(caught.value).startswith(f"{path}: b.npy: ") and "\n" not in str(caught.value)
    with pytest.raises((Damaged, NotInstalled)), opened["b.npy"].open() as stream:
        while stream.read(100):
            pass


def test_size_of_0_is_checked_like_any_other(tmp_path: Path) -> None:
    """Of a member with the checksum of no bytes, too, and of a folder; empty members are sound."""
    packed = zipped(("a.npy", X), ("b/", Y), ("empty", b""), ("d/", b""), compression=zipfile.ZIP_DEFLATED)
    path = tmp_path / "lie.npz"
    path.write_bytes(packed)
    assert "0 faults" in verified(path)
    path.write_bytes(patched_entry(packed, b"b/", SIZE, "<L", 0))
    assert "declares 0 bytes, but has a checksum of others" in verified(path)
    path.write_bytes(patched_entry(patched_entry(packed, b"a.npy", SIZE, "<L", 0), b"a.npy", CRC, "<L", 0))
    assert "a.npy: deflate data give more than the declared 0 bytes" in verified(path)


def verified(path: Path) -> str:
    return CliRunner().invoke(verify.command, [str(path)]).output


def test_member_inside_another_is_refused() -> None:
    """Two members over the same bytes: the outer one ends where the inner one begins (docs/formats/npz.md §9)."""
    inner = zipped(("b.npy", Y))
    data = zipped(("a.npy", npy(np.frombuffer(inner, "u1"))), ("b.npy", Y))
    place = data.index(b"PK\3\4", 10)
    lying = patched_entry(data, b"b.npy", OFFSET, "<L", place)
    container = open_bytes(lying)
    with pytest.raises(Damaged, match=r"a\.npy: its bytes overlap another member"):
        file_data(only(container, "a.npy")).whole()
    assert file_data(only(container, "b")).whole() == Y


def changed_end(data: bytes, field: int, layout: str, *numbers: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, changed.rindex(b"PK\5\6") + field, *numbers)
    return bytes(changed)


SIXTY_FOUR = with_zip64_end(BOTH)


@pytest.mark.parametrize(("data", "reason"), [
    (BOTH[:-30], "is cut short"),
    pytest.param(BOTH[:40], "is cut short", id="cut in the first member"),  # its bytes have the time in them
    (changed_end(BOTH, 16, "<L", 0xFFFFFFF0), "offsets before the beginning"),
    (changed_end(BOTH, 12, "<L", 0xFFFFFFF0), "Bad offset|negative"),
    (changed_end(BOTH, 12, "<L", 100), "Bad magic number for central directory"),
    (patched_entry(BOTH, b"b.npy", 0, "<L", 0), "Bad magic number for central directory"),
    (SIXTY_FOUR.replace(b"PK\6\6", b"PK\6\5"), "Bad offset|negative"),
])
def test_lies_about_the_directory_are_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "lie.npz"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match=reason) as caught:
            open_container(opening(path))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


# What reading costs


def test_stored_members_are_ranges_of_the_file(tmp_path: Path) -> None:
    """Opening reads headers, a part of an array that part, and ``numpy()`` nothing: it is mapped."""
    values = np.random.default_rng(1).normal(size=(1 << 20))
    path = tmp_path / "a.npz"
    np.savez(path, a=values, b=np.arange(3))
    source = CountingSource(path)
    content = only(open_container(opening(source)), "a")
    assert source.bytes_read < 32 << 10
    file = file_data(content)
    file.read(0, 1)  # finds where the member begins
    before = source.bytes_read
    assert file.read(4 << 20, 100) == member_files(path.read_bytes())["a.npy"][4 << 20 :][:100]
    assert source.bytes_read - before == 100
    mapped = library_arrays.array_of(content, False)
    assert mapped is not None and not mapped.flags.owndata and mapped[12345] == values[12345]
    assert source.bytes_read - before == 100


def test_damage_of_a_stored_member_is_found_at_its_end(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(1 << 20))
    data = bytearray(saved({"a": values}))
    data[5000] ^= 1
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    file = file_data(only(open_container(opening(path)), "a"))
    assert len(file.read(1 << 20, 1000)) == 1000
    with pytest.raises(Damaged, match=r"a\.npz: a\.npy: its checksum does not match"):
        for start in range(0, file.size, 1 << 17):
            file.read(start, min(1 << 17, file.size - start))


def test_deflated_member_is_decoded_once(tmp_path: Path) -> None:
    """A range in the middle costs one pass, which is kept, also if the member is larger than the memory budget."""
    values = np.random.default_rng(1).integers(0, 50, 1 << 20)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=values)
    for budget in (64 << 20, 8 << 20):
        source = CountingSource(path)
        given = opening(source, budget)
        file = file_data(only(open_container(given), "a"))
        for start in (4 << 20, 100, 6 << 20, 5 << 20):
            assert file.read(start, 50) == npy(values)[start : start + 50]
        assert source.bytes_read < 1.5 * source.size


def of_members(count: int) -> bytes:
    """Return an archive without ZIP64, whose end record may be too short for the count."""
    local, central = bytearray(), bytearray()
    small = npy(np.arange(1, dtype="u1"))
    crc = zlib.crc32(small)
    for number in range(count):
        name = b"%07d.npy" % number
        fields = (0, 0, 0, 0, crc, len(small), len(small), len(name), 0)
        central += struct.pack("<4sHHHHHHLLLHHHHHLL", b"PK\1\2", 20, 20, *fields, 0, 0, 0, 0, len(local)) + name
        local += struct.pack("<4sHHHHHLLLHH", b"PK\3\4", 20, *fields) + name + small
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, len(central), len(local), 0)
    return bytes(local + central + end)


def test_members_beyond_the_allowance_are_refused(tmp_path: Path) -> None:
    """Also if the end record, without ZIP64, is too short to say how many there are."""
    path = tmp_path / "many.npz"
    path.write_bytes(of_members(70_000))
    with pytest.raises(Refused, match=r"more for the central directory, and 16M are allowed: a larger cache_size"):
        open_path(path)
    assert len(contents_of(open_path(path, 256 << 20).root)) == 70_000


# Recordings of DreamerV3

@pytest.mark.parametrize("is_compressed", [False, True])
def test_replay_of_dreamer_is_an_episode(tmp_path: Path, is_compressed: bool) -> None:
    values = npz_files.episode()
    path = tmp_path / "replay.npz"
    path.write_bytes(saved(values, is_compressed))
    opened = glassfs.open(path, views="parquet+mp4+html")
    assert {"steps.parquet", "image.mp4", "index.html"} <= set(opened)
    steps = parquet.read_table(io.BytesIO(opened["steps.parquet"].bytes())).to_pydict()
    assert steps["frame"] == list(range(npz_files.STEPS))
    for name in ("reward", "is_last", "log_distance"):
        assert steps[name] == values[name].tolist()
    assert steps["action.3"] == values["action"][:, 3].tolist()
    table = parse(opening(path)).episodes()
    assert table is not None and table.records is not None
    (row,) = table.records.block(0)
    assert row["num_frames"] == npz_files.STEPS and row["action_dim"] == 4 and row["cameras"] == ["image"]
    assert row["total_reward"] == pytest.approx(values["reward"].sum())
    assert row["channels"] == ["action", "reward", "is_first", "is_last", "is_terminal", "log_distance"]


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("dtype", ["?", "u1", ">f4"])
def test_replay_is_cut_where_episodes_begin(tmp_path: Path, is_compressed: bool, dtype: str) -> None:
    """The first episode has its end alone, as chunks begin anywhere."""
    values = npz_files.episode()
    cuts = [0, 3, 4, npz_files.STEPS]
    values["is_first"] = np.isin(np.arange(npz_files.STEPS), cuts[1:]).astype(dtype)
    values["action"] = np.asfortranarray(values["action"]).astype(">f8")
    path = tmp_path / "chunk.npz"
    path.write_bytes(saved(values, is_compressed))
    opened = glassfs.open(path, views="parquet+mp4+html+lerobot")
    rows = list(opened.episodes())
    assert [(row["position"], row["num_frames"]) for row in rows] == [(0, 3), (1, 1), (2, npz_files.STEPS - 4)]
    assert "steps.parquet" not in opened and np.array_equal(opened["action"].numpy(), values["action"])
    for number, (first, end) in enumerate(pairwise(cuts)):
        episode = opened[f"episodes/{number}"]
        assert rows[number]["total_reward"] == pytest.approx(values["reward"][first:end].sum())
        assert rows[number]["cameras"] == ["image"] and "episode_number.npy" not in episode
        for name in ("action", "image", "is_first", "reward", "log_distance"):
            assert np.array_equal(episode[name].numpy(), values[name][first:end])
        assert len(episode["steps.parquet"].table()) == end - first
        assert {"index.html", "image.mp4"} <= set(episode)
    info = json.loads(opened["lerobot/unknown/meta/info.json"].bytes())
    assert (info["total_episodes"], info["total_frames"]) == (3, npz_files.STEPS)


@pytest.mark.parametrize(("starts", "lengths"), [
    ([], [12]), ([0], [12]), ([11], [11, 1]), (range(12), [1] * 12),
], ids=["none", "first", "last", "all"])
@pytest.mark.parametrize("shape", [(12,), (12, 1)])
def test_replay_is_cut_at_any_start(starts: Sequence[int], lengths: list[int], shape: tuple[int, ...]) -> None:
    values = npz_files.episode()
    values["is_first"] = np.isin(np.arange(npz_files.STEPS), list(starts)).reshape(shape)
    table = open_bytes(saved(values)).episodes()
    assert table is not None and table.records is not None
    assert [row["num_frames"] for row in table.records.block(0)] == lengths


def test_starts_of_a_million_episodes_take_four_bytes_each() -> None:
    """A few kilobytes say that each step begins an episode."""
    count = 1_000_000
    flags = np.ones(count, bool)
    stored = saved({"action": flags, "reward": flags, "is_first": flags}, is_compressed=True)
    table = open_bytes(stored).episodes()
    assert table is not None and table.rows == count and len(stored) < 10_000
    assert weight_of(table) < 6 * count


@pytest.mark.parametrize("change", [
    {"is_first": np.zeros(npz_files.STEPS, bool)}, {"is_first": np.zeros((npz_files.STEPS, 0), bool)},
    {"is_first": np.zeros(npz_files.STEPS, "S3")},
])
def test_replay_without_starts_is_one_episode(change: dict[str, Any]) -> None:
    table = open_bytes(saved(npz_files.episode() | change)).episodes()
    assert table is not None and table.rows == 1 and table.directory == b""


def test_damaged_starts_join_no_episodes() -> None:
    """Several episodes must not look like one: there are none, and the reason is named."""
    values = npz_files.episode() | {"is_first": np.ones(npz_files.STEPS, bool)}
    opened = open_bytes(patched_entry(saved(values), b"is_first.npy", CRC, "<L", 1))
    assert opened.episodes() is None
    assert isinstance(opened.root, Group)
    (omitted,) = (one.content for one in opened.root.members() if one.name == (b"episodes",))
    assert isinstance(omitted, Omitted) and omitted.is_damage


@pytest.mark.parametrize("change", [
    {"reward": np.zeros(npz_files.STEPS + 1)}, {"is_first": np.array(True)}, {"action": np.array([{}], object)},
    {"reward": np.zeros(0), "action": np.zeros((0, 3)), "is_first": np.zeros(0, bool)},
])
def test_other_archives_are_no_episodes(change: dict[str, Any]) -> None:
    assert open_bytes(saved(npz_files.episode() | change)).episodes() is None
    without = {name: array for name, array in npz_files.episode().items() if name != "is_first"}
    assert open_bytes(saved(without)).episodes() is None


def test_damaged_rewards_have_no_sum() -> None:
    data = saved(npz_files.episode())
    table = open_bytes(patched_entry(data, b"reward.npy", CRC, "<L", 1)).episodes()
    assert table is not None and table.records is not None
    (row,) = table.records.block(0)
    assert row["total_reward"] is None and row["num_frames"] == npz_files.STEPS

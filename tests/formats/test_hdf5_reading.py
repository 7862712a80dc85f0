"""Groups and links of HDF5, and how chunks are read: small ones together, large ones into an array."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassfs
from glassfs.errors import Damaged, GlassfsError, NoSuchEntry, Refused, TooLarge
from glassfs.formats.hdf5 import chunks, filters
from glassfs.sandbox import client
from tests.cli.glassfs_command import glassfs as run
from tests.formats.hdf5_files import flip, h5py, nested, replace, unreadable, values, write_robomimic
from tests.optional import package

OLD = time.time() - 1000


@pytest.mark.parametrize("dtype", ["u1", ">i4", "c16", "?"])
@pytest.mark.parametrize(("shape", "step"), [
    ((11, 10, 9, 3), (4, 3, 4, 2)), ((7, 40), (7, 3)), ((1, 16, 16), (3, 4, 16)), ((5, 9, 8), (1, 3, 8)),
])
def test_small_chunks_are_put_together(tmp_path: Path, shape: Any, step: Any, dtype: str) -> None:
    whole = values(shape, dtype)
    with h5py.File(tmp_path / "made.h5", "w") as file:
        limits = (None, *shape[1:])
        for name, options in (("packed", {"compression": "gzip", "shuffle": True}), ("plain", {})):
            file.create_dataset(name, data=whole, chunks=step, maxshape=limits, **options)
        options = {"compression": "lzf", **({} if dtype == "c16" else {"fillvalue": 1})}
        sparse = file.create_dataset("sparse", shape, dtype, chunks=step, maxshape=limits, **options)
        sparse[2:, 1:] = whole[2:, 1:]
        expected = {name: file[name][()] for name in file}
    chance = np.random.default_rng(1)
    with glassfs.open(tmp_path / "made.h5") as opened:
        for name, known in expected.items():
            little = known.astype(known.dtype.newbyteorder("<"))
            assert np.array_equal(opened[name].numpy(), known), name
            raw, head = little.tobytes(), opened[f"{name}.npy"].file_size - little.nbytes
            with opened[f"{name}.npy"].open() as file:
                for _ in range(60):
                    start, end = sorted(chance.integers(0, len(raw) + 1, 2).tolist())
                    file.seek(head + start)
                    assert file.read(end - start) == raw[start:end], name


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"fletcher32": True}], ids=["gzip", "checksum"])
def test_damaged_small_chunk_costs_only_its_part(tmp_path: Path, options: dict[str, Any]) -> None:
    path, whole = tmp_path / "made.h5", np.random.default_rng(2).integers(0, 9, (8, 40, 40), "u1")
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=whole, chunks=(4, 10, 10), **options)
        damaged = made.id.get_chunk_info_by_coord((0, 30, 30))
    flip(path, damaged.byte_offset + damaged.size - 2)
    with glassfs.open(path) as opened:
        array = opened["x"]
        assert np.array_equal(array[4:], whole[4:])
        assert np.array_equal(array[2, :30], whole[2, :30])
        with pytest.raises(Damaged, match=f"chunk at {damaged.byte_offset}"):
            array[2]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Return a file with an array of 6 MB in chunks of 160 KB, some of which are not stored or not compressed."""
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        options = {"compression": "gzip", "shuffle": True, "fillvalue": 7}
        made = file.create_dataset("x", (30_010, 100), "<i2", chunks=(800, 100), **options)
        made[1_700:] = np.random.default_rng(3).integers(0, 99, (28_310, 100))
        made.id.write_direct_chunk((8_000, 0), np.arange(80_000, dtype="<i2").tobytes(), filter_mask=0b11)
    return path


def test_large_array_is_decoded_without_the_cache(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(large) as file:
        whole = file["x"][()]
    cached: list[Any] = []
    read_into = chunks.BlockCache.read_into

    def counted(self: Any, recipe: Any, buffer: memoryview, offset: int) -> None:
        cached.append(recipe)
        read_into(self, recipe, buffer, offset)

    with glassfs.open(large, cache_size=16 << 20) as opened:
        assert opened["x"][0, 0] == 7
        monkeypatch.setattr(chunks.BlockCache, "read_into", counted)
        assert np.array_equal(opened["x"].numpy(), whole)
        assert np.array_equal(opened["x"][100:29_000], whole[100:29_000])
        decoded = [one for one in cached if one.key[1] == "chunk"]
        assert len(decoded) <= 4  # those at the edges


def test_damage_in_a_large_array_is_found(large: Path) -> None:
    with h5py.File(large) as file:
        damaged = file["x"].id.get_chunk_info(20)
    flip(large, damaged.byte_offset + damaged.size - 2)
    with glassfs.open(large, cache_size=16 << 20) as opened:
        for _ in range(2):
            with pytest.raises(Damaged, match=f"chunk at {damaged.byte_offset}"):
                opened["x"].numpy()
        assert opened["x"][0, 0] == 7


@pytest.fixture
def sheared(tmp_path: Path) -> Path:
    """A film whose frames are each in twelve chunks, some of which stick out of it, and of which one is not stored."""
    whole = np.random.default_rng(3).integers(1, 99, (11, 20, 18, 3), "u1")
    with h5py.File(tmp_path / "made.h5", "w") as file:
        made = file.create_dataset("x", whole.shape, "u1", chunks=(4, 10, 7, 2), compression="gzip", fillvalue=7)
        made[:, :10] = whole[:, :10]
        made[:, 10:, 7:] = whole[:, 10:, 7:]
    return tmp_path / "made.h5"


def test_neighbors_of_a_frame_are_decoded_once(sheared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    undo = filters.undo

    def counted(*arguments: Any) -> None:
        decoded.append(1)
        undo(*arguments)

    monkeypatch.setattr(filters, "undo", counted)
    with glassfs.open(sheared) as opened:
        counts = []
        for frame in (9, 0, 1, 2, 3, 4, 5, 8):
            decoded.clear()
            assert opened["x"][frame].any()
            counts.append(len(decoded))
    assert counts == [10, 10, 0, 0, 0, 10, 0, 0]


def test_damaged_chunk_costs_only_what_is_in_it(sheared: Path) -> None:
    with h5py.File(sheared) as file:
        one, whole = file["x"].id.get_chunk_info(0), file["x"][()]
    flip(sheared, one.byte_offset + one.size - 2)
    with glassfs.open(sheared) as opened:
        with pytest.raises(Damaged, match=f"chunk at {one.byte_offset}"):
            opened["x"][1]
        assert np.array_equal(opened["x"][1, 10:], whole[1, 10:])
        assert np.array_equal(opened["x"][5], whole[5])


def _read_frames(path: Path) -> list[int]:
    with glassfs.open(path) as opened:
        names = [name for name in opened["data"] if opened["data"][name].is_dir()]
        return [int(opened[f"data/{name}/obs/agentview_image"][1].sum()) for name in names]


@pytest.mark.usefixtures("catalogue")
def test_later_program_needs_no_worker(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    path = write_robomimic(tmp_path / "made.h5")
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            frames = demo["obs/agentview_image"][()]
            del demo["obs/agentview_image"]
            demo.create_dataset("obs/agentview_image", data=frames, chunks=(1, *frames.shape[1:]), compression="gzip")
    os.utime(path, (OLD, OLD))
    first = _read_frames(path)
    assert "chunks" in [request["do"] for request in asked]
    asked.clear()
    assert _read_frames(path) == first
    assert asked == []
    with h5py.File(path, "a") as file:
        demo = next(iter(file["data"].values()))
        demo["obs/agentview_image"][1] = 1
    os.utime(path, (OLD + 9, OLD + 9))
    assert _read_frames(path) != first
    assert asked != []


@pytest.mark.usefixtures("catalogue")
def test_missing_filter_is_not_remembered(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        unreadable(file, b"x")
    os.utime(tmp_path / "made.h5", (OLD, OLD))
    for _ in range(2):
        asked.clear()
        with glassfs.open(tmp_path / "made.h5") as opened:
            assert list(opened) == ["x.npy"]
        assert "list" in [request["do"] for request in asked]


KEY = struct.Struct("<IIQQ")
"""Of a chunk of an axis: the stored size, a mask of filters, the place, and 0."""


@pytest.mark.parametrize(("change", "reason"), [
    (lambda one, two: {KEY.pack(one.size, 0, 20, 0): KEY.pack(one.size, 0, 4_000, 0)}, "outside of its shape"),
    (lambda one, two: {struct.pack("<Q", two.byte_offset): struct.pack("<Q", one.byte_offset)}, "overlap"),
    (lambda one, two: {
        KEY.pack(two.size, 0, 40, 0): KEY.pack(two.size, 0, 20, 0),
        KEY.pack(one.size, 0, 20, 0): KEY.pack(one.size, 0, 40, 0),
    }, "in their order"),
])
def test_chunks_that_are_not_where_they_belong_are_damage(tmp_path: Path, change: Any, reason: str) -> None:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        whole = np.random.default_rng(1).integers(0, 9, 80)
        made = file.create_dataset("x", data=whole, chunks=(20,), compression="gzip")
        one, two = (made.id.get_chunk_info(number) for number in (1, 2))
        file["y"] = 1
    for old, new in change(one, two).items():
        replace(path, old, new)
    with glassfs.open(path) as opened:
        with pytest.raises(Damaged, match=reason):
            opened["x"].numpy()
        assert opened["y"].numpy() == 1


def test_lost_size_of_stored_values_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=np.arange(60))
        place = struct.pack("<QQ", made.id.get_offset(), made.nbytes)
        file.create_dataset("unallocated", (5,), "f4")
    replace(path, place, place[:8] + bytes(8))
    with glassfs.open(path) as opened:
        with pytest.raises(Damaged, match="has 0 stored bytes"):
            opened["x"].numpy()
        assert not opened["unallocated"].numpy().any()


@pytest.mark.parametrize(("shape", "chunks"), [
    ((12 << 20,), (12 << 20,)),
    pytest.param((2, 5 << 10, 7 << 10), (1, 5 << 10, 7 << 10), marks=pytest.mark.slow),
    pytest.param((2 << 10, 11 << 10), (2 << 10, 5 << 10), marks=pytest.mark.slow),
])
def test_chunk_is_decoded_once_by_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], chunks: tuple[int, ...],
) -> None:
    plugins = package("hdf5plugin", "dev")
    whole = np.random.default_rng(4).integers(0, 255, shape, "u1")
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=whole, chunks=chunks, **plugins.Blosc())
        stored = file["x"].id.get_storage_size()
    served = [0]
    serve = client._Conversation._serve

    def counted(self: Any, payload: bytearray) -> None:
        served[0] += client.RANGE.unpack(payload)[1]
        serve(self, payload)

    monkeypatch.setattr(client._Conversation, "_serve", counted)
    with glassfs.open(path) as opened:
        found = opened["x"]
        step = max(1, len(whole) // 20)
        for first in range(0, len(whole), step):
            assert np.array_equal(found[first : first + step], whole[first : first + step])
    assert served[0] < 1.2 * stored


@pytest.mark.parametrize("asked", [40, 1_000, 20_000])
@pytest.mark.parametrize(("shape", "chunks"), [
    ((50, 33, 5), (7, 10, 5)), ((9, 40), (20, 7)), ((300,), (64,)), ((), None),
])
def test_any_range_that_the_library_decodes_is_that_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], chunks: tuple[int, ...] | None, asked: int,
) -> None:
    monkeypatch.setattr("glassfs.formats.hdf5.elements.PIECE", asked)
    whole = values(shape, "<i4")
    unusual = h5py.h5t.STD_I32LE.copy()
    unusual.set_precision(20)
    with h5py.File(tmp_path / "made.h5", "w") as file:
        h5py.Dataset(h5py.h5d.create(file.id, b"plain", unusual, h5py.h5s.create_simple(shape)))[...] = whole
        if chunks:
            file.create_dataset("scaled", shape, "<i4", whole, chunks=tuple(map(min, chunks, shape)), scaleoffset=0)
    chance = np.random.default_rng(1)
    with glassfs.open(tmp_path / "made.h5") as opened:
        for name in opened:
            assert np.array_equal(opened[name].numpy(), whole)
            raw = opened[name].bytes()
            with opened[name].open() as file:
                for _ in range(30):
                    start, end = sorted(map(int, chance.integers(0, len(raw), 2)))
                    file.seek(start)
                    assert file.read(end - start) == raw[start:end]


def test_chunk_too_large_for_a_worker_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.create_dataset("x", ((160 << 20) + 1,), "u1", chunks=((160 << 20) + 1,), scaleoffset=3)
        file["y"] = 1
    with glassfs.open(tmp_path / "made.h5") as opened:
        with pytest.raises(TooLarge, match="chunks of more than 160 MiB that only the library decodes"):
            opened["x"][0]
        assert opened["y"].numpy() == 1


def test_named_types_and_attributes_of_omitted_objects_are_said(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["kind"] = h5py.enum_dtype({"clear": 0, "cloud": 1}, "u1")
        h5py.h5d.create(file.id, b"rows", nested(9), h5py.h5s.create_simple((1,)))
        file["rows"].attrs["unit"] = "m"
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert opened["rows.attributes.json"].json() == {"unit": "m"}
        for name, reason in (("kind", "named type: "), ("rows", "deeply nested type: ")):
            with pytest.raises(NoSuchEntry, match=f"omitted: {name}: {reason}"):
                opened[name]


@pytest.mark.parametrize("is_swmr", [True, False])
def test_file_of_a_killed_writer_is_refused_with_the_reason(tmp_path: Path, is_swmr: bool) -> None:
    """Its first bytes say so: it is never listed as a directory, and a program that copies the folder gets the file."""
    path = tmp_path / "made.h5"
    process = os.fork()
    if not process:
        try:
            file = h5py.File(path, "w", libver="latest")
            made = file.create_dataset("x", (0,), "i4", maxshape=(None,), chunks=(100,))
            if is_swmr:
                file.swmr_mode = True
            made.resize((1_000,))
            file.flush()
        finally:
            os._exit(0)
    os.waitpid(process, 0)
    with pytest.raises(Refused, match=r"open for (SWMR )?writing, or its writer was killed"), glassfs.open(path):
        pass
    assert run("verify", path).status == 1
    with glassfs.open(tmp_path) as opened:
        assert opened["made.h5"].is_file() and opened["made.h5"].bytes() == path.read_bytes()
    if is_swmr:
        with h5py.File(path, "r", swmr=True) as file, h5py.File(tmp_path / "closed.h5", "w", libver="latest") as closed:
            file.copy("x", closed)
        with glassfs.open(tmp_path / "closed.h5") as opened:
            assert opened["x"].shape == (1_000,)


def test_verify_reads_only_what_is_stored_of_terabytes_of_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("none", (1 << 40,), ">f8", fillvalue=2.5)
        file.create_dataset("zeros", (1 << 40,), "u1")
        for name, filters in (("plain", {}), ("zipped", {"compression": "gzip"})):
            made = file.create_dataset(name, (1 << 20, 1 << 20), ">i8", chunks=(64, 64), **filters)
            made[0, :64] = made[1 << 19, 1 << 19] = made[-1, -1] = 7
        last = made.id.get_chunk_info(2)
    assert run("verify", path).status == 0
    flip(path, last.byte_offset + 10)
    found = run("verify", path)
    assert found.status == 1
    assert [line.split(": ")[1] for line in found.lines] == ["zipped.npy"]


def test_object_that_cannot_be_described_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["sound"] = 1
        file["lost"] = np.arange(3)
        address = h5py.h5o.get_info(file["lost"].id).addr
    data = bytearray(path.read_bytes())
    assert data[address : address + 4] == b"OHDR"
    data[address + 20] ^= 255
    path.write_bytes(data)
    with glassfs.open(path) as opened:
        assert opened["sound"].numpy() == 1
        with pytest.raises(GlassfsError, match="checksum"):
            opened["lost"].bytes()
    found = run("verify", path)
    assert found.status == 1
    assert "lost" in "".join(found.lines)


def test_links_to_the_group_itself_lead_to_it(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        file["x"] = 1
        file["root"] = file["/"]
        file["slash"] = h5py.SoftLink("/")
        file["a/x"] = 2
        file["a/me"] = file["a"]
        file["a/dot"] = h5py.SoftLink(".")
        file["a/top"] = h5py.SoftLink("/.")
        file["a/dotted"] = h5py.SoftLink("././x")
    assert run("export", "--links", "keep", path, tmp_path / "made").status == 0
    made = tmp_path / "made"
    targets = {name: os.readlink(made / name) for name in ("root", "slash", "a/me", "a/dot", "a/top", "a/dotted.npy")}
    assert targets == {
        "root": ".", "slash": ".", "a/me": ".", "a/dot": ".", "a/top": "..", "a/dotted.npy": "x.npy",
    }
    with glassfs.open(path) as opened:
        for name in ("root/slash/root/x", "a/me/dot/top/x"):
            assert opened[name].numpy() == 1
        assert opened["a/me/dotted"].numpy() == 2


def test_names_and_attributes_of_any_encoding_lead_to_their_values(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    names = (b"caf\xe9", "café".encode(), b"\xff\xfe", b"%41", b"tab\there", b"\xed\xa0\x80")
    attributes = (b"unit\xe9", rb"unit\xe9", "unité".encode())
    scalar, number = h5py.h5s.create(h5py.h5s.SCALAR), h5py.h5t.STD_I32LE
    with h5py.File(path, "w") as file:
        group = h5py.h5g.create(file.id, b"\xe9")
        for position, name in enumerate(names):
            made = h5py.h5d.create(group, name, number, scalar)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(position, "i4"))
            for value, attribute in enumerate(attributes):
                h5py.h5a.create(made, attribute, number, scalar).write(np.array(value, "i4"))
    with glassfs.open(path) as opened:
        shown = list(opened["%E9"])
        assert len(shown) == 2 * len(names)
        for name in shown:
            entry = opened[f"%E9/{name}"]
            if name.endswith(".npy"):
                assert run("cat", path, f"%E9/{name}").output == entry.bytes()
            else:
                assert sorted(json.loads(entry.bytes()).values()) == [0, 1, 2]
        assert sorted(int(opened[f"%E9/{name}"].numpy()) for name in shown if name.endswith(".npy")) == [*range(6)]

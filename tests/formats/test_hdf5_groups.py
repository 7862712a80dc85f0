"""Groups of HDF5 files: links, files of writers that were killed, and what a listing costs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import glassfs
from glassfs.errors import GlassfsError, NoSuchEntry, Refused
from tests.cli.glassfs_command import glassfs as run
from tests.formats.hdf5_files import h5py


def left_by_a_killed_writer(path: Path, is_swmr: bool) -> Path:
    """Write a file as a process that never closes it."""
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
    return path


def test_file_of_a_killed_writer_is_never_listed_as_a_directory(tmp_path: Path) -> None:
    """Its first bytes say so: a program that copies the folder gets the file."""
    path = left_by_a_killed_writer(tmp_path / "made.h5", True)
    with glassfs.open(tmp_path) as opened:
        assert opened["made.h5"].is_file()
        assert opened["made.h5"].bytes() == path.read_bytes()


def test_named_types_and_attributes_of_omitted_objects_are_said(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["kind"] = h5py.enum_dtype({"clear": 0, "cloud": 1}, "u1")
        file["rows"] = np.array([(1, b"x")], [("number", "i4"), ("text", "S3")])
        file["rows"].attrs["unit"] = "m"
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert opened["rows.attributes.json"].json() == {"unit": "m"}
        for name, reason in (("kind", "named type: "), ("rows", "compound with text: ")):
            with pytest.raises(NoSuchEntry, match=f"omitted: {name}: {reason}"):
                opened[name]


def test_verify_names_each_dataset_that_cannot_be_read(tmp_path: Path) -> None:
    """They may have one reason."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((4,))
    properties.set_filter(32999, h5py.h5z.FLAG_OPTIONAL, (1,))
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for name in (b"a", b"b", b"c"):
            space = h5py.h5s.create_simple((8,))
            h5py.h5d.create(file.id, name, h5py.h5t.STD_I32LE, space, properties).write_direct_chunk((0,), bytes(16))
    done = run("verify", tmp_path / "made.h5")
    assert done.status == 1
    assert [line.split(": ")[1] for line in done.lines] == ["a.npy", "b.npy", "c.npy"]


@pytest.mark.parametrize("is_swmr", [True, False])
def test_file_of_a_killed_writer_is_refused_with_the_reason(tmp_path: Path, is_swmr: bool) -> None:
    path = left_by_a_killed_writer(tmp_path / "made.h5", is_swmr)
    with pytest.raises(Refused, match=r"open for (SWMR )?writing, or its writer was killed"), glassfs.open(path):
        pass
    assert run("verify", path).status == 1
    if is_swmr:
        with h5py.File(path, "r", swmr=True) as file, h5py.File(tmp_path / "closed.h5", "w", libver="latest") as closed:
            file.copy("x", closed)
        with glassfs.open(tmp_path / "closed.h5") as opened:
            assert opened["x"].shape == (1_000,)


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

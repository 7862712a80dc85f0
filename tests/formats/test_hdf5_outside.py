"""Virtual datasets and external links of HDF5, against h5py; and which files count."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassfs
from glassfs.content import Array
from glassfs.errors import Damaged, NoSuchEntry
from glassfs.settings import settings
from glassfs.tree.nodes import Access
from tests.formats.hdf5_files import h5py, values
from tests.helpers import omitted_in, open_path

CHANCE = np.random.default_rng(7)


def write_sources(folder: Path) -> None:
    """Write the files that others refer to: contiguous, chunked, compressed, of several types."""
    with h5py.File(folder / "one.h5", "w") as file:
        file["a/plain"] = values((9, 8, 6), "<f8")
        file.create_dataset("a/packed", data=values((9, 8, 6), ">f8"), chunks=(2, 3, 4), compression="gzip")
        file["a/plain"].attrs["unit"] = "m"
        file["a/up"] = h5py.SoftLink("/a/plain")
        file["a/away"] = h5py.SoftLink("/b")
        file["b"] = np.arange(5)
        file["small"] = values((7,), "<i2")
        file["back"] = h5py.ExternalLink("main.h5", "/far")
        file["text"] = ["one", "two"]
    with h5py.File(folder / "two.h5", "w", userblock_size=512) as file:
        file.create_dataset("packed", data=values((4, 8, 6), "<f8"), chunks=(4, 4, 1), shuffle=True, compression="lzf")


def test_virtual_datasets_have_the_values_of_h5py(tmp_path: Path) -> None:
    write_sources(tmp_path)
    sources = [("one.h5", "a/plain", (9, 8, 6)), ("one.h5", "a/packed", (9, 8, 6)), ("two.h5", "packed", (4, 8, 6)),
               (".", "own", (9, 8, 6)), ("main.h5", "own", (9, 8, 6)), ("./one.h5", "/a/plain", (9, 8, 6))]
    expected = {}
    with h5py.File(tmp_path / "main.h5", "w", libver="latest") as file:
        file["own"] = values((9, 8, 6), "<f8")
        for number in range(25):
            shape = (int(CHANCE.integers(4, 12)), 8, 6)
            dtype, fill = ">f8" if number % 2 else "<f8", -1.5 if number % 3 else 0.0
            layout, made, at = h5py.VirtualLayout(shape, dtype), np.full(shape, fill), 0
            while at < shape[0]:
                name, path, extent = sources[int(CHANCE.integers(len(sources)))]
                length = int(CHANCE.integers(1, min(extent[0], shape[0] - at) + 1))
                first = int(CHANCE.integers(extent[0] - length + 1))
                if CHANCE.integers(4):  # else these places have fill value
                    layout[at : at + length] = h5py.VirtualSource(name, path, extent)[first : first + length]
                    made[at : at + length] = values(extent, "<f8")[first : first + length]
                at += length
            file.create_virtual_dataset(f"virtual{number}", layout, fillvalue=fill or None)
            expected[f"virtual{number}"] = made
        rows = h5py.VirtualLayout((6, 6), "f8")  # an axis of one element on one side only
        rows[2] = h5py.VirtualSource("one.h5", "a/plain", (9, 8, 6))[4, 3, :]
        file.create_virtual_dataset("row", rows)
        file["link"] = h5py.SoftLink("/row")
    container = open_path(tmp_path / "main.h5")
    data = {key[0].decode(): one.data for key, one in container.root.members() if isinstance(one, Array)}  # type: ignore
    with h5py.File(tmp_path / "main.h5") as file, glassfs.open(tmp_path / "main.h5") as opened:
        assert np.array_equal(opened["row"].numpy(), file["row"][()])
        assert np.array_equal(opened["link.npy"].numpy(), file["row"][()])
        for name, wanted in expected.items():
            assert np.array_equal(opened[name].numpy(), wanted), name
            assert np.array_equal(file[name][()], wanted), name
            raw = wanted.tobytes()
            for _ in range(10):  # any range
                start, end = sorted(CHANCE.integers(0, len(raw) + 1, 2).tolist())
                assert data[name].read(start, end - start) == raw[start:end]


def test_large_virtual_datasets_are_put_together_in_parts(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "frames.h5", "w") as file:
        file.create_dataset("frames", data=values((40, 256, 200), "<u2"), chunks=(1, 256, 200), compression="lzf")
    with h5py.File(tmp_path / "main.h5", "w") as file:
        layout = h5py.VirtualLayout((60, 256, 200), "u2")
        for start, first in ((0, 20), (35, 0)):
            layout[start : start + 20] = h5py.VirtualSource("frames.h5", "frames", (40, 256, 200))[first : first + 20]
        file.create_virtual_dataset("made", layout, fillvalue=3)
    with h5py.File(tmp_path / "main.h5") as file, glassfs.open(tmp_path / "main.h5") as opened:
        assert np.array_equal(opened["made"].numpy(), file["made"][()])


def test_external_links_show_what_they_lead_to(tmp_path: Path) -> None:
    write_sources(tmp_path)
    with h5py.File(tmp_path / "main.h5", "w") as file:
        for name, target in {"array": "/a/plain", "group": "a", "all": "/", "texts": "text"}.items():
            file[name] = h5py.ExternalLink("one.h5", target)
        file["inside/packed"] = h5py.ExternalLink("./two.h5", "packed")
        file["soft"] = h5py.SoftLink("/array")
    with h5py.File(tmp_path / "main.h5") as file, glassfs.open(tmp_path / "main.h5") as opened:
        for path in ("array", "group/plain", "group/packed", "all/a/packed", "inside/packed"):
            assert np.array_equal(opened[path].numpy(), file[path][()]), path
        assert opened["texts.jsonl"].bytes() == b'"one"\n"two"\n'
        assert json.loads(opened["array.attributes.json"].bytes()) == {"unit": "m"}
        assert np.array_equal(opened["group/up.npy"].numpy(), file["array"][()])
        assert np.array_equal(opened["all/a/up.npy"].numpy(), file["array"][()])
        assert opened["all/a/away.npy"].numpy().tolist() == [0, 1, 2, 3, 4]
        assert opened["group"].attributes["omitted"] == "away: soft link: its target is not below an external link's"
        # What another file names is not followed.
        assert opened["all"].attributes["omitted"].startswith("back: external link: ")


def write_main(folder: Path, name: str, kind: str) -> Path:
    with h5py.File(folder / "main.h5", "w") as file:
        if kind == "external link":
            file["far"] = h5py.ExternalLink(name, "/b")
        else:
            layout = h5py.VirtualLayout((5,), "i8")
            layout[:] = h5py.VirtualSource(name, "b", (5,))
            file.create_virtual_dataset("far", layout)
    return folder / "main.h5"


def closed(folder: Path) -> None:
    (folder / "one.h5").chmod(0o600)


def linked(folder: Path) -> None:
    (folder / "one.h5").rename(folder / "real.h5")
    (folder / "one.h5").symlink_to("real.h5")


@pytest.mark.parametrize("kind", ["external link", "virtual dataset"])
@pytest.mark.parametrize(("name", "before", "reason"), [
    ("other.h5", None, "other.h5: "), ("../one.h5", None, "..%2Fone.h5: is not in the folder of this file"),
    ("sub/one.h5", None, "sub%2Fone.h5: is not in the folder"), ("..", None, "%2E%2E: is not in the folder"),
    ("/etc/passwd", None, "%2Fetc%2Fpasswd: is not in the folder"), ("folder", None, "folder: "),
    ("one.h5", closed, "one.h5: may not be read by every user who may read this file"), ("one.h5", linked, "one.h5: "),
    ("fifo", None, "fifo: "), ("x" * 300, None, "x: "),
])
def test_other_files_are_omitted_with_the_reason(
    tmp_path: Path, kind: str, name: str, before: Callable[[Path], None] | None, reason: str,
) -> None:
    write_sources(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    write_sources(tmp_path / "sub")
    path = write_main(tmp_path, name, kind)
    if before is not None:
        before(tmp_path)
    container = open_path(path)
    found = omitted_in(container.root)["far"]
    assert found.startswith(f"{kind}: {reason}" if len(name) < 300 else f"{kind}: x")
    assert "\n" not in found and len(container.sources) == 1


@pytest.mark.parametrize("kind", ["external link", "virtual dataset"])
def test_container_has_the_rights_and_the_version_of_all_files(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "container_valid", 0.0)
    write_sources(tmp_path)
    path = write_main(tmp_path, "one.h5", kind)
    path.chmod(0o640)
    container = open_path(path)
    assert [Path(source.name).name for source in container.sources] == ["main.h5", "one.h5"]
    assert Access.of([source.entry for source in container.sources]).permissions & 0o444 == 0o440
    with glassfs.open(tmp_path) as opened:
        before = opened["main.h5/far"].numpy()
        with h5py.File(tmp_path / "new.h5", "w") as file:
            file["pad"] = np.zeros(1000)
            file["b"] = np.arange(5) + 7
        os.replace(tmp_path / "new.h5", tmp_path / "one.h5")
        assert opened["main.h5/far"].numpy().tolist() == [7, 8, 9, 10, 11]
        assert before.tolist() == [0, 1, 2, 3, 4]
        (tmp_path / "one.h5").unlink()
        with pytest.raises(NoSuchEntry, match=r"one\.h5"):
            opened["main.h5/far"]


def test_files_of_another_owner_have_to_be_readable_for_all(tmp_path: Path) -> None:
    write_sources(tmp_path)
    container = open_path(write_main(tmp_path, "one.h5", "virtual dataset"))
    own, other = (source.entry for source in container.sources)
    assert other.is_readable_as(own)
    theirs = other._replace(uid=own.uid + 1)
    assert theirs._replace(permissions=0o644).is_readable_as(own._replace(permissions=0o644))
    assert not theirs._replace(permissions=0o640).is_readable_as(own._replace(permissions=0o644))
    assert not theirs._replace(permissions=0o644).is_readable_as(own._replace(permissions=0o600))


def test_circles_of_virtual_datasets_and_links_end(tmp_path: Path) -> None:
    for own, other in (("a", "b"), ("b", "a")):
        with h5py.File(tmp_path / f"{own}.h5", "w") as file:
            layout = h5py.VirtualLayout((3,), "f8")
            layout[:] = h5py.VirtualSource(f"{other}.h5", "made", (3,))
            file.create_virtual_dataset("made", layout)
            layout = h5py.VirtualLayout((3,), "f8")
            layout[:] = h5py.VirtualSource(".", "self", (3,))
            file.create_virtual_dataset("self", layout)
            file["link"] = h5py.ExternalLink(f"{other}.h5", "/link")
            file["root"] = h5py.ExternalLink(f"{other}.h5", "/")
            file["own"] = h5py.ExternalLink(f"{own}.h5", "/")
    omitted = omitted_in(open_path(tmp_path / "a.h5").root)
    assert omitted["made"] == "virtual dataset: made is no dataset that can be read, or a virtual one as well"
    assert omitted["self"] == "virtual dataset: self is no dataset that can be read, or a virtual one as well"
    assert omitted["own"] == "external link: it leads to the file itself"
    assert omitted["link"].startswith("external link: ")
    with glassfs.open(tmp_path / "a.h5") as opened:
        assert {line.partition(":")[0] for line in opened["root"].attributes["omitted"].split("; ")} >= {"link", "root"}


def test_parts_that_cannot_be_put_together_are_omitted(tmp_path: Path) -> None:
    write_sources(tmp_path)
    with h5py.File(tmp_path / "main.h5", "w") as file:
        def add(name: str, shape: tuple[int, ...], dtype: str, source: Any, **options: Any) -> None:
            layout = h5py.VirtualLayout(shape, dtype, **options)
            layout[...] = source
            file.create_virtual_dataset(name, layout)

        add("type", (5,), "i4", h5py.VirtualSource("one.h5", "b", (5,)))
        add("extent", (9,), "i8", h5py.VirtualSource("one.h5", "b", (9,))[...])
        add("box", (3,), "i8", h5py.VirtualSource("one.h5", "b", (9,))[6:9])
        add("missing", (5,), "i8", h5py.VirtualSource("one.h5", "nowhere", (5,)))
        add("group", (5,), "i8", h5py.VirtualSource("one.h5", "a", (5,)))
        add("steps", (5, 8, 6), "f8", h5py.VirtualSource("one.h5", "a/plain", (9, 8, 6))[::2])
        add("columns", (9, 2, 6), "f8", h5py.VirtualSource("one.h5", "a/plain", (9, 8, 6))[:, 2:4])
        overlapping = h5py.VirtualLayout((9,), "i8")
        overlapping[:5] = overlapping[4:] = h5py.VirtualSource("one.h5", "b", (5,))
        file.create_virtual_dataset("overlap", overlapping)
        add("texts", (2,), "S9", h5py.VirtualSource("one.h5", "text", (2,)))
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        endless = h5py.h5s.create_simple((1,), (h5py.h5s.UNLIMITED,))
        endless.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (1,), (1,))
        properties.set_virtual(endless, b"one.h5", b"b", endless)
        h5py.h5d.create(file.id, b"endless", h5py.h5t.STD_I64LE, endless, properties)
    omitted = omitted_in(open_path(tmp_path / "main.h5").root)
    assert omitted.keys() == {
        "type", "extent", "box", "missing", "group", "steps", "columns", "overlap", "texts", "endless",
    }
    assert all(reason.startswith("virtual dataset: ") for reason in omitted.values())
    assert omitted["type"].endswith("b has values of another type")
    assert omitted["box"].endswith("one of its parts exceeds a dataset")
    assert omitted["steps"] == omitted["columns"] == "virtual dataset: one of its parts is not contiguous"
    assert omitted["overlap"].endswith("its parts overlap")
    assert omitted["endless"].endswith("grows with its sources")


def test_columns_of_tables_are_never_virtual(tmp_path: Path) -> None:
    """A worker would read the paths of the source in its own file."""
    with h5py.File(tmp_path / "main.h5", "w") as file:
        file["secret"] = np.arange(3.0)
        group = file.create_group("obs")
        group.attrs["encoding-type"], group.attrs["_index"] = "dataframe", "index"
        group.attrs["column-order"] = ["a", "b"]
        group["index"], group["a"] = np.arange(3), np.arange(3.0)
        layout = h5py.VirtualLayout((3,), "f8")
        layout[:] = h5py.VirtualSource("other.h5", "secret", (3,))
        group.create_virtual_dataset("b", layout)
        text = h5py.VirtualLayout((3,), h5py.string_dtype())
        text[:] = h5py.VirtualSource("other.h5", "secret", (3,))
        group.create_virtual_dataset("c", text)
    with glassfs.open(tmp_path / "main.h5", views="parquet") as opened:
        assert opened["obs/a"].numpy().tolist() == [0, 1, 2]
        if "obs.parquet" in opened:
            with pytest.raises(Damaged, match="other datasets or files"):
                opened["obs.parquet"].table()["b"]


def test_only_files_named_near_the_root_are_opened(tmp_path: Path) -> None:
    write_sources(tmp_path)
    path = write_main(tmp_path, "one.h5", "external link")
    with h5py.File(path, "a") as file:
        many = file.create_group("many")
        for number in range(250):
            many.create_group(f"{number}")
        many["0/deep"] = h5py.ExternalLink("two.h5", "packed")
    container = open_path(path)
    assert len(container.sources) == 2
    with glassfs.open(path) as opened:
        reason = "deep: external link: two.h5: is named too far from the root, or with too many others"
        assert opened["many/0"].attributes["omitted"] == reason


def test_container_that_names_thousands_of_files_costs_little(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "main.h5", "w") as file:
        for number in range(3_000):
            file[f"{number}"] = h5py.ExternalLink(f"other{number}.h5", "/")
        file["own"] = 1.0
    with glassfs.open(tmp_path / "main.h5") as opened:
        assert opened["own"].numpy() == 1.0
    omitted = omitted_in(open_path(tmp_path / "main.h5").root)
    assert len(omitted) == 3_000


def test_a_file_that_is_no_hdf5_costs_what_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "one.h5").write_bytes(b"no container" * 99)
    for kind in ("external link", "virtual dataset"):
        omitted = omitted_in(open_path(write_main(tmp_path, "one.h5", kind)).root)
        assert omitted["far"].startswith(f"{kind}: ")


def test_soft_link_through_an_external_link_does_not_lead_into_the_file_itself(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "main.h5", "w") as file:
        file["far"] = h5py.ExternalLink("other.h5", "/secret")
        file["secret"] = 1.0
        file["soft"] = h5py.SoftLink("/far")
    container = open_path(tmp_path / "main.h5")
    assert {key for key, _ in container.root.members()} >= {(b"soft",), (b"secret",)}  # type: ignore[union-attr]

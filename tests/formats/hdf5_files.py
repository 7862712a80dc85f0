"""HDF5 files made by h5py for tests."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.optional import package

h5py: Any = package("h5py", "test")

FILTERS: dict[str, dict[str, Any]] = {
    "none": {}, "gzip": {"compression": "gzip"}, "lzf": {"compression": "lzf"}, "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True}, "gzip_all": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf_all": {"compression": "lzf", "shuffle": True, "fletcher32": True},
}
TYPES = (
    "i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8", "<f2", ">f2",
    "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", "?",
)


def nested(depth: int) -> Any:
    """Return a compound in others, which are too many to be shown from 9 on."""
    made = h5py.h5t.STD_I32LE
    for _ in range(depth):
        outer = h5py.h5t.create(h5py.h5t.COMPOUND, made.get_size())
        outer.insert(b"n", 0, made)
        made = outer
    return made


def unreadable(file: Any, *names: bytes) -> None:
    """Write datasets that need a filter which no plugin has."""
    properties, space = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5s.create_simple((8,))
    properties.set_chunk((4,))
    properties.set_filter(32999, h5py.h5z.FLAG_OPTIONAL, (1,))
    for name in names:
        made = h5py.h5d.create(file.id, name, h5py.h5t.STD_I32LE, space, properties)
        made.write_direct_chunk((0,), bytes(16))


def flip(path: Path, *places: int) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 1
    path.write_bytes(data)


def replace(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def values(shape: tuple[int, ...], dtype: str = "<i4") -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    return (np.arange(count) * 7919 % 251 % (2 if dtype == "?" else 251)).astype("u1").astype(dtype).reshape(shape)


def write_everything(path: Path, libver: str = "earliest", user_block: int = 0) -> Path:
    """Write every type and every layout that is shown."""
    with h5py.File(path, "w", libver=libver, userblock_size=user_block) as file:
        for dtype in TYPES:
            name = dtype.replace("<", "little_").replace(">", "big_").replace("?", "bool")
            file[f"types/{name}"] = values((5, 3), dtype)
        for name, options in {**FILTERS, "scaleoffset": {"scaleoffset": 0}}.items():
            file.create_dataset(f"filters/{name}", data=values((50, 33, 5)), chunks=(7, 10, 5), **options)
        file.create_dataset("big", data=values((40, 9), ">f8"), chunks=(7, 4), compression="gzip", shuffle=True)
        file.create_dataset("sparse", (100, 100), "i4", chunks=(9, 9), fillvalue=7)[20:30, 50:60] = 1
        file.create_dataset("unallocated", (30, 2), "<f4", fillvalue=2.5)
        file["scalar"] = 5.5
        file["empty"] = np.zeros((0, 3), "f4")
        file["nothing"] = h5py.Empty("f4")
        enumeration = h5py.enum_dtype({"RED": 1, "GREEN": 2}, "u2")
        file.create_dataset("enum", data=np.array([1, 2, 1], "u2"), dtype=enumeration)
        file.create_dataset("vectors", (3,), np.dtype(("<f4", (2,))))[...] = values((3, 2), "<f4")
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((4,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I32LE, space, compact)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values((4,)))
        file["text"] = "one"
        file["texts"] = ["a", "bé", ""]
        file["fixed"] = np.array([[b"a", b"bc"], [b"d", b""]])
        rows = file.create_dataset("rows", (4,), h5py.vlen_dtype("<i4"))
        rows[0], rows[2] = [1, 2], [3]
        structure = np.zeros(5, np.dtype([("x", ">i4"), ("é", "<f8", (2,)), ("ok", "?")], align=True))
        structure["x"], structure["é"], structure["ok"] = range(5), values((5, 2), "<f8"), [True, False] * 2 + [True]
        file["structure"] = structure
        file.create_dataset("structures", data=structure, chunks=(2,), compression="gzip")
        file["opaque"] = np.array([b"abc", b"def"], "V3")
        file["video"] = values((6, 5, 4, 3), "u1")
        group = file.create_group("group/inner")
        group["x"] = np.arange(4)
        group["x"].attrs["unit"] = "m"
        group.attrs["numbers"] = [1, 2, 3]
        file.attrs["root"] = "yes"
    return path


def write_links(path: Path) -> Path:
    """Write links of all kinds, a cycle, and what refers to other files."""
    with h5py.File(path, "w") as file:
        file["a/b/values"] = np.arange(3.0)
        file["hard"] = file["a/b/values"]
        file["a/b/up"] = file["a"]
        file["a/b/top"] = file
        file["a/soft"] = h5py.SoftLink("/a/b/values")
        file["relative"] = h5py.SoftLink("a/b")
        file["twice"] = h5py.SoftLink("/a/soft")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["a/circle"] = h5py.SoftLink("/a/circle")
        file["outside"] = h5py.ExternalLink("other.h5", "/secret")
        layout = h5py.VirtualLayout((3,), "f8")
        layout[...] = h5py.VirtualSource("other.h5", "secret", (3,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", (3,), "f8", external=[("other.bin", 0, 24)])
        file["kind"] = np.dtype("f4")
    return path


def write_robomimic(path: Path, episodes: int = 3, steps: int = 6, options: dict[str, Any] | None = None) -> Path:
    """Write demonstrations as robomimic and LIBERO do; their numbers have gaps, and 10 comes after 9."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({
            "env_name": "Lift", "env_kwargs": {"robots": ["Panda"], "control_freq": 20},
        })
        data.attrs["problem_info"] = json.dumps({"language_instruction": "lift the cube"})
        for position in range(episodes):
            count = steps + position
            demo = data.create_group(f"demo_{8 + position * 2}")
            demo.attrs["num_samples"] = count
            demo["actions"] = values((count, 7), "<f8") + position
            demo["rewards"] = np.linspace(0, 1, count)
            demo["dones"] = np.arange(count) == count - 1
            demo["states"] = values((count, 5), "<f8")
            demo["obs/eef_pos"] = values((count, 3), "<f8")
            demo.create_dataset("obs/agentview_image", data=values((count, 12, 10, 3), "u1"), **(options or {}))
    return path


def write_aloha(
    path: Path, steps: int = 5, is_compressed: bool = False, has_strings: bool = False, missed: Sequence[int] = (),
    size: tuple[int, int] = (12, 16),
) -> Path:
    """Write an episode as ALOHA does, with ``is_compressed`` as most of its recordings are: JPEG in rows of bytes.

    With ``has_strings`` the rows are strings of a fixed length, as RoboTwin writes them. ``missed`` are frames that the
    camera missed, whose rows are empty. ``size`` is height and width.
    """
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = True
        file["action"] = values((steps, 14), "<f4")
        file["observations/qpos"] = values((steps, 14), "<f4")
        file["observations/qvel"] = values((steps, 14), "<f4")
        frames = values((steps, *size, 3), "u1")
        if not is_compressed:
            file.create_dataset("observations/images/top", data=frames, chunks=(1, *size, 3))
            return path
        rows = [b"" if number in missed else jpeg(frame) for number, frame in enumerate(frames)]
        if has_strings:
            file["observations/images/top"] = np.array(rows)
            return path
        padded = np.zeros((steps, max(map(len, rows)) + 20), "u1")
        for number, row in enumerate(rows):
            padded[number, : len(row)] = np.frombuffer(row, "u1")
        file["observations/images/top"] = padded
    return path


def jpeg(frame: np.ndarray[Any, Any]) -> bytes:
    made = io.BytesIO()
    Image.fromarray(frame).save(made, "JPEG")
    return made.getvalue()


def matlab(file: Any, name: str, data: Any, kind: str, **attributes: Any) -> Any:
    """Write a variable as MATLAB does: axes in the other order, and what it is in attributes."""
    made = file.create_dataset(name, data=np.asarray(data).T)
    made.attrs["MATLAB_class"] = np.bytes_(kind)
    for key, value in attributes.items():
        made.attrs[f"MATLAB_{key}"] = value
    return made


def characters(rows: list[str]) -> Any:
    return np.array([np.frombuffer(row.encode("utf-16-le", "surrogatepass"), "<u2") for row in rows])


def cells(file: Any, name: str, paths: Any) -> Any:
    data = np.asarray(paths, object)
    made = file.create_dataset(name, data.T.shape, h5py.ref_dtype)
    made.attrs["MATLAB_class"] = np.bytes_("cell")
    for place in np.ndindex(made.shape):
        made[place] = file[data.T[place]].ref
    return made


def write_matlab(path: Path) -> Path:
    """Write a file as MATLAB's ``save -v7.3`` does."""
    with h5py.File(path, "w", userblock_size=512) as file:
        matlab(file, "double", values((2, 3), "<f8"), "double")
        matlab(file, "name", characters(["héllo 😀"]), "char", int_decode=2)
        matlab(file, "rows", characters(["one", "two", "  3"]), "char", int_decode=2)
        matlab(file, "half", characters(["\ud83d"]), "char", int_decode=2)
        matlab(file, "logical", np.array([[1, 0, 1]], "u1"), "logical", int_decode=1)
        packed = file.create_dataset("flags", data=np.array([1, 0, 1], "u1"), chunks=(2,), compression="gzip")
        packed.attrs["MATLAB_class"] = np.bytes_("logical")
        parts = np.zeros((2, 2), [("real", "<f8"), ("imag", "<f8")])
        parts["real"], parts["imag"] = [[1, 2], [3, 4]], [[0, -1], [0.5, 0]]
        matlab(file, "complex", parts, "double")
        matlab(file, "single", parts.astype([("real", "<f4"), ("imag", "<f4")]), "single")
        for kind in ("double", "char", "cell", "struct", "logical", "int8", "uint64"):
            matlab(file, f"empty_{kind}", np.array([0, 3], "u8"), kind, empty=np.uint8(1))
        for number, data in enumerate((values((2, 2), "<f8"), values((1, 4), "<i2"))):
            matlab(file, f"#refs#/{number}", data, "double" if number == 0 else "int16")
        matlab(file, "#refs#/text", characters(["inner"]), "char", int_decode=2)
        matlab(file, "#refs#/none", np.array([0, 0], "u8"), "double", empty=np.uint8(1))
        cells(file, "#refs#/cell", [["#refs#/text"]])
        file.create_group("#refs#/struct")["field"] = 1.0
        cells(file, "row", [["#refs#/0", "#refs#/text", "#refs#/cell", "#refs#/struct", "#refs#/none"]])
        cells(file, "matrix", [["#refs#/0", "#refs#/1", "#refs#/text"], ["#refs#/text", "#refs#/0", "#refs#/1"]])
        cells(file, "within/itself", [["#refs#/0"], ["within/itself"] if "within/itself" in file else ["#refs#/1"]])
        file["within/itself"][0, 1] = file["within/itself"].ref
    return path


def write_referring(path: Path) -> Path:
    """Write references, an enumeration and virtual datasets; and ``one.h5`` beside it."""
    with h5py.File(path.parent / "one.h5", "w") as file:
        file["plain"] = values((6, 5), "<f8")
        file.create_dataset("packed", data=values((6, 5), "<f8"), chunks=(2, 5), compression="gzip")
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(8):
            file[f"own{number}"] = values((6, 5), "<f8") + number
        layout = h5py.VirtualLayout((16, 5), "f8")
        layout[:6] = h5py.VirtualSource("one.h5", "plain", (6, 5))
        layout[7:10] = h5py.VirtualSource("one.h5", "packed", (6, 5))[2:5]
        layout[10:15] = h5py.VirtualSource(".", "own1", (6, 5))[1:6]
        file.create_virtual_dataset("virtual", layout, fillvalue=2.5)
        file["far"] = h5py.ExternalLink("one.h5", "/packed")
        found = file.create_dataset("references", (40,), h5py.ref_dtype, chunks=(8,))
        regions = file.create_dataset("regions", (9,), h5py.regionref_dtype)
        for number in range(9):
            found[3 * number] = file[f"own{number % 6}"].ref
            regions[number] = file["own2"].regionref[number // 3 :: 2, number % 5]
        kind = h5py.enum_dtype({"partial": 1, "complete": 2}, "u2")
        file.create_dataset("enum", data=np.array([1, 2, 1], "u2"), dtype=kind)
        file.attrs["reference"], file.attrs["region"] = file["own3"].ref, regions[4]
    return path

"""Values of HDF5 files, against those that libhdf5 reads: chunks, types, and what is not shown."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassfs
from glassfs.errors import Damaged
from glassfs.sandbox.confinement import MOST_MEMORY
from tests.formats.hdf5_files import FILTERS, h5py, values

DONT_FILTER_PARTIAL_CHUNKS = 2


def create_with_raw_edges(file: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Create a dataset whose partial chunks at the edges are stored without filters."""
    made = file.create_dataset("template", *arguments, **options)
    properties, kind, space = made.id.get_create_plist(), made.id.get_type(), made.id.get_space()
    del file["template"]
    library = ctypes.CDLL(h5py.h5d.__file__)
    library.H5Pset_chunk_opts.argtypes = ctypes.c_int64, ctypes.c_uint
    assert library.H5Pset_chunk_opts(properties.id, DONT_FILTER_PARTIAL_CHUNKS) == 0
    return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), kind, space, properties))


@pytest.mark.parametrize("limits", [(10, 10), (None, 10), (10, None), (None, None)])
def test_edge_chunks_stored_without_filters_are_read(tmp_path: Path, limits: tuple[int | None, ...]) -> None:
    whole = values((10, 10))
    with h5py.File(tmp_path / "made.h5", "w", libver="latest") as file:
        for name, options in FILTERS.items():
            for chunks in ((4, 4), (5, 3), (5, 5), (16, 16)):
                fits = [length if limit else 7 for length, limit in zip(whole.shape, limits, strict=True)]
                chunks = tuple(min(step, limit or step) for step, limit in zip(chunks, limits, strict=True))
                made = create_with_raw_edges(
                    file, f"{name} {chunks}", fits, "<i4", chunks=chunks, maxshape=limits, **options,
                )
                made[...] = whole[: fits[0], : fits[1]]
                if None in limits:
                    made.resize(whole.shape)
                    made[...] = whole
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert len(opened) == 4 * len(FILTERS)
        for name in opened:
            assert np.array_equal(opened[name].numpy(), whole), name


LIBRARY = ctypes.CDLL(h5py.h5d.__file__)
LIBRARY.H5Tget_native_type.restype = ctypes.c_int64
LIBRARY.H5Tget_native_type.argtypes = ctypes.c_int64, ctypes.c_int
LIBRARY.H5Dwrite.argtypes = *(ctypes.c_int64,) * 5, ctypes.c_void_p
LIBRARY.H5Awrite.argtypes = ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p


def array_of(base: Any) -> Any:
    return h5py.h5t.array_create(base, (2,))


def compound_of(base: Any) -> Any:
    made = h5py.h5t.create(h5py.h5t.COMPOUND, 4 + base.get_size() + 3)  # with gaps
    made.insert(b"n", 0, h5py.h5t.STD_I32BE)
    made.insert(b"x", 5, base)
    return made


def fixed(size: int, padding: int) -> Any:
    made = h5py.h5t.C_S1.copy()
    made.set_size(size)
    made.set_strpad(padding)
    return made


def opaque() -> Any:
    made = h5py.h5t.create(h5py.h5t.OPAQUE, 3)
    made.set_tag(b"three")
    return made


def truth(base: Any) -> Any:
    made = h5py.h5t.enum_create(base)
    for value, name in enumerate((b"FALSE", b"TRUE")):
        made.enum_insert(name, value)
    return made


def variable() -> Any:
    return h5py.h5t.py_create(h5py.string_dtype(), logical=True)


PLAIN: dict[str, tuple[Any, list[Any]]] = {
    "big": (h5py.h5t.STD_I16BE, [1, 300]), "float": (h5py.h5t.IEEE_F64BE, [0.5, -2.0]),
    "bits": (h5py.h5t.STD_B16BE, [1, 0x1234]),
    "complex": (h5py.h5t.py_create(np.dtype(">c8")), [{"real": 1.0, "imag": -0.5}, {"real": 0.0, "imag": 2.0}]),
    "truth": (truth(h5py.h5t.STD_I8LE), [True, False]), "wide truth": (truth(h5py.h5t.STD_I32BE), [True, False]),
    "string": (fixed(4, h5py.h5t.STR_NULLPAD), ["ab", "cd\u00e9"]),
    "spaces": (fixed(4, h5py.h5t.STR_SPACEPAD), ["ab", ""]), "ends": (fixed(4, h5py.h5t.STR_NULLTERM), ["abc", "d"]),
    "variable": (variable(), ["one", ""]), "opaque": (opaque(), ["616263", "000001"]),
    "reference": (h5py.h5t.STD_REF_OBJ, [None, None]),
    "region": (h5py.h5t.STD_REF_DSETREG, [None, None]),
}
OUTER = {"array": array_of, "rows": h5py.h5t.vlen_create, "compound": compound_of}
"""What makes a type of another one."""


def value_of(outer: str, values: list[Any]) -> list[Any]:
    """Return two values of a type that is made of one with these two values."""
    if outer == "array":
        return [values, values[::-1]]
    if outer == "rows":
        return [values[:1], [*values, values[0]]]
    return [{"n": 7, "x": values[0]}, {"n": -70_000, "x": values[1]}]


def memory(kind: Any, value: Any, kept: list[Any]) -> bytes:
    """Return a value in a type of this machine's memory; what it refers to is in ``kept``."""
    t, code = h5py.h5t, kind.get_class()
    if code == t.STRING:
        text = value.encode()
        if not kind.is_variable_str():
            return text.ljust(kind.get_size(), b" " if kind.get_strpad() == t.STR_SPACEPAD else b"\0")
        kept.append(ctypes.create_string_buffer(text))
        return ctypes.addressof(kept[-1]).to_bytes(8, "little")
    if code == t.OPAQUE:
        return bytes.fromhex(value)
    if code == t.REFERENCE:
        return bytes(kind.get_size())
    if code in (t.ARRAY, t.VLEN):
        raw = b"".join(memory(kind.get_super(), one, kept) for one in value)
        if code == t.ARRAY:
            return raw
        kept.append(ctypes.create_string_buffer(raw, len(raw)))
        return len(value).to_bytes(8, "little") + ctypes.addressof(kept[-1]).to_bytes(8, "little")
    if code == t.COMPOUND:
        made = bytearray(kind.get_size())
        for number, one in enumerate(value.values()):
            at, raw = kind.get_member_offset(number), memory(kind.get_member_type(number), one, kept)
            made[at : at + len(raw)] = raw
        return bytes(made)
    return np.array(value, (kind.get_super() if code == t.ENUM else kind).dtype).tobytes()


def all_types(depth: int = 2) -> dict[str, tuple[Any, list[Any]]]:
    """Return types by name, and two values of each: plain ones, and those made of them up to a depth."""
    found = level = dict(PLAIN)
    for _ in range(depth):
        level = {
            f"{outer} of {name}": (make(kind), value_of(outer, two))
            for outer, make in OUTER.items() for name, (kind, two) in level.items()
        }
        found |= level
    return found


def write_types(path: Path, types: dict[str, tuple[Any, list[Any]]], layout: str = "contiguous") -> None:
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((2,))
        holder = file.create_group("attributes")
        for name, (kind, two) in types.items():
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_layout(getattr(h5py.h5d, layout.upper()))
            if layout == "chunked":
                properties.set_chunk((2,))
            native = type(kind)(LIBRARY.H5Tget_native_type(kind.id, 0))
            kept: list[Any] = []
            raw = ctypes.create_string_buffer(b"".join(memory(native, one, kept) for one in two))
            made = h5py.h5d.create(file.id, name.encode(), kind, space, properties)
            assert LIBRARY.H5Dwrite(made.id, native.id, space.id, space.id, 0, raw) == 0
            attribute = h5py.h5a.create(holder.id, name.encode(), kind, space)
            assert LIBRARY.H5Awrite(attribute.id, native.id, raw) == 0


def as_json(entry: Any, name: str) -> Any:
    """Return a shown dataset of two elements as values of JSON, opaque ones as bytes."""
    if f"{name}.bin" in entry:
        raw = entry[f"{name}.bin"].bytes()
        half = len(raw) // 2
        return [raw[:half], raw[half:]]
    if f"{name}.jsonl" in entry:
        return [json.loads(line) for line in entry[f"{name}.jsonl"].bytes().splitlines()]
    if f"{name}.json" in entry:
        return json.loads(entry[f"{name}.json"].bytes())
    if f"{name}/values.npy" in entry:
        values, (first, second, end) = entry[f"{name}/values"].numpy(), entry[f"{name}/offsets"].numpy()
        return [plain(values[first:second]), plain(values[second:end])]
    return plain(entry[f"{name}.npy"].numpy())


def plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.void, np.bytes_)) and value.dtype.kind in "SV":
        if value.shape:
            return list(map(plain, value))
        if value.dtype.names:
            return {field: plain(value[field]) for field in value.dtype.names}
        raw = value.tobytes()
        return raw.hex() if value.dtype.kind == "V" else raw.decode().rstrip(" \0")
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, complex):
        return {"real": value.real, "imag": value.imag}
    return plain(value.tolist()) if isinstance(value, (np.ndarray, np.generic)) else value


def bytes_of(value: Any) -> bytes:
    return b"".join(map(bytes_of, value)) if isinstance(value, list) else bytes.fromhex(value)


@pytest.mark.parametrize("layout", ["contiguous", "chunked", "compact"])
def test_every_type_is_shown_right_or_not_at_all(tmp_path: Path, layout: str) -> None:
    from glassfs.sandbox.hdf5_values import described_type

    types = all_types()
    write_types(tmp_path / "made.h5", types, layout)
    shown = set()
    with glassfs.open(tmp_path / "made.h5") as opened:
        entries = {entry.removesuffix("/").removesuffix(Path(entry).suffix) for entry in opened}
        for name in entries & types.keys():
            shown.add(name)
            two, found = types[name][1], as_json(opened, name)
            if isinstance(found[0], bytes):
                is_null = name.endswith(("reference", "region"))
                two = [bytes(len(found[0])) if is_null else bytes_of(one) for one in two]
            assert found == two, name
    assert shown == {name for name, (kind, _) in types.items() if described_type(kind, 0)["class"] != "unknown"}
    assert shown == types.keys()


def test_attributes_of_every_type_have_their_values(tmp_path: Path) -> None:
    types = all_types()
    write_types(tmp_path / "made.h5", types)
    with glassfs.open(tmp_path / "made.h5") as opened:
        found = json.loads(opened["attributes.attributes.json"].bytes())
    for name, (_, two) in types.items():
        assert found[name] == two, name


@pytest.mark.parametrize("name", ["big", "array of big", "array of array of float", "opaque", "compound of big"])
def test_elements_that_are_not_stored_are_fill_value(tmp_path: Path, name: str) -> None:
    kind, two = all_types()[name]
    LIBRARY.H5Pset_fill_value.argtypes = ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    native = type(kind)(LIBRARY.H5Tget_native_type(kind.id, 0))
    raw = ctypes.create_string_buffer(memory(native, two[1], []))
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for layout in ("chunked", "contiguous"):
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if layout == "chunked":
                properties.set_chunk((2,))
            assert LIBRARY.H5Pset_fill_value(properties.id, native.id, raw) == 0
            h5py.h5d.create(file.id, layout.encode(), kind, h5py.h5s.create_simple((2,)), properties)
    with glassfs.open(tmp_path / "made.h5") as opened:
        for layout in ("chunked", "contiguous"):
            assert as_json(opened, layout) == [bytes_of(two[1]) if name == "opaque" else two[1]] * 2


@pytest.mark.slow
def test_rows_of_any_length_are_read(tmp_path: Path) -> None:
    whole = [np.full(30_000 if number % 3 else 0, number, "<u4") for number in range(700)]
    assert sum(row.nbytes for row in whole) > 32 << 20  # several blocks
    with h5py.File(tmp_path / "made.h5", "w") as file:
        made = file.create_dataset("rows", (len(whole),), h5py.vlen_dtype(">u4"))
        for number, row in enumerate(whole):
            made[number] = row.astype(">u4")
        made = file.create_dataset("row", (1,), h5py.vlen_dtype("u1"))
        made[0] = np.zeros(MOST_MEMORY // 2 + 1, "u1")
    with glassfs.open(tmp_path / "made.h5") as opened:
        with pytest.raises(Damaged, match="memory"):
            opened["row/values"].numpy()
        assert np.array_equal(opened["rows/values"].numpy(), np.concatenate(whole))


def test_floats_of_other_ranges_are_shown_as_floats_that_have_these(tmp_path: Path) -> None:
    brain = h5py.h5t.IEEE_F32LE.copy()  # bfloat16
    brain.set_fields(15, 7, 8, 0, 7)
    brain.set_size(2)
    brain.set_ebias(127)
    wide = h5py.h5t.IEEE_F64LE.copy()
    wide.set_ebias(1000)
    values, space = np.array([2.0 ** 100, -1.5]), h5py.h5s.create_simple((2,))
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for name, kind in ((b"brain", brain), (b"wide", wide)):
            made = h5py.h5d.create(file.id, name, kind, space)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
        stored = np.zeros(2, "V8")
        made.read(h5py.h5s.ALL, h5py.h5s.ALL, stored, wide)
        raw = stored.tobytes()
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert opened["brain"].numpy().dtype == "<f4"
        assert opened["brain"].numpy().tolist() == values.tolist()
        assert opened["wide.bin"].bytes() == raw  # only long doubles have its range
        assert opened["wide.bin"].attributes["dtype"] == "float of 8 bytes"


def test_fields_in_another_order_than_their_bytes_are_shown(tmp_path: Path) -> None:
    stored = np.dtype({"names": ["a", "b", "c"], "formats": ["<i4", ">f8", "|u1"], "offsets": [9, 1, 0]})
    structures = np.array([(1, 2.5, 3), (-4, 5.5, 6)], stored)
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for name, options in {"plain": {}, "chunked": {"chunks": (1,), "compression": "gzip"}}.items():
            file.create_dataset(name, data=structures, **options)
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert all(opened[name].numpy().tolist() == structures.tolist() for name in ("plain", "chunked"))


def test_strings_padded_with_spaces_are_empty_where_nothing_was_written(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        kind, space = fixed(3, h5py.h5t.STR_SPACEPAD), h5py.h5s.create_simple((2,))
        h5py.h5d.create(file.id, b"made", kind, space)
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert as_json(opened, "made") == ["", ""]


@pytest.mark.slow
def test_text_of_any_characters_takes_no_more_than_its_bytes(tmp_path: Path) -> None:
    """As JSON such text would take two to six times as much."""
    texts = [character * 2_700_000 for character in ("\u4e2d", "\x01", "a")]
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["texts"] = texts
        file["bytes"] = np.array(b"\xff" * 2_000_000, "S2000000")
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert as_json(opened, "texts") == texts
        assert opened["bytes.txt"].text() == "\\xff" * 2_000_000


@pytest.mark.slow
def test_rows_of_more_bytes_than_a_worker_may_have_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        made = file.create_dataset("rows", (250,), h5py.vlen_dtype("u1"))
        for number in range(250):
            made[number] = np.full(1_000_000, number, "u1")
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert opened["rows/offsets"].numpy()[-1] == 250_000_000
        assert opened["rows/values"][::1_000_000].tolist() == list(range(250))

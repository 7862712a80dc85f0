"""safetensors files, against the safetensors package: what it writes, what it refuses, and hostile headers."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutants import Seed, damaged
from writers.safetensors import described, packed, write_safetensors

import glassfs
from glassfs.content import Array, Container, Undecoded
from glassfs.errors import Refused
from glassfs.formats.safetensors import LONGEST_HEADER
from tests.conftest import DATA, Scale
from tests.formats.exercise import peak_memory
from tests.helpers import array_of, contents_of, only, open_bytes, open_path, values_of
from tests.optional import package

SAMPLES = DATA / "safetensors"
ONE = described("U8", [2], 0, 2)
FIELDS = json.dumps(ONE)[1:-1].encode()
MIB = 1 << 20


def library_opens(path: Path) -> bool:
    module = package("safetensors", "test")
    try:
        with module.safe_open(path, framework="numpy"):
            return True
    except (module.SafetensorError, OSError):
        return False


def tensors_of(container: Container) -> dict[bytes, Any]:
    found = contents_of(container.root)
    return {name.removeprefix(b"tensors/"): content for name, (content,) in found.items() if name != b"meta/file"}


@pytest.mark.parametrize(("description", "data"), [
    (described("F4", [4], 0, 2), b"ab"), (described("F6_E2M3", [2, 2], 0, 3), b"abc"),
    (described("Q7", [9], 0, 2), b"ab"), (described("U8", [1] * 33, 0, 1), b"a"),
    (described("F32", [0, 1 << 62, 4], 0, 0), b""),
])
def test_tensors_that_are_no_arrays_are_their_bytes(description: dict[str, Any], data: bytes) -> None:
    content = only(open_bytes(packed({"a": description}, data)), "tensors/a")
    assert isinstance(content, Undecoded) and content.data.whole() == data
    assert content.attributes()["dtype"] == description["dtype"]
    assert json.loads(content.attributes()["shape"]) == description["shape"][:32]


def test_values_are_ranges_of_the_file_and_map_it(tmp_path: Path) -> None:
    values = {"odd": np.arange(3, dtype="u1"), "big": np.arange(1 << 16, dtype="<f4"), "b": np.ones(1 << 16, "?")}
    write_safetensors(tmp_path / "x.safetensors", {"first": np.arange(8.0), "big": values["big"]})
    with glassfs.open(tmp_path / "x.safetensors") as model:
        array = model["tensors/big"].numpy()
        assert array.base is not None and not array.flags.owndata and not array.flags.writeable
        assert np.array_equal(array, values["big"])
        offset = int(model["tensors/big"].attributes["offset"])
    stored = (tmp_path / "x.safetensors").read_bytes()
    assert stored[offset : offset + array.nbytes] == values["big"].tobytes()
    write_safetensors(tmp_path / "y.safetensors", values)  # as old files: not aligned
    with glassfs.open(tmp_path / "y.safetensors") as model:
        assert all(np.array_equal(model[f"tensors/{name}"].numpy(), array) for name, array in values.items())


def test_booleans_are_zero_or_one() -> None:
    container = open_bytes(packed({"a": described("BOOL", [3], 0, 3)}, b"\0\1\7"))
    assert only(container, "tensors/a").data.whole() == b"\0\1\1"


# What is refused

CASES: dict[str, tuple[bytes, bytes, str]] = {
    "plain": (b'{"a":{%s}}' % FIELDS, b"ab", ""),
    "nothing": (b"{}", b"", ""),
    "white space": (b'{\n "a" :\t{%s} }\r\n  ' % FIELDS, b"ab", ""),
    "unknown fields": (b'{"a":{%s,"x":{"y":[1,-2.5e3,"z"]}}}' % FIELDS, b"ab", ""),
    "long description": (b'{"a":{%s,"x":"%s"}}' % (FIELDS, b"x" * (1 << 17)), b"ab", ""),
    "metadata at the end": (b'{"a":{%s},"__metadata__":{"x":"y"}}' % FIELDS, b"ab", ""),
    "metadata null": (b'{"__metadata__":null,"a":{%s}}' % FIELDS, b"ab", ""),
    "metadata by another spelling": (b'{"\\u005f_metadata__":{"x":"y"},"a":{%s}}' % FIELDS, b"ab", ""),
    "a pair of surrogates": (b'{"\\ud83d\\ude00":{%s}}' % FIELDS, b"ab", ""),
    "long name": (b'{"%s":{%s}}' % (b"x" * (1 << 17), FIELDS), b"ab", ""),
    "empty name": (b'{"":{%s}}' % FIELDS, b"ab", ""),
    "empty tensors at borders": (
        packed({"b": described("F32", [0], 2, 2), "a": ONE, "c": described("I8", [0, 7], 0, 0)})[8:], b"ab", ""),
    "vast empty shape": (packed({"a": described("U8", [0, 1 << 62, 1 << 62], 0, 0)})[8:], b"", ""),
    "largest number": (packed({"a": described("U8", [0, (1 << 64) - 1], 0, 0)})[8:], b"", ""),
    "out of order": (
        packed({"b": described("U8", [1], 2, 3), "a": ONE, "c": described("U8", [1], 3, 4)})[8:], b"abcd", ""),
    "nul at the end": (b'{"a":{%s}}\0' % FIELDS, b"ab", "Extra data"),
    "field twice": (b'{"a":{%s,"dtype":"U8"}}' % FIELDS, b"ab", "key twice"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{},"a":{%s}}' % FIELDS, b"ab", "key twice"),
    "metadata of numbers": (b'{"__metadata__":{"a":1},"a":{%s}}' % FIELDS, b"ab", "__metadata__/a: is no text"),
    "metadata a list": (b'{"__metadata__":[],"a":{%s}}' % FIELDS, b"ab", "no object of texts"),
    "negative zero": (b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', b"", "no description"),
    "true": (b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}', b"a", "no description"),
    "hole at the end": (packed({"a": described("U8", [1], 0, 1)})[8:], b"ab", "bytes 1 to 2 .* no tensor"),
    "only a hole": (b"{}", b"ab", "bytes 0 to 2 .* no tensor"),
    "too short": (packed({"a": described("U8", [3], 0, 3)})[8:], b"ab", "the data have 2"),
    "overlap": (packed({"a": ONE, "b": described("U8", [1], 1, 2)})[8:], b"ab", "bytes 1 to 2 .* more than one"),
    "empty tensor in another": (packed({"a": ONE, "b": described("F32", [0], 1, 1)})[8:], b"ab", "more than one"),
    "descending": (packed({"a": described("U8", [0], 2, 0)})[8:], b"ab", "bytes 2 to 0"),
    "size": (packed({"a": described("F32", [1], 0, 2)})[8:], b"ab", "not the size of 1 items of F32"),
    "overflow": (packed({"a": described("U8", [1 << 62, 1 << 62, 0], 0, 0)})[8:], b"", "too large"),
    "too large a number": (packed({"a": described("U8", [0, 1 << 64], 0, 0)})[8:], b"", "no description"),
    "three offsets": (b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}}', b"ab", "no description"),
    "null": (b'{"a":null}', b"", "no description"),
    "half a pair": (b'{"\\ud800":{%s}}' % FIELDS, b"ab", "surrogates not allowed"),
    "half a pair in a list": (b'{"a":{%s,"x":["\\udc00"]}}' % FIELDS, b"ab", "surrogates not allowed"),
    "not UTF-8": (b'{"\xff":{%s}}' % FIELDS, b"ab", "utf-8"),
    "cut in a character": (b'{"\xc3', b"", "utf-8"),
    "control character": (b'{"a\n":{%s}}' % FIELDS, b"ab", "control character"),
    "comma at the end": (b'{"a":{%s},}' % FIELDS, b"ab", "not valid JSON"),
    "no colon": (b'{"a" {%s}}' % FIELDS, b"ab", "Expecting ':' delimiter"),
    "no end": (b'{"a":{%s}' % FIELDS, b"ab", "Expecting ',' delimiter"),
    "NaN": (b'{"a":{%s,"x":NaN}}' % FIELDS, b"ab", "NaN is not a JSON number"),
    "leading zero": (b'{"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}', b"ab", "not valid JSON"),
    "half a byte": (packed({"a": described("F4", [3], 0, 1)})[8:], b"a", "3 items of F4"),
    "no text as key": (b'{1:{%s}}' % FIELDS, b"ab", ""),
    "nested deeply": (b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}", b"", "not valid JSON|no description"),
    "brace only": (b"{", b"", ""),
}
UNRECOGNISED = ("no text as key", "brace only")
DIFFERENT: dict[str, tuple[bytes, bytes, str]] = {
    "name twice": (b'{"a":{%s},"a":{%s}}' % (FIELDS, FIELDS), b"ab", "key twice"),
    "name twice in two spellings": (
        b'{"a":{%s},"\\u0061":{%s}}' % (FIELDS, FIELDS), b"ab", "key twice"),
    "metadata key twice": (
        b'{"__metadata__":{"x":"1","x":"2"},"a":{%s}}' % FIELDS, b"ab", "key twice"),
    "white space first": (b' {"a":{%s}}' % FIELDS, b"ab", "begins with white space"),
    "description as a list": (b'{"a":["U8",[2],[0,2]]}', b"ab", "no description"),
    "dtype as an object": (b'{"a":{"dtype":{"U8":null},"shape":[2],"data_offsets":[0,2]}}', b"ab", "no description"),
}
"""Files that the package opens, and glassfs refuses (docs/formats/safetensors.md §7)."""


@pytest.mark.parametrize("name", CASES | DIFFERENT)
def test_the_package_and_glassfs_refuse_the_same(name: str, tmp_path: Path) -> None:
    header, data, reason = (CASES | DIFFERENT)[name]
    path = tmp_path / "x.safetensors"
    path.write_bytes(packed(header, data))
    is_sound = not reason and name not in UNRECOGNISED
    assert library_opens(path) == (is_sound or name in DIFFERENT)
    if is_sound:
        assert list(contents_of(open_path(path).root))
        return
    with pytest.raises(Refused, match=f"(?s)^{path}: .*{reason}") as raised:
        open_path(path)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize(("data", "reason"), [
    (packed(b'{"a":{%s}}' % FIELDS, b"ab", 4000), "its header has 4000 bytes, but only 61 follow"),
    (packed(b'{"a":{%s}}' % FIELDS, b"ab", LONGEST_HEADER + 1), "its header has 100000001 bytes, but only"),
    (packed(b'{"a":{%s}}' % FIELDS, b"ab")[:-1], "the data have 1"),
    (packed(b'{"a":{%s}}' % FIELDS, b"ab")[:40], "but only 32 follow"),
])
def test_cut_files_and_lengths_that_lie_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        open_bytes(data)


# Damage, memory and reading

def verdict(path: Path) -> tuple[bool, dict[bytes, Any]]:
    try:
        return True, tensors_of(open_path(path))
    except Refused:
        return False, {}


def compare(data: bytes, folder: Path) -> str:
    """Compare what glassfs and the package make of a file; return what they did. Raises AssertionError."""
    path = folder / "mutant.safetensors"
    path.write_bytes(data)
    is_open, tensors = verdict(path)
    if not library_opens(path):
        assert not is_open or any(isinstance(content, Undecoded) for content in tensors.values()), data[:300]
        return "refused"
    if not is_open:
        return "stricter"
    with package("safetensors", "test").safe_open(path, framework="numpy") as library:
        names = list(library.keys())
        assert {name.encode() for name in names} == set(tensors)
        for name in names:
            content = tensors[name.encode()]
            if isinstance(content, Array) and content.type_name[:2] not in ("BF", "F8", "BO"):
                shown, expected = values_of(content), library.get_tensor(name)
                assert (shown.dtype, shown.shape) == (expected.dtype, expected.shape)
                assert shown.tobytes() == expected.tobytes()
    return "same"


def mutants(count: int) -> Iterator[bytes]:
    """Yield damaged copies of the samples, most of them with the length that the header now has."""
    chance = random.Random(11)
    seeds = [Seed(path.name, path.read_bytes()) for path in sorted(SAMPLES.glob("*.safetensors"))]
    sound = [seed.data for seed in seeds if len(seed.data) < 1 << 14]
    for _ in range(count):
        data = bytearray(damaged(chance.choice(sound), seeds, chance))
        close = data.rfind(b"}}") + 2
        if chance.random() < 0.8 and close > 9:
            struct.pack_into("<Q", data, 0, close - 8)
        yield bytes(data)


def test_mutants_show_what_the_package_reads(tmp_path: Path, scale: Scale) -> None:
    """Whatever the package refuses is refused, or has a tensor of unknown type; all values are the package's."""
    outcomes = [compare(data, tmp_path) for data in mutants(scale(300, 3_000, 100_000))]
    assert {"refused", "same"} <= set(outcomes)


def header_of(size: int, item: bytes, filling: bytes = b" ") -> bytes:
    """Return a JSON object of items, with a number in each, as long as ``size``."""
    count = (size - 2) // (len(item % 0) + 9)
    stored = b"{" + b",".join(item % number for number in range(count)) + b"}"
    return stored + filling * (size - len(stored))


HOSTILE = {
    "numbers": b'"%d":' + b"[" + b"1," * 500 + b"1]",
    "objects": b'"%d":{"x":[' + b"{}," * 500 + b"{}]}",
    "names": b'"%d' + b"x" * 500 + b'":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',
    "tensors": b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',
    "metadata": b'"%d":"\xf0\x9f\x98\x80"',
    "spaces": b'"%d":{"dtype":"U8","shape":[0]' + b" " * 2000 + b',"data_offsets":[0,0]}',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_headers_of_a_hundred_megabytes_take_little_memory(name: str, tmp_path: Path) -> None:
    """Names, numbers and objects by the million: an error, or sums. The file itself is not counted."""
    path = tmp_path / "x.safetensors"
    stored = header_of(8 * MIB if name in ("tensors", "metadata") else 99 * MIB, HOSTILE[name])
    if name == "metadata":
        stored = b'{"__metadata__":' + stored + b"}"
    path.write_bytes(packed(stored))
    del stored
    budget = 256 * MIB

    def opened() -> None:
        try:
            open_path(path, budget)
        except Refused as error:
            assert "\n" not in str(error)

    assert peak_memory(opened) < 100 * MIB


def test_more_tensors_than_memory_allows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(packed(header_of(2 * MIB, HOSTILE["tensors"])))
    with pytest.raises(Refused, match=r"of memory or more for the header, and 8\.0M are allowed: a larger cache_size"):
        open_path(tmp_path / "x.safetensors", 1 * MIB)


def test_long_metadata_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"a": np.arange(3)}, {"text": "é" * MIB, "other": "\U0001f600"})
    container = open_path(path)
    assert only(container, "meta/file").value()["__metadata__"] == {"text": "é" * MIB, "other": "\U0001f600"}
    assert array_of(container, "tensors/a").tolist() == [0, 1, 2]
    with glassfs.open(path) as model:
        assert model["meta/file"].json()["__metadata__"]["text"] == "é" * MIB

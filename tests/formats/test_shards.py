"""Models in shards: the index is a container of all tensors, and what is missing is said by shard."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutants import Seed, damaged
from writers.safetensors import described, packed, write_safetensors, write_sharded

import glassfs
from glassfs.cache import BlockCache
from glassfs.content import Container, Omitted
from glassfs.errors import DeviceFailed, GlassfsError, Refused, Unrecognised
from glassfs.formats.registry import Opening, open_container
from glassfs.formats.safetensors import AT_ONCE
from glassfs.library import open_tree
from glassfs.source import Source
from glassfs.source.local import LocalStore
from glassfs.tree import Directory
from tests.cli.glassfs_command import fails
from tests.cli.glassfs_command import glassfs as command
from tests.conftest import Scale
from tests.formats.exercise import peak_memory
from tests.helpers import array_of, contents_of, omitted_in, only, open_bytes, open_path
from tests.memory_store import MemoryStore
from tests.optional import package
from tests.tree.trees import files_of, paths_of, sources_of

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARDS: list[dict[str, Any]] = [
    {"embed.weight": np.arange(12, dtype="f4").reshape(3, 4), "a/b": np.array([True, False])},
    {"head.weight": np.arange(5, dtype="<i8"), "scale": np.array(2.5), "none": np.zeros((0, 3), "f2")},
]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4294967\n" % 7


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return write_sharded(tmp_path, SHARDS)


def rewritten(index: Path, change: Mapping[str, str | None]) -> Path:
    value = json.loads(index.read_text())
    value["weight_map"] = {name: file for name, file in (value["weight_map"] | change).items() if file is not None}
    index.write_text(json.dumps(value))
    return index


def model_of(container: Container) -> Any:
    (tensors,) = (member.content for member in container.root.members() if member.name == (b"tensors",))
    return tensors


def test_an_index_has_the_tensors_of_all_shards(index: Path) -> None:
    container = open_path(index)
    for tensors in SHARDS:
        for name, values in tensors.items():
            array = array_of(container, f"tensors/{name}")
            assert (array.dtype, array.shape) == (values.dtype, values.shape) and np.array_equal(array, values)
    assert len(contents_of(container.root)) == 6
    assert [Path(source.name).name for source in container.sources] == [index.name, FIRST, SECOND]
    assert container.facts == {
        "tensors": 5, "tensor_bytes": 98, "types": {"F32": 1, "BOOL": 1, "I64": 1, "F64": 1, "F16": 1}, "shards": 2,
    }
    assert only(container, "meta/file").value() == {
        "format": "safetensors", "tensors": 5, "bytes": 98, "metadata": {"total_size": 98}, "shards": [
            {"name": FIRST, "tensors": 2, "bytes": 50, "__metadata__": {"format": "pt"}},
            {"name": SECOND, "tensors": 3, "bytes": 48, "__metadata__": {"format": "pt"}},
        ],
    }
    attributes = only(container, "tensors/head.weight").attributes()
    stored = index.with_name(attributes["file"]).read_bytes()[int(attributes["offset"]) :]
    assert stored[: int(attributes["stored_bytes"])] == SHARDS[1]["head.weight"].tobytes()


def test_models_of_the_library_read_the_same(tmp_path: Path) -> None:
    torch, library = package("torch"), package("safetensors.torch", "test")
    weights = {f"{number}.w": torch.randn(4, number + 1).to(torch.bfloat16) for number in range(6)}
    files = {name: f"x-{number % 3}.safetensors" for number, name in enumerate(weights)}
    for file in set(files.values()):
        library.save_file({name: weights[name] for name in weights if files[name] == file}, tmp_path / file)
    (tmp_path / "x.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with glassfs.open(tmp_path / "x.safetensors.index.json") as model:
        for name, values in weights.items():
            assert np.array_equal(model[f"tensors/{name}"].numpy(), values.float().numpy())
            assert model[f"tensors/{name}"].attributes["dtype"] == "BF16"


# Shards that are not as the index says

@pytest.mark.parametrize(("data", "reason"), [
    (None, "is missing"), (POINTER, "is a pointer of Git LFS to 4,294,967 bytes, not the file: run git lfs pull"),
    (b"", "is no safetensors file"), (b"PK\3\4data", "is compressed with ZIP: decompress it first"),
    (packed({}, b"", 999), "starts like a safetensors file, but its header has 999 bytes, but only 2"),
    (packed({"scale": described("U8", [1], 0, 2)}, b"ab"), "tensors/scale: has 2 bytes, which is not the size of 1 it"),
])
def test_a_shard_that_cannot_be_read_costs_its_tensors(index: Path, data: bytes | None, reason: str) -> None:
    shard = index.with_name(SECOND)
    shard.unlink() if data is None else shard.write_bytes(data)
    container = open_path(index)
    (said,) = omitted_in(model_of(container)).items()
    assert said[0] == SECOND and said[1].startswith(reason)
    assert said[1].endswith(", and with it 3 tensors: head.weight, scale, none")
    assert np.array_equal(array_of(container, "tensors/embed.weight"), SHARDS[0]["embed.weight"])
    assert (container.facts["tensors"], container.facts["unreadable_shards"]) == (2, 1)
    assert only(container, "meta/file").value()["shards"][1]["unreadable"].startswith(reason)
    done = command("verify", index)
    assert done.status == 1 and f"{index}: tensors/{SECOND}: {said[1]}" in done.lines
    done = command("ls", f"{index}/tensors")
    assert (done.status, done.lines) == (1, ["a%2Fb.npy", "embed.weight.npy"])
    assert done.errors == [f"glassfs: damaged: tensors/{SECOND}: {said[1]}"]


def test_the_index_decides_which_tensors_a_model_has(index: Path) -> None:
    """A tensor that it looks for in another shard is missing; those that it does not name are left out, and said."""
    rewritten(index, {"scale": FIRST, "none": None})
    group = model_of(open_path(index))
    said = [
        (content.key.decode(), content.reason, content.is_damage)
        for _, content in group.members() if isinstance(content, Omitted)
    ]
    assert said == [
        (FIRST, "lacks 1 tensor: scale", True), (SECOND, "not in the index: 2 tensors: none, scale", False),
    ]
    assert {name.decode() for name in contents_of(group)} == {"a/b", "embed.weight", "head.weight"}


def test_a_tensor_in_two_shards_is_that_of_the_index(tmp_path: Path) -> None:
    index = write_sharded(tmp_path, [{"x": np.zeros(2), "a": np.zeros(1)}, {"x": np.ones(2), "b": np.zeros(1)}])
    assert array_of(open_path(index), "tensors/x").tolist() == [1, 1]
    rewritten(index, {"x": FIRST})
    assert array_of(open_path(index), "tensors/x").tolist() == [0, 0]


@pytest.mark.parametrize("name", [
    "../other.safetensors", "/etc/passwd", "", ".", "..", "sub/x.safetensors", "x\0", "x" * 300, "sub",
    "model.safetensors.index.json",
])
def test_shards_are_files_of_the_same_folder(index: Path, name: str) -> None:
    write_safetensors(index.parent.parent / "other.safetensors", {"scale": np.zeros(1)})
    index.with_name("sub").mkdir()
    write_safetensors(index.with_name("sub") / "x.safetensors", {"scale": np.zeros(1)})
    container = open_path(rewritten(index, {"scale": name}))
    said = omitted_in(model_of(container))
    assert "and with it 1 tensor: scale" in said[name] and b"tensors/scale" not in contents_of(container.root)
    assert np.array_equal(array_of(container, "tensors/head.weight"), SHARDS[1]["head.weight"])


def test_an_index_without_any_shard_is_refused(index: Path) -> None:
    for shard in (FIRST, SECOND):
        index.with_name(shard).write_bytes(POINTER)
    reason = f"none of its 2 shards can be read: {FIRST} is a pointer of Git LFS to 4,294,967 bytes, not the file: "
    fails(command("ls", index), f"{index}: {reason}run git lfs pull")
    with open_tree(str(index.parent)) as tree:
        assert tree.lookup(index.name).xattrs() == {"user.glassfs.error": f"{reason}run git lfs pull".encode()}
        write_sharded(index.parent, SHARDS)
        assert tree.file(f"{index.name}/tensors/scale.npy").size == 136


# The index itself

WEIGHTS = b'{"weight_map":{"a":"x.safetensors"%s}%s}'


@pytest.mark.parametrize(("data", "reason"), [
    (WEIGHTS % (b',"a":"y.safetensors"', b""), "the index: is not valid JSON: an object has a key twice"),
    (WEIGHTS % (b"", b',"weight_map":{}'), "an object has a key twice"),
    (WEIGHTS % (b',"b":7', b""), "without a weight_map of files"),
    (WEIGHTS % (b',"b":["x"]', b""), "weight_map of files"), (WEIGHTS % (b"", b"}"), "not valid JSON"),
    (WEIGHTS % (b',"\\ud800":"x"', b""), "surrogates not allowed"),
    (WEIGHTS % (b',"b":"\\udfff"', b""), "surrogates not allowed"),
    (WEIGHTS % (b"", b',"metadata":{"x":"\\ud800"}'), "surrogates not allowed"), (WEIGHTS[:-4], "not valid JSON"),
    (WEIGHTS % (b',"\xff":"x"', b""), "is not valid JSON: .*utf-8"),
    (WEIGHTS % (b"", b',"x":NaN'), "NaN is not a JSON number"),
    (WEIGHTS % (b"", b',"x":' + b"[" * 99_999 + b"]" * 99_999), "the index: is not valid JSON: .*recursion"),
    (WEIGHTS % (b"", b""), r"none of its 1 shards can be read: x\.safetensors is missing"),
])
def test_a_damaged_index_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as raised:
        open_bytes(data)
    assert not isinstance(raised.value, Unrecognised) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("data", "reason"), [
    (b'{"weight_map":[]}', "is JSON without a weight_map"), (b'{"weight_map":', "is not valid JSON"),
    (b'{"error": "Repository not found"}', "such as the answer of a server about an error"), (b"{}", "weight_map"),
    (b"<html>", "is an HTML page"), (b"", "is empty"), (b"[]", "is not a container of a known format"),
])
def test_other_files_of_this_name_are_refused(data: bytes, reason: str) -> None:
    for name in ("model.safetensors.index.json", "model.safetensors.index.fp16.json")[: 2 if data[:1] == b"{" else 1]:
        with pytest.raises(Refused, match=reason) as raised:
            open_bytes(data, name)
        assert not isinstance(raised.value, Unrecognised)


def test_the_first_bytes_of_an_index_tell_it_from_other_json(index: Path) -> None:
    text = index.read_text()
    for name in ("model.safetensors.index.fp16.json", "MODEL.SAFETENSORS.INDEX.JSON", "0123abcd"):
        index.with_name(name).write_text(text)
        assert open_path(index.with_name(name)).facts["shards"] == 2
    plain = {
        "pytorch_model.bin.index.json": text.replace(".safetensors", ".bin"), "config.json": '{"weight_map": {}}',
        "notes.json": '{"weight_map": "model.safetensors"}',
    }
    for name, other in plain.items():
        index.with_name(name).write_text(other)
        with pytest.raises(Unrecognised):
            open_path(index.with_name(name))


def test_metadata_are_shown_whatever_they_are_called(index: Path) -> None:
    value = json.loads(index.read_text())
    value["metadata"] |= {"é": 1.5, "none": None, "nested": {"a": [1, {}]}, "large": 10**40, "text": "x" * 100_000}
    index.write_text(json.dumps(value))
    with glassfs.open(index) as model:
        shown = model["meta/file"].json()["metadata"]
    del value["metadata"]["nested"]
    assert shown == value["metadata"]


def test_an_index_named_by_a_link_finds_shards_beside_the_link(index: Path, tmp_path: Path) -> None:
    """As in the cache of Hugging Face, where files are links into a folder of hashes."""
    blobs, links = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    links.mkdir(parents=True)
    for number, name in enumerate((index.name, FIRST, SECOND)):
        (tmp_path / name).rename(blobs / f"{number}")
        (links / name).symlink_to(f"../../blobs/{number}")
    with glassfs.open(links / index.name) as model:
        assert np.array_equal(model["tensors/head.weight"].numpy(), SHARDS[1]["head.weight"])


# Versions

def test_shards_that_come_go_and_change_make_new_versions(index: Path) -> None:
    second = index.with_name(SECOND).read_bytes()
    with open_tree(str(index.parent)) as tree:
        head = f"{index.name}/tensors/head.weight.npy"
        before, names = tree.file(head), paths_of(tree, index.name)
        old = before.read(0, before.size)
        index.with_name(SECOND).unlink()
        assert head not in paths_of(tree, index.name)
        assert len(tree.directory(f"{index.name}/tensors").omitted()) == 1
        index.with_name(SECOND).write_bytes(second)
        assert paths_of(tree, index.name) == names and tree.file(head).read(0, before.size) == old
        write_safetensors(tmp := index.with_name("new"), SHARDS[1] | {"head.weight": np.arange(5, dtype="<i8") + 1})
        tmp.replace(index.with_name(SECOND))
        assert tree.file(head).read(0, before.size)[-40:] == (np.arange(5, dtype="<i8") + 1).tobytes()
        index.with_name(SECOND).write_bytes(second[:-1])
        assert head not in paths_of(tree, index.name)


def test_an_evicted_model_with_a_missing_shard_is_parsed_again(index: Path) -> None:
    files = {path.name: path.read_bytes() for path in index.parent.iterdir() if path.name != SECOND}
    store = MemoryStore(files)
    sources = sources_of(store, limit=1)
    names = paths_of(sources.tree)
    lost = {f"/{index.name}/tensors/embed.weight.npy", f"/{FIRST}/tensors/embed.weight.npy"}
    assert lost <= names
    for _ in range(3):  # each container evicts the other
        assert paths_of(sources.tree) == names
    store.put(SECOND, packed({"scale": described("U8", [2], 0, 2)}, b"ab"))
    assert f"/{index.name}/tensors/scale.npy" in paths_of(sources.tree)


# Many shards and many tensors

def test_shards_are_opened_with_few_descriptors(tmp_path: Path) -> None:
    shards = [{f"{number}": np.array([number])} for number in range(300)]
    index = write_sharded(tmp_path, shards)
    before = len(os.listdir("/proc/self/fd"))
    container = open_path(index)
    assert len(os.listdir("/proc/self/fd")) - before <= 5
    assert [array_of(container, f"tensors/{number}")[0] for number in range(0, 300, 7)] == list(range(0, 300, 7))
    assert len(os.listdir("/proc/self/fd")) - before <= 140


HOSTILE = {
    "tensors": lambda number: (f"{number}", "a.safetensors"), "shards": lambda number: (f"{number}", f"{number}"),
    "names": lambda number: ("x" * 500 + f"{number}", "\U0001f600" * 200 + f"{number}"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_index_takes_little_memory(tmp_path: Path, kind: str) -> None:
    index = tmp_path / "m.safetensors.index.json"
    with index.open("w") as file:
        file.write('{"weight_map": {"": "a.safetensors"')
        for number in range(200_000 if kind != "names" else 10_000):
            tensor, shard = map(json.dumps, HOSTILE[kind](number))
            file.write(f", {tensor}: {shard}")
        file.write("}}")

    def opened() -> None:
        with pytest.raises(Refused) as raised:
            open_path(index, 32 << 20)
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 700

    assert peak_memory(opened) < 40 << 20


# Remote models

def stored(shards: int) -> MemoryStore:
    """Return a store of a model of so many shards, with names like those on servers."""
    store = MemoryStore({
        f"m-{number}.safetensors": packed({f"{number}": described("U8", [2], 0, 2)}, b"ab") for number in range(shards)
    }, is_remote=True)
    weights = {f"{number}": f"m-{number}.safetensors" for number in range(shards)}
    store.put("m.safetensors.index.json", json.dumps({"weight_map": weights}).encode())
    return store


def test_a_remote_index_is_listed_by_its_name_and_opened_when_entered() -> None:
    store = stored(3)
    sources = sources_of(store)
    listed = sources.tree.directory("/").listing()
    assert [node.is_presumed for node in listed if isinstance(node, Directory)] == [True] * 4
    assert store.reads == 0
    store.remove("m-1.safetensors")
    found = files_of(sources.tree, "m.safetensors.index.json")
    assert [path.rpartition("/")[2] for path in found] == ["file.json", "0.npy", "2.npy"]
    store.put("m-1.safetensors", packed({"1": described("U8", [2], 0, 2)}, b"cd"))
    assert sources.tree.file("m.safetensors.index.json/tensors/1.npy").read(128, 2) == b"cd"


def opening_of(store: MemoryStore) -> Opening:
    path = ("m.safetensors.index.json",)
    return Opening(store.open(path), BlockCache(), store, path)


def test_remote_shards_are_requested_together(monkeypatch: pytest.MonkeyPatch) -> None:
    store, together = stored(3 * AT_ONCE), threading.Barrier(AT_ONCE)
    open_now = store.open

    def open_together(path: tuple[str, ...]) -> Source:
        if path[-1].startswith("m-"):
            together.wait(60)
        return open_now(path)

    opening = opening_of(store)
    monkeypatch.setattr(store, "open", open_together)
    container = open_container(opening)
    assert container.facts["tensors"] == 3 * AT_ONCE
    assert [source.name for source in container.sources[1:]] == [
        store.shown((f"m-{number}.safetensors",)) for number in range(3 * AT_ONCE)
    ]


def test_a_server_that_fails_is_no_verdict_on_a_model() -> None:
    store = stored(40)
    store.opening["m-9.safetensors"] = DeviceFailed("no answer")
    with pytest.raises(DeviceFailed, match=r"m\.safetensors\.index\.json: m-9\.safetensors: no answer"):
        open_container(opening_of(store))
    store.opening.clear()
    assert open_container(opening_of(store)).facts["tensors"] == 40


# Damage at random

def test_damaged_models_show_nothing_that_is_not_stored(index: Path, scale: Scale) -> None:
    """Of an index or a shard: whatever is still shown under the name of a tensor has its values."""
    chance, sound = random.Random(7), {path: path.read_bytes() for path in index.parent.iterdir()}
    seeds = [Seed(path.name, data) for path, data in sound.items()]
    header = 8 + int.from_bytes(sound[index.with_name(FIRST)][:8], "little")
    whole = {path.rpartition("/")[2]: data for path, data in _files(index).items() if path.endswith(".npy")}
    outcomes = set()
    for _ in range(scale(200, 2_000, 20_000)):
        path = index if chance.random() < 0.6 else index.with_name(FIRST)
        end = len(sound[path]) if path == index else header
        path.write_bytes(damaged(sound[path][:end], seeds, chance) + sound[path][end:])
        try:
            found = _files(index)
        except GlassfsError as error:
            assert "\n" not in str(error)
            outcomes.add("refused")
        else:
            outcomes.add("shown")
            if path == index:  # a name may be damaged, but then no shard has it
                known = {place.rpartition("/")[2]: data for place, data in found.items() if place.endswith(".npy")}
                assert all(whole[name] == data for name, data in known.items())
            else:
                assert found["/tensors/head.weight.npy"] == whole["head.weight.npy"]
        path.write_bytes(sound[path])
    assert outcomes == {"refused", "shown"}


def _files(index: Path) -> dict[str, bytes]:
    with open_tree(str(index)) as tree:
        return files_of(tree)


def test_the_store_closes_what_an_index_tried(tmp_path: Path) -> None:
    index = write_sharded(tmp_path, SHARDS)
    index.with_name(FIRST).write_bytes(POINTER)
    index.with_name(SECOND).write_bytes(POINTER)
    store = LocalStore(tmp_path)
    opening = Opening(store.open((index.name,)), BlockCache(), store, (index.name,))
    with pytest.raises(Refused):
        open_container(opening)
    for _, source in opening.asked:
        assert isinstance(source, Source)
        with pytest.raises(GlassfsError):
            source.read_into(memoryview(bytearray(1)), 0)

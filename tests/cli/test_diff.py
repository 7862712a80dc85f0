"""Test what ``glassfs diff`` finds, against NumPy, and what it needs not read for that."""

from __future__ import annotations

import json
import math
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file
from writers.safetensors import described, packed, write_safetensors
from writers.wshard import WShardWriter

from glassfs.sizes import human_size
from tests.cli.conftest import FRAMES, sparse_store, write_robot
from tests.cli.glassfs_command import fails, glassfs

Files = tuple[Path, Path]
SHARDED = "model.safetensors.index.json"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return the paths of two containers without a suffix, in two folders."""
    for side in "ab":
        (tmp_path / side).mkdir()
    return tmp_path / "a" / "x", tmp_path / "b" / "x"


def saved(files: Files, suffix: str, *values: Any) -> Files:
    """Write two containers with the libraries of their formats."""
    paths = files[0].with_suffix(suffix), files[1].with_suffix(suffix)
    for path, one in zip(paths, values, strict=True):
        if suffix == ".npz":
            np.savez(path, **one)
        else:
            save_file(one, path)
    return paths


def found(*words: str | Path) -> dict[str, dict[str, Any]]:
    """Return the differences by path. The exit status must say whether there are some."""
    done = glassfs("diff", "--json", *words)
    assert done.errors == []
    differences = [json.loads(line) for line in done.lines]
    assert done.status == (1 if differences else 0)
    return {one.pop("path"): one for one in differences}


DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes(sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(sizes=(64, 128)), hnp.byte_string_dtypes(max_len=5), hnp.unicode_string_dtypes(max_len=5),
    hnp.datetime64_dtypes(), hnp.timedelta64_dtypes(),
    st.just(np.dtype([("x", ">f4"), ("y", [("z", "<i2", (2,)), ("t", "S3")])])),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return two arrays of one type and shape, some of whose items are equal."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    dtype = draw(DTYPES)
    a, b = (draw(hnp.arrays(dtype, shape)) for _ in range(2))
    are_kept = draw(hnp.arrays(bool, shape))
    return a, np.where(are_kept, a, b).astype(dtype)


def are_equal(p: Any, q: Any) -> bool:
    """Compare two items without NumPy's arrays."""
    if p.dtype.names:
        return all(are_equal(p[name], q[name]) for name in p.dtype.names)
    if p.shape:
        return all(map(are_equal, p.reshape(-1), q.reshape(-1)))
    return bool(p == q or (p != p and q != q))


@settings(max_examples=60, deadline=None)
@given(pairs(), st.sampled_from("CF"))
def test_counts_and_maxima_are_those_of_numpy(
    tmp_path_factory: pytest.TempPathFactory, arrays: tuple[Any, Any], order: Any,
) -> None:
    folder = tmp_path_factory.mktemp("pair")
    paths = folder / "a.npz", folder / "b.npz"
    a, b = arrays
    np.savez(paths[0], x=np.asarray(a, order="C"))
    np.savez(paths[1], x=np.asarray(b.astype(b.dtype.newbyteorder(), casting="equiv"), order=order))
    differing = [index for index in np.ndindex(a.shape) if not are_equal(a[index], b[index])]
    difference = found(*paths).get("x.npy")
    if not differing:
        assert difference is None
        return
    assert difference is not None
    assert (difference["differing"], difference["items"]) == (len(differing), a.size)
    assert difference["first"] == list(differing[0])
    if a.dtype.kind not in "iufc":
        assert "max_abs" not in difference
        return
    as_exact: Callable[[Any], Any] = int if a.dtype.kind in "iu" else complex
    numbers = [(as_exact(a[i]), as_exact(b[i])) for i in differing if a[i] == a[i] and b[i] == b[i]]
    gaps = [abs(p - q) for p, q in numbers]
    nans = [sum(bool(x[i] != x[i] and y[i] == y[i]) for i in differing) for x, y in ((a, b), (b, a))]
    assert [difference.get("nan_a", 0), difference.get("nan_b", 0)] == nans
    if gaps and not any(map(math.isnan, gaps)):
        assert float(difference["max_abs"]) == (max(gaps) if as_exact is int else pytest.approx(max(gaps)))


def test_large_integers_are_compared_exactly_and_gaps_may_be_infinite(files: Files) -> None:
    a, b = saved(files, ".npz", {
        "i": np.array([-(2**63), 2**62]), "u": np.array([2**64 - 1], "u8"), "x": np.array([np.inf, 1]),
    }, {"i": np.array([2**63 - 1, 2**62 + 1]), "u": np.array([2**64 - 2], "u8"), "x": np.array([-np.inf, 1])})
    differences = found(a, b)
    assert (differences["i.npy"]["differing"], differences["i.npy"]["max_abs"]) == (2, 2**64 - 1)
    assert (differences["u.npy"]["first_a"], differences["u.npy"]["max_abs"]) == (2**64 - 1, 1)
    lines = glassfs("diff", a, b).lines
    assert f"items differ by up to {2**64 - 1}, first at [0]" in lines[0]
    assert "x.npy: 1 of 2 items differ by up to inf, first at [0]" in lines[2]


def test_checkpoints(files: Files) -> None:
    values = np.linspace(-1, 1, 2000, dtype="f4").reshape(40, 50)
    changed = values.copy()
    changed[3, 7] += 0.25
    changed[39] = np.nan
    a, b = saved(
        files, ".safetensors", {"same": values, "w": values, "old": values, "half": values, "rows": values},
        {"same": values, "w": changed, "new": values, "half": values.astype("f2"), "rows": values[:30]},
    )
    done = glassfs("diff", a, b)
    assert done.status == 1
    assert sorted(done.lines) == [
        "meta/file.json: bytes: 40000 → 34000",
        "tensors/half.npy: F32 [40, 50] → F16 [40, 50]",
        f"tensors/new.npy: only in {b} (7.9K)",
        f"tensors/old.npy: only in {a} (7.9K)",
        "tensors/rows.npy: F32 [40, 50] → F32 [30, 50]",
        "tensors/w.npy: 51 of 2,000 items differ by up to 0.25, 50 NaN only in B, "
        "first at [3, 7]: -0.84292144 → -0.59292144",
    ]
    assert done.errors == ["glassfs: 4 different, 2 only in one, 1 same"]
    assert found(f"{a}/tensors/half.npy", f"{b}/tensors/half.npy") == {"": {
        "difference": "array", "a": {"dtype": "F32", "shape": [40, 50]}, "b": {"dtype": "F16", "shape": [40, 50]},
    }}


def write_demos(path: Path, demos: int, first: str = "red", value: float = 0.0) -> None:
    with h5py.File(path, "w") as file:
        for number in range(demos):
            group = file.create_group(f"data/demo_{number}")
            group.attrs["num_samples"] = 40
            actions = np.arange(280.0).reshape(40, 7)
            actions[33, 2] += value
            group.create_dataset("actions", data=actions, chunks=(8, 4), compression="gzip", shuffle=True)
            group["words"] = [first, "green"]


def test_recordings(files: Files) -> None:
    a, b = (path.with_suffix(".h5") for path in files)
    write_demos(a, 1)
    write_demos(b, 2, "blue", 0.5)
    with h5py.File(b, "a") as file:
        file["data/demo_0"].attrs["num_samples"] = 41
    done = glassfs("diff", f"{a}/data", f"{b}/data")
    assert done.lines == [
        "demo_0.attributes.json: num_samples: 40 → 41",
        f"demo_1/ (3 in it): only in {b}/data",
        f"demo_1.attributes.json: only in {b}/data",
        "demo_0/actions.npy: 1 of 280 items differ by up to 0.5, first at [33, 2]: 233.0 → 233.5",
        "demo_0/words.jsonl: 14 → 15 bytes, different from byte 1 on",
        "demo_0/meta/episode.json: num_samples: 40 → 41",
    ]
    assert found(f"{a}/data/demo_0/words.jsonl", f"{b}/data/demo_0/words.jsonl") == {"": {
        "difference": "bytes", "bytes_a": 14, "bytes_b": 15, "first": 1,
    }}
    assert found(f"{b}/data/demo_1", f"{b}/data/demo_1") == {}


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_narrow_arrays_are_compared_as_wide_ones(files: Files, name: str) -> None:
    narrow = getattr(pytest.importorskip("ml_dtypes"), name)
    a, b = (path.with_suffix(".safetensors") for path in files)
    values = np.arange(-300, 300).astype(narrow)
    write_safetensors(a, {"x": values, "y": values})
    write_safetensors(b, {"x": values, "y": np.where(np.arange(600) == 500, 7, values).astype(narrow)})
    assert found(f"{a}/tensors/x.npy", f"{b}/tensors/x.npy") == {}
    one = found(a, b)["tensors/y.npy"]
    assert (one["differing"], one["first"], one["first_a"], one["first_b"]) == (1, [500], float(values[500]), 7.0)


def test_types_that_are_shown_alike_differ(files: Files) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    a, b = (path.with_suffix(".safetensors") for path in files)
    values = np.arange(8).astype(bfloat16)
    write_safetensors(a, {"x": values, "y": values})
    write_safetensors(b, {"x": values.astype("f4"), "y": values[::-1]})
    assert glassfs("diff", f"{a}/tensors", f"{b}/tensors").lines == [
        "x.npy: BF16 [8] → F32 [8]",
        "y.npy: 8 of 8 items differ by up to 7, first at [0]: 0.0 → 7.0",
    ]
    np.savez(files[0].with_suffix(".npz"), x=values.astype("f4"), y=values.astype("f4"))
    assert found(files[0].with_suffix(".npz"), f"{a}/tensors") == {}  # containers of two formats
    for path, shape in ((a, [8]), (b, [2, 4])):  # no type of NumPy has four bits
        path.write_bytes(packed({"x": described("F4", shape, 0, 4)}, b"word"))
    assert glassfs("diff", a, b).lines == ["tensors/x.bin: F4 [8] → F4 [2, 4]"]


def test_folders_of_containers(files: Files) -> None:
    a, b = files[0].parent, files[1].parent
    for folder, frames, task in ((a, FRAMES, "pick"), (b, FRAMES + np.uint8(2), "place")):
        write_robot(folder / "same.kdb")
        write_robot(folder / "run.kdb", frames, task)
        (folder / "notes.txt").write_text(f"one\n{folder.name}\n")
        (folder / "video.bin").write_bytes(b"0123" + folder.name.encode())
    write_robot(a / "old.kdb", FRAMES)
    (b / "more").mkdir()
    write_robot(b / "more" / "new.kdb", FRAMES)
    done = glassfs("diff", a, b)
    size = human_size((a / "old.kdb").stat().st_size)
    assert done.lines == [
        "notes.txt: 6 → 6 bytes, different from byte 4 on",
        f"old.kdb: only in {a} ({size})",
        "video.bin: 5 → 5 bytes, different from byte 4 on",
        f"more/ (1 in it): only in {b}",
        'run.kdb/episodes/0/meta/episode.json: language_instruction: "pick" → "place"',
        *(f"run.kdb/episodes/0/images/cam/00000{number}.png: 60 of 60 items differ by up to 2, "
          f"first at [0, 0, 0]: {60 * number} → {60 * number + 2}"
          for number in range(3)),
    ]
    assert found(a, a) == found(f"{a}/", a / ".." / "a") == {}


def test_documents_are_compared_by_keys(files: Files) -> None:
    a, b = files[0].parent, files[1].parent
    documents: tuple[Any, Any] = (
        {"x": 1, "deep": [1, {"y": None}], "true": True, "gone": "text"},
        {"deep": [1, {"y": []}, 2], "x": 1.5, "true": 1},
    )
    for folder, document in zip((a, b), documents, strict=True):
        (folder / "info.json").write_text(json.dumps(document))
        (folder / "same.json").write_text(json.dumps(document["deep"][0], indent=3 if folder == a else None) + " ")
        (folder / "broken.json").write_text(f"{{\n{folder.name}\n")
        (folder / "long.json").write_text("[" * 100_000 + folder.name)
        (folder / "value.json").write_text(json.dumps(folder.name))
        (folder / "wide.json").write_text(json.dumps({"k" * 300: folder.name}))
    (a / "ended.txt").write_text("x\n")
    (b / "ended.txt").write_text("x")
    done = glassfs("diff", a, b)
    assert done.lines == [
        "broken.json: 4 → 4 bytes, different from byte 2 on",
        "ended.txt: 2 → 1 bytes, different from byte 1 on",
        "info.json: x: 1 → 1.5", "info.json: deep.1.y: null → []", "info.json: true: true → 1",
        f'info.json: gone: "text", only in {a}', f"info.json: deep.2: 2, only in {b}",
        "long.json: 100,001 → 100,001 bytes, different from byte 100,000 on",
        'value.json: "a" → "b"', f'wide.json: {"k" * 255}…: "a" → "b"',
    ]
    assert done.status == 1
    by_key = [json.loads(line) for line in glassfs("diff", "--json", a, b).lines]
    assert {"path": "info.json", "difference": "key", "key": ["gone"], "a": "text"} in by_key


def test_damage_is_named_and_the_rest_compared(files: Files, damaged: Path) -> None:
    values = np.arange(2000, dtype=np.float32)
    good = files[0].with_suffix(".wshard")
    with WShardWriter(good, codec="zstd", episode={"episode_id": "e", "length_T": 2000}) as writer:
        writer.add_channel("good", values)
        writer.add_channel("bad", values[::-1].copy())
        writer.add("reward", values + 1)
    done = glassfs("diff", good, damaged)
    assert done.lines == [
        "reward.npy: 2,000 of 2,000 items differ by up to 1, first at [0]: 1.0 → 0.0",
    ]
    assert done.status == 2
    assert done.errors[0].startswith(f"glassfs: {damaged}: signal/bad.npy: zstd data cannot be decoded: ")
    assert glassfs("diff", damaged, damaged).status == 0


def test_damaged_containers_in_folders_are_named(files: Files) -> None:
    a, b = files[0].parent, files[1].parent
    for folder in (a, b):
        write_robot(folder / "cut.kdb", FRAMES)
        write_demos(folder / "cut.h5", 1)
        write_robot(folder / "last.kdb", FRAMES if folder == a else FRAMES[:2])
    for name in ("cut.h5", "cut.kdb"):
        (b / name).write_bytes((b / name).read_bytes()[:300])
    done = glassfs("diff", "--json", a, b)
    differences = [json.loads(line) for line in done.lines]
    assert differences[0] == {"path": "cut.h5", "difference": "kind", "a": "container", "b": "file"}
    assert [one["path"] for one in differences[1:3]] == ["cut.kdb", "last.kdb/meta/file.json"]
    assert [line.partition(": cut")[0] for line in done.errors] == [f"glassfs: {b / n}" for n in ("cut.h5", "cut.kdb")]
    assert done.status == 2
    shutil.copy(b / "cut.kdb", a / "cut.kdb")
    assert glassfs("diff", f"{a}", f"{b}").errors[0].startswith(f"glassfs: {b / 'cut.h5'}: cut.h5: ")


def test_exports_have_the_contents_of_their_containers(files: Files) -> None:
    a = files[0].with_suffix(".npz")
    np.savez_compressed(a, film=np.zeros((3, 8, 8, 3), "u1"), x=np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert glassfs("export", a, files[1]).status == 0
    assert found(a, files[1]) == {}
    b = files[1].with_suffix(".npz")
    np.savez_compressed(b, film=np.ones((3, 8, 8, 3), "u1"), x=np.arange(6.0).reshape(2, 3))
    assert list(found(a, b)) == ["film.npy"]  # and not its frames again


def test_what_is_not_shown_is_no_equality(files: Files) -> None:
    a, b = (path.with_suffix(".h5") for path in files)
    for path in (a, b):
        with h5py.File(path, "w") as file:
            file["kept"] = np.arange(3)
            file["far"] = h5py.ExternalLink(f"{path.parent.name}.h5", "/x")
    done = glassfs("diff", a, b)
    assert (done.lines, done.status) == ([], 2)
    names = [line.partition(": omitted: external link: ")[0] for line in done.errors[:2]]
    assert names == [f"glassfs: {a}: /far", f"glassfs: {b}: /far"]


def test_shards_that_both_models_lack_are_no_equality(files: Files) -> None:
    for path in files:
        (path.parent / SHARDED).write_text('{"weight_map": {"x": "here.safetensors", "y": "gone.safetensors"}}')
        write_safetensors(path.parent / "here.safetensors", {"x": np.zeros(2)})
    done = glassfs("diff", *(path.parent / SHARDED for path in files))
    assert (done.lines, done.status, len(done.errors)) == ([], 2, 3)
    assert "tensors/gone.safetensors: is missing, and with it 1 tensor: y" in done.errors[0]


def test_memory_does_not_grow_with_arrays(files: Files) -> None:
    a, b = (sparse_store(path.with_suffix(".kas"), 128 << 20) for path in files)
    with b.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")
    tracemalloc.start()
    try:
        difference = found(a, b)["long.npy"]
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert (difference["differing"], difference["first"]) == (1, [(128 << 20) - 1])


def test_hostile_texts_are_escaped(files: Files) -> None:
    name, text = "a\u202eb\x9b", "\x1b[31m\u202e"
    for path, value in zip(files, ("x" * len(text), text), strict=True):
        np.savez(path.with_suffix(".npz"), **{name: np.array([value, "y"])})
    a, b = (path.with_suffix(".npz") for path in files)
    for words in ((), ("--json",)):
        done = glassfs("diff", *words, a, b)
        assert done.status == 1 and len(done.lines) == 1
        assert done.output.decode().rstrip().isprintable()
    assert [one["first_b"] for one in found(a, b).values()] == [text]


def test_first_mistakes(files: Files, store: Path) -> None:
    end = "(see 'glassfs diff --help')"
    asked = "needs two things to compare, as in 'glassfs diff OLD NEW', and got"
    fails(glassfs("diff"), f"{asked} 0 {end}", 2)
    fails(glassfs("diff", store), f"{asked} 1 {end}", 2)
    fails(glassfs("diff", store, files[0]), f"{files[0]}: No such file or directory", 2)
    done = glassfs("diff", store, f"{store}/nodes/tim.npy")
    assert done.status == 2
    assert done.errors[0].startswith(f"glassfs: /nodes/tim.npy: no such file or directory in {store}")
    done = glassfs("diff", f"{store}/nodes", f"{store}/nodes/time.npy")
    assert (done.lines, done.status) == ([f"{store}/nodes: kind: \"directory\" → \"file\""], 1)


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize(("shape", "chunks"), [
    ((9,), (4,)), ((7, 5), (3, 2)), ((4, 3, 6), (2, 2, 4)), ((6, 1), (1, 1)),
])
def test_arrays_in_chunks_of_any_shape(
    files: Files, shape: tuple[int, ...], chunks: tuple[int, ...], compression: str | None,
) -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 9, shape).astype(">i2")
    for _ in range(5):
        changed = np.where(random.random(shape) < 0.1, values + 1, values)
        for path, one in zip(files, (values, changed), strict=True):
            with h5py.File(path, "w") as file:
                written = {"chunks": chunks, "compression": compression, "fillvalue": 3}
                file.create_dataset("x", data=one, **written)
                file.create_dataset("unwritten", shape, ">i2", **written)
                file["unwritten"][: shape[0] // 2] = one[: shape[0] // 2]
        half = (changed != values)[: shape[0] // 2]
        differences = found(*files)
        for name, differing in (("x.npy", changed != values), ("unwritten.npy", half)):
            places = np.argwhere(differing)
            assert differences.get(name, {"differing": 0})["differing"] == len(places)
            assert not len(places) or differences[name]["first"] == places[0].tolist()

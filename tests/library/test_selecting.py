"""Indexing arrays and videos: what NumPy selects of the whole, reading only what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from writers.idv import IdvWriter, vector
from writers.kinodb import KinoWriter, jpeg
from writers.wshard import WShardWriter

import glassfs
from glassfs.content import EncodedImage, Memory, Video
from glassfs.errors import Damaged, NotADirectory, Unsuited
from glassfs.formats.idv.blocks import Blocks
from glassfs.library.arrays import Rows, frame_of, iterated, rows_of, select
from tests.library.conftest import FRAMES, Recorded, video


def counted(values: np.ndarray[Any, Any]) -> tuple[Rows, Recorded]:
    data = Recorded(values.nbytes, values.tobytes())
    return Rows(values.shape, values.dtype, data), data


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected) and found.dtype == expected.dtype and found.shape == expected.shape
    assert np.array_equal(found, expected)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))
    basic = arrays.basic_indices(shape, allow_newaxis=True)
    mask = arrays.arrays(np.bool_, shape[: draw(st.integers(1, len(shape)))])
    kinds = [basic, mask]
    if 0 not in shape:
        side = st.integers(-shape[0], shape[0] - 1)
        numbers = arrays.arrays(np.intp, arrays.array_shapes(min_dims=1, max_dims=2, max_side=5), elements=side)
        rest = arrays.basic_indices(shape[1:], allow_ellipsis=False) if len(shape) > 1 else st.just(())
        kinds += [numbers, st.tuples(numbers, rest).map(lambda pair: (
            pair[0], *(pair[1] if isinstance(pair[1], tuple) else (pair[1],)),
        ))]
    return shape, draw(st.one_of(kinds))


@given(indexed())
def test_an_index_selects_what_numpy_selects(drawn: tuple[tuple[int, ...], Any]) -> None:
    shape, key = drawn
    values = np.arange(np.prod(shape, dtype=int), dtype="<i4").reshape(shape)
    rows, _ = counted(values)
    same(select(rows, key), values[key])


@pytest.mark.parametrize("key", [
    (3, slice(None), [1, 2]), (slice(1, 4), [0, 2]), ([0, 3, 3], [1, 1, 0]), ([[4], [0]], slice(None), 1),
    (Ellipsis, [3, 0]), ([], 1), (None, -1, None, 2), (slice(None, None, -2), 1), np.array([True] * 5),
    (slice(4, 0, -3), slice(None), slice(1)), np.int8(2), np.array(2), (), (np.array([False] * 5), 1),
], ids=str)
def test_combined_indices(key: Any) -> None:
    values = np.arange(5 * 3 * 4, dtype="<i8").reshape(5, 3, 4)
    rows, _ = counted(values)
    same(select(rows, key), values[key])


@pytest.mark.parametrize("key", [
    5, -6, (0, 3), (0, 0, 0, 0), [5], [-6], (Ellipsis, Ellipsis), "a", 1.5, [1.5], np.array([True] * 4), (1, "a"),
], ids=str)
def test_wrong_indices_raise_index_errors_and_read_nothing(key: Any) -> None:
    rows, data = counted(np.zeros((5, 3), "u1"))
    with pytest.raises(IndexError):
        select(rows, key)
    assert not data.ranges


def test_only_what_is_selected_is_read() -> None:
    values = np.arange(1000 * 50, dtype="<i4").reshape(1000, 50)
    for key, wanted in (
        (7, [(1400, 1600)]), ((7, 3), [(1412, 1416)]), ((7, slice(3, 5)), [(1412, 1420)]), (slice(2, 4), [(400, 800)]),
        ((slice(2, 4), 0), [(400, 604)]), (slice(0, 0), []), ([5, 6, 5], [(1000, 1400)]), ([2, 990], None), (-1, None),
        (np.arange(1000) == 3, [(600, 800)]), (slice(None, None, 500), [(0, 200), (100_000, 100_200)]),
    ):
        rows, data = counted(values)
        same(select(rows, key), values[key])
        assert data.ranges == wanted if wanted is not None else data.count <= 400
    rows, data = counted(values)
    assert np.array_equal(select(rows, slice(None, None, 2)), values[::2])
    assert len(data.ranges) == 1, "rows between near ones are read along"


def test_a_part_of_each_row_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(64 * 1000, dtype="<i4").reshape(64, 1000)
    monkeypatch.setattr("glassfs.library.arrays.PIECE", 16_000)
    rows, data = counted(values)
    for key in ((slice(None), 3), (None, slice(None, None, -1), slice(3, 5)), (slice(2, 40, 3), None, -1)):
        same(select(rows, key), values[key])
    assert data.most <= 16_000


def test_iteration_reads_some_rows_at_a_time() -> None:
    values = np.arange(20_000 * 100, dtype="<f8").reshape(20_000, 100)
    rows, data = counted(values)
    iterator = iter(iterated(rows))
    assert np.array_equal(next(iterator), values[0]) and data.count < values.nbytes / 4
    assert sum(1 for _ in iterator) == 19_999


def test_arrays_behave_like_those_of_numpy_h5py_and_zarr(data: glassfs.Library) -> None:
    state = data["run1.kdb/episodes/0/state"]
    whole = state.numpy()
    assert len(state) == len(whole) == 24 and state.shape == whole.shape
    assert (state.ndim, state.size, state.nbytes) == (2, whole.size, whole.nbytes)
    for key in (3, -1, slice(2, 9), Ellipsis, (slice(None), 0), [0, 5], whole[:, 0] > 0, (1, 2), (), (None, 1)):
        same(state[key], whole[key])
    assert [row.tolist() for row in state] == whole.tolist()
    assert np.size(state) == whole.size and np.mean(state) == whole.mean()
    part = state[:4]
    part += 1
    assert np.array_equal(state[:4], whole[:4]), "what an index selects is memory of its own"
    assert state == data["run1.kdb/episodes/0/state.npy"] != data["run1.kdb/episodes/1/state"]
    assert hash(state) == hash(data["run1.kdb/episodes/0/state"]) and bool(state)
    assert state.file_size == whole.nbytes + 128
    with pytest.raises(IndexError):
        state[24]


def test_what_is_no_array_cannot_be_indexed(data: glassfs.Library) -> None:
    document, folder = data["run1.kdb/episodes/0/meta/episode"], data["run1.kdb"]
    for entry in (document, folder, data):
        with pytest.raises(Unsuited):
            entry[0]
    for use in (len, list):
        with pytest.raises(NotADirectory):
            use(document)
    assert not hasattr(document, "size") and document.file_size > 0 and len(folder) == len(list(folder))
    with pytest.raises(NotADirectory):
        document["a"]


def test_single_values_and_images(tmp_path: Path, data: glassfs.Library) -> None:
    with IdvWriter(tmp_path / "a.idv") as view:
        view.add("X", np.zeros(2, "<f4"), metadata={"IsNormalized": True})
    with glassfs.open(tmp_path / "a.idv") as alone:
        value = alone["meta/columns/X/IsNormalized"]
        assert value[()] == value.numpy() and value.shape == () and value.size == 1
        for use in (len, list):
            with pytest.raises(TypeError):
                use(value)
    image = data["run1.kdb/episodes/0/images/front/000003"]
    same(image[10:20, 5], image.numpy()[10:20, 5])
    assert len(image) == image.shape[0] and next(iter(image)).shape == image.shape[1:]


def test_a_slice_of_a_compressed_column_reads_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(4000 * 8, dtype="<f4").reshape(4000, 8)
    with IdvWriter(tmp_path / "a.idv", rows_per_block=100) as view:
        view.add("Features", values, vector("Single", 8))
    blocks: list[int] = []
    vectors = Blocks.vectors
    monkeypatch.setattr(Blocks, "vectors", lambda self, number: blocks.append(number) or vectors(self, number))
    with glassfs.open(tmp_path / "a.idv") as alone:
        column = alone["columns/Features"]
        assert len(column) == 4000
        same(column[1234:1240], values[1234:1240])
        assert set(blocks) == {12}
        same(column[[3999, 150]], values[[3999, 150]])
        assert set(blocks) == {12, 1, 39}


def test_videos_give_frames(tmp_path: Path, data: glassfs.Library) -> None:
    expected = video()
    for path in ("wave.wshard/signal/rgb", "wave.wshard/signal/rgb.npy", "wave.wshard/signal/rgb.mp4"):
        film = data[path]
        assert film.shape == expected.shape and len(film) == FRAMES
        same(film[3], expected[3])
        same(film[1:4, ::2], expected[1:4, ::2])
        assert np.array_equal(film.numpy(), expected)
    for path in ("run1.kdb/episodes/0/images/front", "run1.kdb/episodes/0/images/front.mp4"):
        film = data[path]
        frames = [data[f"run1.kdb/episodes/0/images/front/{number:06d}"].numpy() for number in range(24)]
        assert film.shape == (24, *frames[0].shape) and film.dtype == np.uint8 and len(film) == 24
        same(film[-1], frames[-1])
        assert np.array_equal(film[4:9:2], frames[4:9:2]) and np.array_equal(film.numpy(), frames)
        assert not film.numpy().flags.writeable and film.numpy(copy=True).flags.writeable
        with pytest.raises(IndexError):
            film[24]


def test_a_frame_is_read_without_others() -> None:
    made: list[int] = []
    pixels = np.random.default_rng(1).integers(0, 256, (9, 8, 8, 3), np.uint8)

    def frame(number: int) -> EncodedImage:
        made.append(number)
        return EncodedImage(b"", Memory(jpeg(pixels[number])), "jpeg")

    film = Video(b"", 9, 10.0, 8, 8, frame)
    assert frame_of(film, 5).shape == frame_of(film, -1).shape == (8, 8, 3) and made == [5, 8]
    made.clear()
    rows = rows_of(film)
    assert rows is not None and select(rows, slice(7, 9)).shape == (2, 8, 8, 3)
    assert made == [0, 7, 8], "the first one gives the shape"
    for key in (np.s_[7:, 0], np.s_[8:6:-1, ::3, 1, 2], np.s_[[7, 8], 3]):
        made.clear()
        select(rows, key)
        assert sorted(made) in ([7, 8], [8]), "each is decoded once, and the last one is kept"


def test_frames_are_counted_by_steps_and_missing_ones_are_an_error(tmp_path: Path) -> None:
    image, small = np.full((4, 6, 3), 7, np.uint8), np.full((2, 2, 3), 9, np.uint8)
    with KinoWriter(tmp_path / "a.kdb") as writer:
        shots = [{"front": image}, {}, {"front": image + 1}, {"front": small}]
        writer.add_episode(np.zeros((4, 1), "<f4"), np.zeros((4, 1), "<f4"), images=shots)
    with glassfs.open(tmp_path / "a.kdb") as alone:
        film = alone["episodes/0/images/front"]
        assert film.shape == (4, 4, 6, 3) and np.array_equal(film[2], image + 1) and np.array_equal(film[3], small)
        with pytest.raises(IndexError, match="frame 1 is missing"):
            film[1]
        with pytest.raises(IndexError, match="frame 1 is missing"):
            film[:3]
        with pytest.raises(Damaged, match="frame 3 has the shape"):
            film[2:]


def test_plain_npy_files_are_read_in_part(tmp_path: Path) -> None:
    values = np.arange(1 << 18, dtype="<i4").reshape(-1, 64)
    np.save(tmp_path / "plain.npy", values)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(values[:9]))
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\1\0")
    np.save(tmp_path / "short.npy", values)
    with open(tmp_path / "short.npy", "r+b") as file:
        file.truncate(5000)
    with glassfs.open(tmp_path) as folder:
        same(folder["plain"][5:7], values[5:7])
        assert folder["plain"].shape == values.shape and len(folder["plain"]) == len(values)
        same(folder["fortran"][2:4], values[2:4])
        for name in ("broken", "short"):
            with pytest.raises(Damaged):
                folder[name][0]


def test_damage_is_raised_by_indexing(tmp_path: Path) -> None:
    with WShardWriter(tmp_path / "a.wshard") as writer:
        writer.add_channel("x", np.arange(20_000, dtype="<u4").view("u1").reshape(-1, 20, 20, 4), codec="zstd")
    raw = bytearray((tmp_path / "a.wshard").read_bytes())
    start = raw.index(b"\x28\xb5\x2f\xfd")
    raw[start + 20 : start + 60] = bytes(40)
    (tmp_path / "a.wshard").write_bytes(raw)
    with glassfs.open(tmp_path / "a.wshard") as alone, pytest.raises(Damaged, match="signal/x"):
        alone["signal/x"][5]

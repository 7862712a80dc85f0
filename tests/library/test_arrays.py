"""Arrays and pictures: the container's own bytes where they can be had, all else decoded once."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter, Stored, jpeg
from writers.wshard import WShardWriter

import glassfs
from glassfs.errors import Changed, Damaged, IsADirectory, Unsuited
from tests.library.conftest import FRAMES, video, write_store


def bottom(array: np.ndarray) -> object:
    """What an array's bytes belong to."""
    base: object = array
    while True:
        below = getattr(base, "base", None) if isinstance(base, np.ndarray) else getattr(base, "obj", None)
        if below is None:
            return base
        base = below


def test_what_is_stored_raw_is_not_copied(data: glassfs.Library) -> None:
    array = data["store.kas/large"].numpy()
    assert isinstance(bottom(array), mmap.mmap)
    assert not array.flags.writeable and array.flags.aligned and (array == 1).all() and array.shape == (100_000,)
    with pytest.raises(ValueError):
        array.flags.writeable = True
    own = data["store.kas/large"].numpy(copy=True)
    own += 1
    assert not isinstance(bottom(own), mmap.mmap) and (array == 1).all()
    assert isinstance(bottom(data["wave.wshard/signal/force"].numpy()), mmap.mmap)


def test_all_else_is_decoded(data: glassfs.Library) -> None:
    for path in ("store.kas/small", "wave.wshard/signal/rgb.npy", "run1.kdb/episodes/0/state"):
        array = data[path].numpy()
        assert not isinstance(bottom(array), mmap.mmap) and not array.flags.writeable
        with data[path].open() as file:
            expected = np.load(file)
        assert (array == expected).all() and array.dtype == expected.dtype == data[path].dtype
        assert array.shape == expected.shape == data[path].shape
        assert (np.asarray(data[path]) == expected).all()
    assert np.asarray(data["store.kas/small"], dtype="f8").dtype == np.float64


def test_arrays_that_do_not_lie_well_are_copied(tmp_path: Path) -> None:
    """A mapping of them would be slow, or not work at all, for programs in C."""
    with WShardWriter(tmp_path / "a.wshard", alignment=1) as writer:
        writer.add("signal/x", b"abc")
        writer.add_channel("force", np.arange(20_000, dtype=np.float64))
    with glassfs.open(tmp_path / "a.wshard") as data:
        array = data["signal/force"].numpy()
        offset = int(data["signal/force"].attributes["offset"])
    assert array.flags.aligned and (array == np.arange(20_000)).all()
    assert isinstance(bottom(array), mmap.mmap) == (offset % 8 == 0)


def test_a_wrong_checksum_is_found_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.wshard"
    with WShardWriter(path) as writer:
        writer.add_channel("force", np.arange(20_000, dtype=np.float64))
    with glassfs.open(path) as data:
        offset = int(data["signal/force"].attributes["offset"])
    with path.open("r+b") as file:
        file.seek(offset + 100)
        file.write(b"\xff")
    with glassfs.open(path) as data, pytest.raises(Damaged, match="checksum"):
        data["signal/force"].numpy()


def test_arrays_stay_in_the_version_that_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.kas"
    write_store(path)
    with glassfs.open(path) as data:
        entry = data["large"]
        array = entry.numpy()
        write_store(tmp_path / "b.kas", 2.0)
        os.replace(tmp_path / "b.kas", path)
        assert (array == 1).all()
        with contextlib.suppress(Changed):
            assert (entry.numpy() == 1).all()
    assert (array == 1).all()


def test_there_are_only_so_many_mappings_at_a_time(tmp_path: Path) -> None:
    """What comes after them is copied: none is refused."""
    with KastoreWriter(tmp_path / "a.kas") as store:
        for number in range(300):
            store.add(f"{number}", np.full(20_000, number))
    with glassfs.open(tmp_path / "a.kas") as data:
        arrays = [data[f"{number}"].numpy() for number in range(300)]
        assert len(os.listdir("/proc/self/fd")) < 250
    assert all((array == number).all() for number, array in enumerate(arrays))


MEMORY = """
import resource, sys
import glassfs
with glassfs.open(sys.argv[1], cache_size=16 << 20, spool=sys.argv[2]) as data:
    data["signal/small"].numpy()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    array = data["signal/large"].numpy()
    print(array.nbytes >> 10, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_array_takes_its_own_memory_and_no_more(tmp_path: Path, codec: str) -> None:
    with WShardWriter(tmp_path / "a.wshard", codec=codec) as writer:
        writer.add_channel("small", np.arange(10_000))
        writer.add_channel("large", np.arange(16 << 20, dtype=np.uint64))  # 128 MiB
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "a.wshard", tmp_path], capture_output=True, text=True, check=True,
    )
    size, grown = map(int, done.stdout.split())
    assert grown < size + (48 << 10)


def test_a_video_is_an_array_and_a_directory_of_frames(data: glassfs.Library) -> None:
    frames = data["wave.wshard/signal/rgb"]
    assert frames.shape == (FRAMES, 20, 30, 3) and frames.dtype == np.uint8
    assert (frames.numpy() == video()).all() and (frames["000003"].numpy() == video()[3]).all()
    picture = frames["000003"].image()
    assert picture.mode == "RGB" and (np.asarray(picture) == video()[3]).all()
    for path in ("run1.kdb/episodes/0/images", "run1.kdb/episodes/0"):
        with pytest.raises(IsADirectory):
            data[path].numpy()


def test_stored_pictures(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (16, 24, 3), np.uint8)
    grey = io.BytesIO()
    Image.fromarray(pixels[..., 0]).save(grey, "PNG")
    palette = io.BytesIO()
    Image.fromarray(pixels).convert("P").save(palette, "PNG")
    zeros = np.zeros((1, 1), np.float32)
    with KinoWriter(tmp_path / "a.kdb") as writer:
        images = {
            "jpeg": Stored(jpeg(pixels), 24, 16), "grey": Stored(grey.getvalue(), 24, 16),
            "palette": Stored(palette.getvalue(), 24, 16), "broken": Stored(jpeg(pixels)[:60], 24, 16),
        }
        writer.add_episode(zeros, zeros, images=[images], task="")
    with glassfs.open(tmp_path / "a.kdb") as data:
        place = data["episodes/0/images"]
        shapes = {name: place[f"{name}/000000"].shape for name in ("jpeg", "grey", "palette")}
        assert shapes == {"jpeg": (16, 24, 3), "grey": (16, 24), "palette": (16, 24, 4)}
        for name, shape in shapes.items():
            entry = place[f"{name}/000000"]
            assert entry.numpy().shape == shape and entry.dtype == np.uint8 and not entry.numpy().flags.writeable
            assert entry.numpy(copy=True).flags.writeable
            with entry.open() as file:
                assert (np.asarray(Image.open(file)) == np.asarray(entry.image())).all()
        assert (place["grey/000000"].numpy() == pixels[..., 0]).all()
        with pytest.raises(Damaged, match=r"broken/000000\.jpg: is"):
            place["broken/000000"].image()


def test_plain_files_of_a_folder(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "b.png")
    (tmp_path / "c.eps").write_text("%!PS")
    with glassfs.open(tmp_path) as data:
        assert data["a"].numpy().tolist() == [0, 1, 2, 3] and data["a"].shape == (4,)
        assert data["b"].numpy().shape == (2, 3, 3) and data["b"].image().getpixel((0, 0)) == (1, 2, 3)
        with pytest.raises(Unsuited):
            data["objects"].numpy()
        with pytest.raises(Unsuited):
            data["c"].image()


def header(text: str) -> bytes:
    """What begins a file of NumPy, with this instead of what NumPy writes of dtype and shape."""
    raw = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw


def shaped(count: int) -> bytes:
    return header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count},)}}")


@pytest.mark.parametrize("raw", [
    b"", b"\x93NUM", b"PK\x03\x04" + bytes(40), shaped(100), shaped(1 << 50), shaped(1 << 80), shaped(-1),
    header("{[]: 1}"), header("{'descr': '''"), header("(" * 110),
])
def test_files_that_are_no_arrays_are_damaged(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(raw)
    with glassfs.open(tmp_path) as data:
        for use in (data["a"].numpy, lambda: data["a"].shape, lambda: data["a"].dtype):
            with pytest.raises(Damaged, match=r"a\.npy: is not an array that can be read"):
                use()


def test_a_folder_beside_an_array_of_its_name(tmp_path: Path) -> None:
    """As an export of a film has it."""
    (tmp_path / "rgb").mkdir()
    np.save(tmp_path / "rgb.npy", np.arange(4))
    with glassfs.open(tmp_path) as data:
        assert data["rgb"].is_dir() and data["rgb"].numpy().tolist() == [0, 1, 2, 3]


def test_a_file_object(data: glassfs.Library) -> None:
    entry = data["run1.kdb/episodes/0/images/front/000003"]
    with entry.open() as file:
        whole = file.read()
        assert whole == entry.bytes() and file.seek(-8, io.SEEK_END) == len(whole) - 8 and file.read() == whole[-8:]
        assert file.seek(3) == 3 and file.read(4) == whole[3:7] and file.tell() == 7 and file.read(0) == b""
        assert file.seek(len(whole) + 5) and file.read() == b"" and not file.writable()
        for offset, whence in ((-1, io.SEEK_SET), (0, 3), (0, 4)):
            with pytest.raises(ValueError):
                file.seek(offset, whence)
    with pytest.raises(ValueError):
        file.read()


def test_a_file_object_reads_what_was_deleted(tmp_path: Path) -> None:
    write_store(tmp_path / "a.kas")
    with glassfs.open(tmp_path) as data, data["a.kas/large"].open() as file:
        (tmp_path / "a.kas").unlink()
        assert "a.kas" not in data
        assert (np.load(file) == 1).all()


def test_large_files_are_read_in_one_piece(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(raw := os.urandom(3 << 20))
    with glassfs.open(tmp_path) as data:
        assert data["a"].bytes() == raw

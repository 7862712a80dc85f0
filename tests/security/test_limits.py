"""Large indexes, a long status, a lack of threads, temporary files or descriptors, and names in errors."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from writers.idv import IdvWriter
from writers.kastore import DESCRIPTOR, HEADER, MAGIC, KastoreWriter
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter, write_chunked

from tests.mount.gallery import npy
from tests.security.conftest import Shared
from tests.security.daemons import Daemon
from tests.security.namespaces import bind, in_own_namespace
from tests.security.places import make_folder, read_or_refusal, write_file, write_store
from tests.security.users import Child
from tests.waiting import wait_until

KEYS = 1_000_000
MIB = 1 << 20
READERS = 17


# A8: indexes of a million names, and names of hundreds of components, take neither quadratic time nor much memory.


def write_many_keys(path: Path) -> None:
    """Write arrays of one byte under keys of seven digits. The ordinary writer would take minutes."""
    header, index = np.zeros((), HEADER), np.zeros(KEYS, DESCRIPTOR)
    keys = b"".join(b"%07d" % number for number in range(KEYS))
    first_key = HEADER.itemsize + index.nbytes
    first_array = -(-(first_key + len(keys)) // 8) * 8
    index["kind"], index["length"], index["key_length"] = 1, 1, 7
    index["key_start"] = first_key + 7 * np.arange(KEYS)
    index["start"] = first_array + 8 * np.arange(KEYS)
    header["magic"], header["major"], header["items"] = np.void(MAGIC), 1, KEYS
    header["size"] = first_array + 8 * (KEYS - 1) + 1
    arrays = np.zeros(KEYS, "<u8")
    arrays[:] = np.arange(KEYS) & 0xFF
    data = header.tobytes() + index.tobytes() + keys
    path.write_bytes((data.ljust(first_array, b"\0") + arrays.tobytes())[: int(header["size"])])


@pytest.mark.slow
def test_store_of_a_million_keys(shared: Shared, source: Path) -> None:
    write_many_keys(source / "many.kas")
    daemon = shared(source / "many.kas")
    memory = daemon.resident("VmHWM")
    assert (daemon.path / "0777777.npy").read_bytes()[-1] == 777_777 & 0xFF
    assert not (daemon.path / "1000000.npy").exists()
    assert memory <= 300 * MIB, f"{memory // MIB} MiB"


@pytest.mark.slow
def test_names_of_many_components(shared: Shared, source: Path) -> None:
    """500 names of 250 components each make 125,000 directories with one entry each."""
    names, parts = 500, 250
    store = source / "deep.kas"
    with KastoreWriter(store) as writer:
        for number in range(names):
            writer.add("/".join([f"{number:04d}"] * parts), np.zeros(1, "u1"))
    assert store.stat().st_size < MIB
    daemon = shared(store)
    words = ("find", daemon.path, "-path", daemon.path / ".glassfs", "-prune", "-o", "-printf", ".")
    assert len(subprocess.run(words, capture_output=True, check=True, timeout=600).stdout) == 1 + names * parts
    memory = daemon.resident("VmHWM")
    assert memory <= 200 * MIB, f"{memory // MIB} MiB"


# A2: the status is complete however long it is, and reading it delays no other request.


@pytest.mark.slow
def test_many_readers_of_a_long_status_do_not_stop_the_mount(shared: Shared, place: Path) -> None:
    """More readers than the daemon has threads, and beside them one that reads a file.

    The status is long because of its mount point, whose characters are six each in JSON.
    """
    point = place.joinpath(*["ü" * 100] * 10)
    point.mkdir(parents=True)
    daemon = shared(write_store(place / "a.kas"), write_store(place / "b.kas"), at=point)
    path = daemon.path / ".glassfs/status.json"

    def read_often() -> int:
        return sum(json.loads(path.read_bytes())["pid"] == daemon.pid for _ in range(5))

    readers = [Child(read_often) for _ in range(READERS)]
    beside = Child(read_or_refusal, daemon.path / "a.kas/word.npy")
    try:
        assert b"harmless" in beside.result()
        assert [reader.result() for reader in readers] == [5] * READERS
    finally:
        daemon.end()  # releases readers that hang


# A10: the daemon works without further threads and without a folder for temporary files.


def write_table(path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Write many blocks, which are decoded ahead of a sequential reader."""
    values = np.random.default_rng(5).normal(size=400_000)
    with IdvWriter(path, rows_per_block=8192) as writer:
        writer.add("Values", values)
    path.chmod(0o644)
    return values


@pytest.mark.slow
def test_mount_reads_without_further_threads(shared: Shared, source: Path) -> None:
    """Each thread's stack takes 1 GiB of address space, and 256 MiB are left: enough to read everything."""
    values = write_table(source / "table.idv")
    daemon = shared(source, before=["sh", "-c", 'ulimit -s 1048576; exec "$@"', "sh"])
    assert (daemon.path / "table.idv").is_dir()
    limit = daemon.resident("VmSize") + (256 << 20)
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit, limit))
    assert (daemon.path / "table.idv/columns/Values.npy").read_bytes() == npy(values)
    assert "Traceback" not in daemon.log_text()


@pytest.mark.slow
def test_mount_without_a_folder_for_temporary_files(fuse: None, place: Path, source: Path) -> None:
    """Only blocks too large for memory need one. TMPDIR does not exist, and the usual folders are read-only."""
    values = write_table(source / "table.idv")
    point = make_folder(place / "mnt")

    def inside() -> bytes:
        for folder in {os.path.realpath(name) for name in ("/tmp", "/var/tmp", "/usr/tmp", place)}:
            if os.path.isdir(folder):
                bind(folder, folder, is_read_only=True)
        before = ["env", "-C", str(place), f"TMPDIR={place}/nothing"]
        with Daemon([source], point, before=before, log=Path("/dev/null")) as daemon:
            return (daemon.path / "table.idv/columns/Values.npy").read_bytes()

    assert in_own_namespace(inside) == npy(values)


# D8: names in errors.


def test_errors_name_the_folder_of_a_file(shared: Shared, source: Path) -> None:
    for folder in ("left", "right"):
        make_folder(source / folder)
        write_file(source / folder / "header.kas", b"\x89KAS\r\n\x1a\n" + b"\xff" * 60)
        path = source / folder / "block.wshard"
        with WShardWriter(path, codec="none") as writer:
            writer.add("signal/what", b"a word of some length that a checksum covers")
        path.write_bytes(path.read_bytes().replace(b"of some length", b"of SOME length"))
    daemon = shared(source)
    for folder in ("left", "right"):
        assert os.getxattr(daemon.path / folder / "header.kas", "user.glassfs.error")
        with pytest.raises(OSError, match="Input/output"):
            (daemon.path / folder / "block.wshard/signal/what.bin").read_bytes()
    lines = daemon.log_text().splitlines()
    for folder in ("left", "right"):
        for name in ("header.kas", "block.wshard"):
            assert [line for line in lines if re.search(rf"\b{folder}/{name}\b", line)], (folder, name, lines)


# A1, A6: many containers, and containers of many files, are read with few descriptors.

CONTAINERS = 500
FEW = 200
CHUNK = 64 << 10


def read_part(path: Path | str, size: int, offset: int) -> bytes:
    """Read without read-ahead by the kernel."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["stay", "are deleted", "are changed"])
def test_partly_read_images_hold_no_descriptors(shared: Shared, place: Path, source: Path, fate: str) -> None:
    frame = np.full((100, 100, 3), 7, "u1")
    with KinoWriter(place / "one.kdb") as writer:
        writer.add_episode(np.zeros((1, 1), "f4"), np.zeros((1, 1), "f4"), images=[{"cam": frame}])
    for number in range(CONTAINERS):
        shutil.copyfile(place / "one.kdb", source / f"{number:04d}.kdb")
    daemon = shared(source)
    for number in range(CONTAINERS):
        shown = daemon.path / f"{number:04d}.kdb/episodes/0/images/cam/000000.png"
        assert read_part(shown, 100, 0).startswith(b"\x89PNG")
        if fate == "are deleted":
            (source / f"{number:04d}.kdb").unlink()
        elif fate == "are changed":
            os.utime(source / f"{number:04d}.kdb")
        if number % FEW == 0:  # what was deleted is given up a moment later
            wait_until(lambda: daemon.descriptors() < FEW)
    shutil.copyfile(place / "one.kdb", source / "new.kdb")
    wait_until(lambda: (daemon.path / "new.kdb").is_dir())
    with Image.open(io.BytesIO((daemon.path / "new.kdb/episodes/0/images/cam/000000.png").read_bytes())) as picture:
        assert np.array_equal(np.asarray(picture), frame)
    assert daemon.descriptors() < FEW


def bytes_read(pid: int) -> int:
    """Return how many bytes a process has read so far, from any file."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


@pytest.mark.slow
def test_image_read_in_pieces_is_read_once(shared: Shared, source: Path) -> None:
    """Also if so many other look-ups come between two pieces that the file has to be looked up again."""
    video = np.random.default_rng(1).integers(0, 255, (10, 300, 400, 3), np.uint8)
    with WShardWriter(source / "film.wshard", codec="none") as writer:
        writer.add_channel("rgb", video, modality="rgb")
    for number in range(100):
        write_store(source / f"{number:03d}.kas")
    daemon = shared(source)
    wait_until(lambda: daemon.status()["all_code_loaded"])  # reading modules counts as well
    shown = [daemon.path / f"film.wshard/signal/rgb/{t:06d}.png" for t in range(10)]
    size = shown[0].stat().st_size
    whole: list[list[bytes]] = [[] for _ in shown]
    read = 0
    for offset in range(0, size, CHUNK):
        before = bytes_read(daemon.pid)
        for parts, path in zip(whole, shown, strict=True):
            parts.append(read_part(path, CHUNK, offset))
        read += bytes_read(daemon.pid) - before
        for number in range(100):
            os.stat(daemon.path / f"{number:03d}.kas/word.npy")
    for t, parts in enumerate(whole):
        with Image.open(io.BytesIO(b"".join(parts))) as picture:
            assert np.array_equal(np.asarray(picture), video[t])
    assert video.nbytes <= read < 2.1 * video.nbytes, "once for the checksum of the block, once for the images"


@pytest.mark.slow
def test_manifest_of_more_parts_than_descriptors(shared: Shared, source: Path) -> None:
    parts = 1100
    reward, joints = np.arange(parts, dtype="<f4"), np.arange(parts * 2, dtype="<f4").reshape(parts, 2)
    manifest = write_chunked(source, "long", {"reward": reward, "signal/joints": joints}, 1)
    before = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
    alone, folder = shared(manifest, before=before), shared(source, before=before)
    for root in (alone.path, folder.path / manifest.name):
        assert root.is_dir(), "the manifest is shown as a plain file"
        assert (root / "reward.npy").read_bytes() == npy(reward)
        assert (root / "signal/joints.npy").read_bytes() == npy(joints)
        for number in range(0, parts, 7):
            part = root / f"chunks/{number:04d}"
            assert (part / "signal/joints.npy").read_bytes() == npy(joints[number : number + 1]), number
    for number in range(0, parts, 50):
        part = folder.path / f"long_chunk_{number:04d}.wshard"
        assert (part / "reward.npy").read_bytes() == npy(reward[number : number + 1])
    assert "Too many open files" not in alone.log_text() + folder.log_text()

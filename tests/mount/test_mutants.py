"""Damaged archives and tensors through a mount: what is shown is what the format's own library reads of the same bytes.

The library of glassfs has to return the same bytes as the mount.
"""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import glassfs as library
from glassfs.names import component
from tests.conftest import Scale
from tests.formats import test_npz_mutants as npz
from tests.formats import test_safetensors as safetensors
from tests.formats.npz_files import npy, saved, zipped
from tests.mount.conftest import Mounted
from tests.optional import package

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BATCH = 100
INNER = saved({"x": np.arange(30), "y": np.ones((3, 4), ">f4")})
NESTED = {
    "nested": zipped(("a.npy", npy(np.arange(5))), ("in.npz", INNER), ("b/in.npz", INNER)),
    "nested and deflated": zipped(("a.npy", npy(np.arange(5))), ("in.npz", INNER), compression=8),
}


def archives() -> Iterator[bytes]:
    chance = random.Random(12)
    sound = list((npz.SOUND | NESTED).values())
    while True:
        yield npz.damaged(chance.choice(sound), chance)


def tensors(count: int) -> Iterator[bytes]:
    """Damage headers and values in turn: most damaged headers are refused."""
    chance = random.Random(13)
    sound = [path.read_bytes() for path in sorted(safetensors.SAMPLES.glob("*.safetensors"))]
    sound = [data for data in sound if len(data) < 1 << 14]
    for damaged in safetensors.mutants(count // 2):
        yield damaged
        data = bytearray(chance.choice(sound))
        first = min(8 + int.from_bytes(data[:8], "little"), len(data) - 1)
        for _ in range(9):
            data[chance.randrange(first, len(data))] = chance.randrange(256)
        yield bytes(data)


def files_of(place: Path) -> dict[str, bytes]:
    """Return the bytes of all files that can be read, except for frames; "" is a container that is a plain file."""
    paths = [place]
    if place.is_dir():
        paths = [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
    found = {}
    for path in paths:
        if path.suffix != ".png":
            try:
                found[str(path.relative_to(place)).removeprefix(".")] = path.read_bytes()
            except OSError as error:
                assert error.errno in (errno.EIO, errno.EOPNOTSUPP)  # of members compressed in another way
    return found


def by_zipfile(data: bytes, above: str = "") -> dict[str, bytes | None]:
    """Return what Python reads, by the paths in a mount, also of archives in the archive."""
    found: dict[str, bytes | None] = {}
    for name, file in npz.by_zipfile(data).items():
        path = above + "/".join(component(part.encode("utf-8", "surrogateescape")) for part in name.split("/"))
        found[path] = file
        if file is not None and name.endswith(".npz"):
            found[f"{path}/{path.rpartition('/')[2]}"] = file
            found |= by_zipfile(file, f"{path}/")
    return found


def compare_archive(data: bytes, shown: dict[str, bytes]) -> int:
    """Return how many files were compared. A name that occurs twice is left to the tests of the library."""
    expected = by_zipfile(data) | {"": data}
    compared = 0
    for path, file in shown.items():
        right = None if f"{path}~2" in shown or path.endswith("~2") else expected.get(path)
        if right is not None:
            assert file == right, path
            compared += 1
    return compared


def compare_tensors(data: bytes, shown: dict[str, bytes], place: Path) -> int:
    if "" in shown:
        assert shown == {"": data}
        return 0
    place.write_bytes(data)
    if not safetensors.library_opens(place):
        return 0
    compared = 0
    with package("safetensors", "test").safe_open(place, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118
            found = shown.get(f"tensors/{component(name.encode())}.npy")
            # Wider types are widened, and what is neither 0 nor 1 is true.
            if found is not None and file.get_slice(name).get_dtype()[:2] not in ("BF", "F8", "BO"):
                values, right = np.load(io.BytesIO(found)), file.get_tensor(name)
                assert (values.dtype, values.shape, values.tobytes()) == (right.dtype, right.shape, right.tobytes())
                compared += 1
    return compared


@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_mutants_show_what_the_own_library_reads(
    mounted: Mounted, tmp_path: Path, scale: Scale, suffix: str, record_property: Callable[[str, object], None],
) -> None:
    count = scale(0, 300, 10_000)
    mutants = islice(archives(), count) if suffix == ".npz" else tensors(count)
    source = tmp_path / "source"
    source.mkdir()
    plain = compared = files = 0
    with mounted(source, options=["cache_size=64M"]) as mount:
        for number in range(-(-count // BATCH)):
            batch = list(islice(mutants, BATCH))
            folder = source / str(number)
            folder.mkdir()
            for place, data in enumerate(batch):
                (folder / f"{place}{suffix}").write_bytes(data)
            opened = library.open(folder)
            for place, data in enumerate(batch):
                name = f"{number}/{place}{suffix}"
                shown = files_of(mount.path / name)
                files += len(shown)
                plain += "" in shown
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if suffix == ".npz":
                        compared += compare_archive(data, shown)
                    else:
                        compared += compare_tensors(data, shown, tmp_path / "own.safetensors")
                below = {path: f"{place}{suffix}/{path}".rstrip("/") for path in shown}
                assert {path: opened[inner].bytes() for path, inner in below.items()} == shown, name
            shutil.rmtree(folder)
        assert mount.resident() < 250 << 20
        record_property("mutants", f"{count} mutants, {plain} plain files, {files} files, {compared} compared")
    assert compared > count and plain

"""A8: indexes of a million names, and names of hundreds of components, take neither quadratic time nor much memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import DESCRIPTOR, HEADER, MAGIC, KastoreWriter

from tests.security.conftest import Shared
from tests.security.places import make_folder

KEYS = 1_000_000
MIB = 1 << 20


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
def test_store_of_a_million_keys(shared: Shared, place: Path) -> None:
    store = make_folder(place / "source") / "many.kas"
    write_many_keys(store)
    daemon = shared(store)
    memory = daemon.resident("VmHWM")
    assert (daemon.path / "0777777.npy").read_bytes()[-1] == 777_777 & 0xFF
    assert not (daemon.path / "1000000.npy").exists()
    assert memory <= 300 * MIB, f"{memory // MIB} MiB"


@pytest.mark.slow
def test_names_of_many_components(shared: Shared, place: Path) -> None:
    """500 names of 250 components each make 125,000 directories with one entry each."""
    names, parts = 500, 250
    store = make_folder(place / "source") / "deep.kas"
    with KastoreWriter(store) as writer:
        for number in range(names):
            writer.add("/".join([f"{number:04d}"] * parts), np.zeros(1, "u1"))
    assert store.stat().st_size < MIB
    daemon = shared(store)
    words = ("find", daemon.path, "-path", daemon.path / ".glassfs", "-prune", "-o", "-printf", ".")
    assert len(subprocess.run(words, capture_output=True, check=True, timeout=600).stdout) == 1 + names * parts
    memory = daemon.resident("VmHWM")
    assert memory <= 200 * MIB, f"{memory // MIB} MiB"

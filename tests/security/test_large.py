"""A8: indexes of a million names, and names of hundreds of parts. Counted in the daemon's processor time, as a busy
machine makes everything else longer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import DESCRIPTOR, HEADER, MAGIC, KastoreWriter

from tests.security.conftest import Shared
from tests.security.daemons import run_within
from tests.security.places import make_folder

KEYS = 1_000_000
MIB = 1 << 20


def write_many_keys(path: Path) -> None:
    """Each with one byte; the writer would take minutes. Keys are numbers of seven digits."""
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
def test_a_store_of_a_million_keys(
    shared: Shared, place: Path, record_property: Callable[[str, object], None],
) -> None:
    store = make_folder(place / "source") / "many.kas"
    write_many_keys(store)
    daemon = shared(store)
    cpu, memory = daemon.cpu, daemon.memory("VmHWM")
    record_property("processor seconds, MiB", (cpu, memory // MIB))
    assert (daemon.path / "0777777.npy").read_bytes()[-1] == 777_777 & 0xFF
    assert not (daemon.path / "1000000.npy").exists()
    assert memory <= 300 * MIB, f"{memory // MIB} MiB"
    assert cpu <= 6, f"{cpu:.1f} s of processor time"


@pytest.mark.slow
def test_names_of_many_parts(
    shared: Shared, place: Path, record_property: Callable[[str, object], None],
) -> None:
    """2,000 names of 250 parts each in 2.7 MB: half a million directories, each with one thing in it."""
    names, parts = 2000, 250
    store = make_folder(place / "source") / "deep.kas"
    with KastoreWriter(store) as writer:
        for number in range(names):
            writer.add("/".join([f"{number:04d}"] * parts), np.zeros(1, "u1"))
    assert store.stat().st_size < 3 * MIB
    daemon = shared(store)
    counted = run_within(280, "sh", "-c", 'find "$1" -path "$1/.glassfs" -prune -o -print | wc -l', "sh", daemon.path)
    spent = daemon.cpu_seconds()
    record_property("processor seconds", spent)
    assert counted is not None, f"not within 280 s; {spent:.1f} s of processor time"
    assert int(counted) == 1 + names * parts
    memory = daemon.memory("VmHWM")
    assert memory <= 300 * MIB, f"{memory // MIB} MiB"
    # Six requests of the kernel for each directory take most of this, whoever answers them.
    assert spent <= 120, f"{spent:.1f} s of processor time"

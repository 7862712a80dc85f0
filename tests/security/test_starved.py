"""A10: the daemon works without further threads and without a folder for temporary files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from writers.idv import IdvWriter

from tests.mount.gallery import npy
from tests.security.conftest import Shared
from tests.security.daemons import Daemon
from tests.security.namespaces import bind, in_own_namespace
from tests.security.places import make_folder, write_store


def write_table(path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Write many blocks, which are decoded ahead of a sequential reader."""
    values = np.random.default_rng(5).normal(size=400_000)
    with IdvWriter(path, rows_per_block=8192) as writer:
        writer.add("Values", values)
    path.chmod(0o644)
    return values


@pytest.mark.slow
def test_mount_reads_without_further_threads(shared: Shared, place: Path) -> None:
    """Each thread's stack takes 1 GiB of address space, and 256 MiB are left: enough to read everything."""
    source = make_folder(place / "source")
    values = write_table(source / "table.idv")
    daemon = shared(source, before=["sh", "-c", 'ulimit -s 1048576; exec "$@"', "sh"])
    assert (daemon.path / "table.idv").is_dir()
    limit = daemon.resident("VmSize") + (256 << 20)
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit, limit))
    assert (daemon.path / "table.idv/columns/Values.npy").read_bytes() == npy(values)
    assert "Traceback" not in daemon.log_text()


@pytest.mark.slow
def test_mount_without_a_folder_for_temporary_files(fuse: None, place: Path) -> None:
    """Only blocks too large for memory need one. TMPDIR does not exist, and the usual folders are read-only."""
    source = make_folder(place / "source")
    write_store(source / "store.kas", b"word")
    values = write_table(source / "table.idv")
    point = make_folder(place / "mnt")

    def inside() -> tuple[bytes, bytes]:
        for folder in {os.path.realpath(name) for name in ("/tmp", "/var/tmp", "/usr/tmp", place)}:
            if os.path.isdir(folder):
                bind(folder, folder, is_read_only=True)
        with Daemon(
            [source], point, variables={"TMPDIR": str(place / "nothing")}, cwd=place,
            log=Path("/dev/null"),
        ) as daemon:
            return ((daemon.path / "store.kas/word.npy").read_bytes(),
                    (daemon.path / "table.idv/columns/Values.npy").read_bytes())

    store, table = in_own_namespace(inside)
    assert store == npy(np.frombuffer(b"word", "u1"))
    assert table == npy(values)

"""Everything at once: readers of three users, containers that change, hostile ones, and processes that are killed.

Readers may get errors only where a container is deleted, replaced or closed to them; afterwards the daemon has no more
descriptors, threads, memory and nodes than before.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.wshard import WShardWriter

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.connections import forget, nodes_after_forgetting
from tests.mount.mounts import Mount
from tests.security import bombs
from tests.security.test_fairness import list_images, processor_seconds, write_holes
from tests.security.users import STRANGER, Child, User
from tests.waiting import wait_until

USERS = (None, STRANGER, User(54322, 54322))
ATTACKER = User(54323, 54323)
READERS = 64
ATTACKERS = 12
CONTAINERS = 10
"""Of each group."""
MAY_FAIL = {
    "kept": (),
    "replaced": (errno.ESTALE,),
    "closed": (errno.ESTALE, errno.EACCES),
    "deleted": (errno.ESTALE, errno.ENOENT),
}
"""Groups of containers, with the errors that their readers may get. Root never gets EACCES."""
HEAD = struct.Struct("<8sII32s")
NPY = 128
CHANGE_SECONDS, KILL_SECONDS, FORGET_SECONDS = 0.1, 0.3, 30.0
LATE_SECONDS = 10.0
"""Ten times what the manual says of when a change is visible."""
MOST_PAUSE = 0.2
NODES, THREADS = 20, 40
"""Limits of an idle daemon: references to the root, the status and what concurrent processes use; threads."""
CACHE, PEAK, GROWTH = 32 << 20, 200 << 20, 60 << 20
MORE_DESCRIPTORS = 10
SETTLE_SECONDS = 30.0


def content(group: str, number: int, version: int) -> bytes:
    """Return bytes that say which container and version they are of, with a digest of the rest."""
    rest = random.Random(f"{group} {number} {version}").randbytes(2_000 + 17_000 * number)
    return HEAD.pack(group.encode(), number, version, hashlib.sha256(rest).digest()) + rest


def write(folder: Path, group: str, number: int, version: int) -> None:
    """Put this version in the place of the previous one by a rename; every third container is compressed."""
    values = np.frombuffer(content(group, number, version), np.uint8)
    new = folder.parent / "new"
    if number % 3:
        with KastoreWriter(new) as store:
            store.add("signal/data", values)
    else:
        with WShardWriter(new, codec="zstd") as writer:
            writer.add_channel("data", values)
    new.rename(folder / f"{group}{number}")


class Versions:
    """The version in place of each container, and since when, in memory that all processes share."""

    def __init__(self) -> None:
        self._words = memoryview(mmap(-1, 16 * CONTAINERS * len(MAY_FAIL))).cast("d")

    def _index(self, group: str, number: int) -> int:
        return 2 * (list(MAY_FAIL).index(group) * CONTAINERS + number)

    def get(self, group: str, number: int) -> int:
        return int(self._words[self._index(group, number)])

    def oldest(self, group: str, number: int) -> int:
        """Return the oldest version that a reader who opens it now may see."""
        index = self._index(group, number)
        is_late = time.monotonic() - self._words[index + 1] > LATE_SECONDS
        return int(self._words[index]) - (not is_late)

    def put(self, group: str, number: int, version: int) -> None:
        index = self._index(group, number)
        self._words[index + 1] = time.monotonic()
        self._words[index] = version


class Reader:
    """What one process reads until ``end``, in seconds of the monotonic clock; ``seen`` counts it."""

    def __init__(self, folder: Path, versions: Versions, seed: int) -> None:
        self.folder, self.versions = folder, versions
        self.chance = random.Random(seed)
        self.seen: Counter[str] = Counter()

    def run(self, end: float) -> Counter[str]:
        while time.monotonic() < end:
            group, number = self.chance.choice(list(MAY_FAIL)), self.chance.randrange(CONTAINERS)
            try:
                self.visit(group, number)
                self.seen[group] += 1
            except OSError as error:
                is_allowed = error.errno in MAY_FAIL[group] and not (error.errno == errno.EACCES and os.geteuid() == 0)
                name = errno.errorcode[error.errno or 0]
                self.seen[f"{group} {name}" if is_allowed else f"wrong: {group} {error}"] += 1
            time.sleep(self.chance.uniform(0, MOST_PAUSE))
        return self.seen

    def visit(self, group: str, number: int) -> None:
        path = self.folder / f"{group}{number}"
        oldest = self.versions.oldest(group, number)
        if self.chance.random() < 0.1:
            os.listdir(self.folder)
            os.listdir(path / "signal")
        descriptor = os.open(path / "signal/data.npy", os.O_RDONLY)
        try:
            # Otherwise the kernel answers most reads from the page cache.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            data = b""
            while piece := os.pread(descriptor, self.chance.choice((4096, 50_000, 1 << 20)), len(data)):
                data += piece
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        name, found, version, digest = HEAD.unpack_from(data, NPY)
        is_right = (name.rstrip(b"\0"), found, len(data)) == (group.encode(), number, size)
        if not is_right or digest != hashlib.sha256(data[NPY + HEAD.size :]).digest():
            self.seen[f"wrong: {path.name} has {len(data)} bytes of {size}, of {name!r} {found} version {version}"] += 1
        elif version < oldest:
            self.seen[f"wrong: {path.name} is still version {version}, not {oldest}"] += 1


class Disturbance:
    """Changes of the containers, hostile requests, and kills, one at a time in the test's own process."""

    def __init__(self, source: Path, mount: Mount, versions: Versions) -> None:
        self.source, self.mount, self.versions = source, mount, versions
        self.chance = random.Random(0)
        self.attackers: list[Child] = []
        self.killed: list[int] = []

    def run(self, end: float) -> None:
        next_kill = next_forget = 0.0
        while (now := time.monotonic()) < end:
            self.change()
            if now > next_kill:
                next_kill = now + KILL_SECONDS
                self.attack()
            if now > next_forget:
                next_forget = now + FORGET_SECONDS
                forget()
            time.sleep(CHANGE_SECONDS)
        self.stop()

    def change(self) -> None:
        group, number = self.chance.choice(("replaced", "closed", "deleted")), self.chance.randrange(CONTAINERS)
        path = self.source / f"{group}{number}"
        if group == "closed":
            path.chmod(self.chance.choice((0o600, 0o644)))
        elif group == "deleted" and path.exists():
            path.unlink()
        else:
            version = self.versions.get(group, number) + 1
            write(self.source, group, number, version)
            self.versions.put(group, number, version)

    def attack(self) -> None:
        """Start a hostile process, and kill one of them once there are enough."""
        if len(self.attackers) >= ATTACKERS:
            self.kill(self.attackers.pop(self.chance.randrange(ATTACKERS)))
        at, number = self.mount.path, self.chance.randrange(1000)
        if number % 3:
            self.attackers.append(Child(list_images, at, number, user=ATTACKER))
        else:
            views = ("by-task", "by-success", "episodes.jsonl", "episodes.parquet", "data.js")
            path = at / ".glassfs/views/shared.kdb" / self.chance.choice(views)
            self.attackers.append(Child(visit_view, path, user=ATTACKER))

    def kill(self, attacker: Child) -> None:
        attacker.kill()
        self.killed.append(attacker.pid)

    def stop(self) -> None:
        while self.attackers:
            self.kill(self.attackers.pop())


def visit_view(path: Path) -> None:
    """List a directory of links or read a table, as far as it can be."""
    with suppress(OSError):
        if path.is_dir():
            for name in os.listdir(path):
                os.listdir(path / name)
        else:
            path.read_bytes()


def is_left(pid: int) -> bool:
    """Return whether a child process that was killed has not ended."""
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    return False


def is_busy(pid: int) -> bool:
    """Return whether a process takes more processor time than an idle daemon, on a busy machine as well."""
    before = processor_seconds(pid)
    time.sleep(3)
    return processor_seconds(pid) - before > 0.15


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
@pytest.mark.usefixtures("as_root")
def test_mixed_load_leaves_nothing_behind(
    mounted: Mounted, public_folder: Path, scale: Scale, record_property: Callable[[str, object], None],
) -> None:
    source, at = public_folder / "source", public_folder / "mnt"
    source.mkdir()
    at.mkdir()
    versions = Versions()
    for group in MAY_FAIL:
        for number in range(CONTAINERS):
            write(source, group, number, 0)
    write_holes(source / "holes.kdb")
    bombs.write_episodes(source / "shared.kdb", 3_000)
    seconds = scale(1, 30, 3600)

    with mounted(source, options=[f"allow_other,cache_size={CACHE}"], at=at, foreground=True) as mount:
        warm = Reader(at, versions, 0)
        for group in MAY_FAIL:
            for number in range(CONTAINERS):
                warm.visit(group, number)
        assert not warm.seen
        memory = mount.resident()
        limits = {
            "references": NODES, "descriptors": mount.descriptors() + MORE_DESCRIPTORS, "deleted": 0,
            "threads": THREADS, "resident": memory + GROWTH, "busy": 0,
        }

        disturbance = Disturbance(source, mount, versions)
        end = time.monotonic() + seconds
        readers = [
            Child(Reader(at, versions, number).run, end, user=USERS[number % len(USERS)])
            for number in range(READERS)
        ]
        try:
            disturbance.run(end)
            seen = sum((reader.result() for reader in readers), Counter[str]())
        finally:
            disturbance.stop()
            for reader in readers:
                reader.kill()
        record_property("seen", {**seen, "killed": len(disturbance.killed)})
        assert not [what for what in seen if what.startswith("wrong")], seen
        assert all(seen[group] > READERS for group in MAY_FAIL), seen
        wait_until(lambda: not any(map(is_left, disturbance.killed)), SETTLE_SECONDS, "the end of killed processes")
        peak = mount.resident("VmHWM")
        assert peak < CACHE + PEAK

        def is_back() -> bool:
            figures.update(
                references=nodes_after_forgetting(mount)["references"], descriptors=mount.descriptors(),
                deleted=mount.deleted_files(), threads=mount.threads(),
                resident=mount.resident(), busy=is_busy(mount.pid),
            )
            return all(figures[name] <= limit for name, limit in limits.items())

        figures: dict[str, int] = {}
        with suppress(AssertionError):
            wait_until(is_back, SETTLE_SECONDS)
        record_property("figures", {**figures, "peak": peak, "resident before": memory, "limits": limits})
        assert is_back(), f"{figures} instead of {limits}"
    assert mount.process is not None
    assert mount.process.returncode == 0

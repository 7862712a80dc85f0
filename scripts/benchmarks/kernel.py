"""Work that is measured in the process that does it: ``python -m benchmarks.kernel NAME`` prints a result as JSON.

What a mount answers is asked by ``Kernel``, which sends the requests that a kernel would send and keeps names and pages
as one does. So nothing but the answers takes time: no system call of a client, no switch between processes.
"""

from __future__ import annotations

import cProfile
import gc
import json
import os
import pstats
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import glassfs
from glassfs import work
from glassfs.cache import BlockCache
from glassfs.datasets.selecting import open_sources
from glassfs.mount.engines.answers import Answers, Buffers
from glassfs.mount.engines.crew import Task
from glassfs.mount.errors import Failures
from glassfs.mount.operations import Operations
from glassfs.mount.process import tune_allocator, tune_collector
from glassfs.tree import ContainerSettings, Sources

LOOKUP, READ, READDIRPLUS = 1, 15, 44
ROOT, OWNER = 1, 0
PAGE, READ_AHEAD, LISTING = 4096, 128 << 10, 32 << 10  # bytes: a directory of the data needs two requests
NPY_HEADER, STATE, ACTION = 128, 56, 28
HEADER, OUT = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
READ_IN = struct.Struct("=QQIIQII")
ENTRY, DIRENT = struct.Struct("=4Q2I6Q10I"), struct.Struct("=QQII")
IDENT, SIZE, MODE = 0, 7, 15
"""Where fields of ENTRY are."""
DIRECTORY = 0o040000
CLOCK_CALLS = 2000

Sample = tuple[str, int, str]
Found = tuple[int, int, bool]
"""A node id, a size, and whether it is a directory."""


class Kernel:
    """A kernel for the mount of ``sources``, with a cache of names and of files that were read.

    ``seconds`` is the processor time that this thread took for all answers.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        settings = ContainerSettings(BlockCache(), has_catalogue=True)
        self.seconds = 0.0
        self.requests = 0
        self.profile: cProfile.Profile | None = None
        self._reply = b""
        self._operations = Operations(
            lambda: self._sources.root(), lambda: self._sources.root(), lambda: 0,
        )
        self._sources = open_sources(sources, settings, on_drop=self._operations.inodes.drop_nodes)
        self._answers = Answers(self._operations, Failures(), self._take)
        self._buffers = Buffers()
        self._found: dict[str, Found] = {"": (ROOT, 0, True)}
        self._read: set[int] = set()
        self._overhead = _overhead()

    @property
    def sources(self) -> Sources:
        return self._sources

    def look_up(self, path: str) -> Found:
        known = self._found.get(path)
        if known is None:
            folder, _, name = path.rpartition("/")
            parent = self.look_up(folder)[0]
            known = self._found[path] = _described(self._ask(LOOKUP, parent, name.encode() + b"\0"))
        return known

    def read(self, path: str) -> None:
        """Read the pages of a file, as far as they were not read before."""
        ident, size, _ = self.look_up(path)
        if ident not in self._read:
            self._read.add(ident)
            for offset in range(0, size, READ_AHEAD):
                asked = min(READ_AHEAD, -(-(size - offset) // PAGE) * PAGE)
                got = self._ask(READ, ident, READ_IN.pack(0, offset, asked, 0, 0, 0, 0))
                if len(got) != min(asked, size - offset):
                    raise OSError(f"{path}: {len(got)} bytes at {offset}")

    def list(self, path: str) -> list[str]:
        """List a directory with attributes; return the paths of the directories in it."""
        ident = self.look_up(path)[0]
        offset, inner = 0, []
        while True:
            got = memoryview(self._ask(READDIRPLUS, ident, READ_IN.pack(0, offset, LISTING, 0, 0, 0, 0)))
            if not got:
                return inner
            at = 0
            while at < len(got):
                found = _described(got[at:])
                _, offset, length, _ = DIRENT.unpack_from(got, at + ENTRY.size)
                at += ENTRY.size + DIRENT.size
                name = f"{path}/{bytes(got[at : at + length]).decode()}".lstrip("/")
                at += -(-length // 8) * 8
                if found[0]:
                    self._found[name] = found
                    if found[2]:
                        inner.append(name)

    @property
    def known(self) -> int:
        """The number of names."""
        return len(self._found) - 1

    def _ask(self, opcode: int, ident: int, body: bytes) -> bytes:
        self.requests += 1
        message = HEADER.pack(HEADER.size + len(body), opcode, self.requests, ident, OWNER, OWNER, 1, 0) + body
        task = Task(opcode, self.requests, ident, message, owner=OWNER)
        if self.profile is not None:
            self.profile.enable()
        begun = time.thread_time()
        work.begin(task)
        self._answers.answer(opcode, self.requests, ident, message, self._buffers)
        ended = time.thread_time()
        if self.profile is not None:
            self.profile.disable()
        self.seconds += ended - begun - self._overhead
        _, error, _ = OUT.unpack_from(self._reply)
        if error:
            raise OSError(-error, os.strerror(-error))
        return self._reply[OUT.size :]

    def _take(self, parts: Sequence[Any]) -> bool:
        self._reply = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        return True


def _described(reply: Any) -> Found:
    fields = ENTRY.unpack_from(reply)
    return fields[IDENT], fields[SIZE], fields[MODE] & 0o170000 == DIRECTORY


def _overhead() -> float:
    """Return the seconds that two readings of the clock are apart."""
    pairs = [(time.thread_time(), time.thread_time()) for _ in range(CLOCK_CALLS)]
    return min(after - before for before, after in pairs)


def open_containers(kernel: Kernel, names: Sequence[str]) -> int:
    """Look each container up, and list the directory of its episodes."""
    for name in names:
        kernel.look_up(name)
        kernel.list(f"{name}/episodes")
    return len(names)


def read_samples(kernel: Kernel, samples: Sequence[Sample]) -> int:
    """Read two arrays and an image for each sample, from names that are mostly new."""
    for episode, frame, camera in samples:
        kernel.read(f"{episode}/state.npy")
        kernel.read(f"{episode}/action.npy")
        kernel.read(f"{episode}/images/{camera}/{frame:06d}.jpg")
    return len(samples)


def find(kernel: Kernel, paths: Sequence[str]) -> int:
    """List these directories and all below them with attributes; return the number of entries."""
    waiting = list(paths)
    before = kernel.known
    while waiting:
        waiting += kernel.list(waiting.pop())
    return kernel.known - before


def read_episodes(kernel: Kernel, numbers: Sequence[int]) -> int:
    """Look up and read the description of each of these episodes."""
    for number in numbers:
        kernel.read(f"episodes/{number}/meta/episode.json")
    return len(numbers)


def load_samples(data: Any, samples: Sequence[Sample]) -> int:
    """Read two rows of arrays and the bytes of an image for each sample, through the library."""
    for path, frame, camera in samples:
        episode = data[path]
        for name in ("state", "action"):
            episode[name].numpy()[frame].copy()
        episode[f"images/{camera}/{frame:06d}"].bytes()
    return len(samples)


WORK: dict[str, Callable[[Any, Any], int]] = {
    function.__name__: function for function in (open_containers, read_samples, find, read_episodes)
}


def measured(name: str, root: str, asked: Any, is_profiled: bool = False) -> dict[str, float]:
    """Do this work; return how many things were done, the seconds of this thread, and those of all others together."""
    tune_allocator()
    profile = cProfile.Profile(time.thread_time) if is_profiled else None
    if name == load_samples.__name__:
        import numpy  # noqa: F401  # not while it is measured

        with glassfs.open(root) as data:
            load_samples(data, asked[:1])  # loads the code
        with glassfs.open(root) as data:
            gc.collect()  # with Python's own settings, as in programs that use the library
            process, begun = time.process_time(), time.thread_time()
            if profile is not None:
                profile.enable()
            count = load_samples(data, asked)
            if profile is not None:
                profile.disable()
            seconds = time.thread_time() - begun
            process = time.process_time() - process
        _show(profile)
        return {"count": count, "seconds": seconds, "others": process - seconds}
    first = Kernel([root])
    WORK[name](first, asked[:1])  # loads the code
    first.sources.close()
    kernel = Kernel([root])
    kernel.look_up("")
    kernel.profile = profile
    _settle()
    process, begun = time.process_time(), time.thread_time()
    count = WORK[name](kernel, asked)
    others = time.process_time() - process - (time.thread_time() - begun)
    kernel.sources.close()
    _show(profile)
    return {"count": count, "seconds": kernel.seconds, "others": others, "requests": kernel.requests}


def _settle() -> None:
    """Have the garbage collector run as in a mount."""
    gc.collect()
    tune_collector()


def _show(profile: cProfile.Profile | None) -> None:
    if profile is not None:
        with suppress(ValueError):
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], *json.load(sys.stdin), is_profiled="profile" in sys.argv[2:])))

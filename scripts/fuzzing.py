"""Damage containers at random, open them and read everything; only GlassfsError may be raised.

Each round takes a container, changes some bytes of it (bits, integers at the edges, runs cut out, repeated or taken
from another one), and gives it to a worker process with limited time and memory. Every other container is read with
all views. A container that reaches new lines of glassfs is damaged further in later rounds. A worker that raises
anything else, hangs, or dies is a crash; its container is kept in a folder, to become a test. With --live, containers
are read through a mount (fuzzing_live.py).
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import mutants
from fuzzing_live import Side, fuzz_live, is_enough

MEMORY = 2 << 30
TIMEOUT_SECONDS = 20.0
"""Processor time for one container; a worker that only waits has five times as long."""
READ = 4 << 20
FILES = 300
VIEWED = 1000
"""Files and directories to read in a container, without views and with them."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=None, help="time limit (60, or until --count are done)")
    parser.add_argument("--count", type=int, default=None, help="how many containers")
    parser.add_argument("--live", action="store_true", help="through a mount, compared with the library")
    parser.add_argument("--views", default="", metavar="NAMES", help="with --live: both with these views")
    parser.add_argument("--format", default="", help="only containers whose format or name has this in it")
    parser.add_argument("--seed", type=int, default=None, help="for the same damage again")
    parser.add_argument("--keep", type=Path, default=Path("crashes"), help="where containers that crash go")
    parser.add_argument("samples", nargs="*", type=Path, help="more containers, or folders of them, to damage")
    arguments = parser.parse_args()
    places = arguments.samples + (mutants.real_places() if arguments.live else [])
    seeds = mutants.seeds(places, arguments.format)
    if not seeds:
        print("fuzz: no container to damage", file=sys.stderr)
        return 2
    chance = random.Random(arguments.seed)
    if arguments.live:
        limits = arguments.count, arguments.seconds
        return fuzz_live(seeds, chance, *limits, arguments.keep, arguments.views)
    counts: Counter[str] = Counter()
    sound, found = len(seeds), 0
    worker = _Worker()
    begun = time.monotonic()
    while not is_enough(sum(counts.values()), arguments.count, arguments.seconds, begun):
        seed = chance.choice(seeds)
        data = mutants.damaged(seed.data, seeds, chance)
        outcome, lines = worker.look_at(data)
        counts[outcome if outcome in ("opened", "refused") else "crashed"] += 1
        if outcome not in ("opened", "refused"):
            arguments.keep.mkdir(parents=True, exist_ok=True)
            kept = arguments.keep / f"{counts['crashed']:04d}-{seed.name}"
            kept.write_bytes(data)
            print(f"{kept}: {outcome}", file=sys.stderr)
        elif lines and len(data) <= mutants.LARGEST:
            found += lines
            seeds.append(mutants.Seed(seed.name, data))
    worker.end()
    total = sum(counts.values())
    summary = ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in ("opened", "refused", "crashed"))
    print(f"{total:,} containers: {summary}; {len(seeds) - sound} of them reached {found:,} lines")
    return 1 if counts["crashed"] else 0


class _Worker(Side):
    """A process that opens containers. Its time limit is one of processor time."""

    def __init__(self) -> None:
        super().__init__(_work)

    def look_at(self, data: bytes) -> tuple[str, int]:
        """Return ``opened``, ``refused`` or the error, and how many lines were reached for the first time."""
        self.ask(data)
        answer = self.answer()
        return (answer, 0) if isinstance(answer, str) else answer

    def is_answered(self) -> bool:
        clock = (~(self.process.pid or 0) << 3) | 2  # clock_getcpuclockid(3)
        end, used = time.monotonic() + 5 * TIMEOUT_SECONDS, time.clock_gettime(clock)
        while not self.pipe.poll(0.2):
            if time.monotonic() > end or time.clock_gettime(clock) - used > TIMEOUT_SECONDS:
                return False
        return True


class _Coverage:
    """Count the lines of glassfs that this process has reached. Code whose lines are all known is not traced."""

    def __init__(self) -> None:
        self.count = 0
        self._left: dict[CodeType, set[int]] = {}

    def watch(self, frame: FrameType, event: str, argument: object) -> Any:
        """Trace a call; a function for ``sys.settrace``."""
        left = self._left.get(frame.f_code)
        if left is None:
            is_ours = f"{os.sep}glassfs{os.sep}" in frame.f_code.co_filename
            left = {line for *_, line in frame.f_code.co_lines() if line} if is_ours else set()
            self._left[frame.f_code] = left
        return self._reach if left else None

    def _reach(self, frame: FrameType, event: str, argument: object) -> Any:
        left = self._left[frame.f_code]
        if frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self.count += 1
        return self._reach


def _work(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    coverage = _Coverage()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "damaged")
        while True:
            Path(path).write_bytes(pipe.recv())
            before = coverage.count
            sys.settrace(coverage.watch)
            try:
                outcome = _look(path)
            except Exception:
                outcome = traceback.format_exc()
            finally:
                sys.settrace(None)
            pipe.send((outcome, coverage.count - before))


def _look(path: str) -> str:
    """Open the container at ``path`` and read some of every file in it, with views for half of all containers."""
    from glassfs.errors import GlassfsError, Refused
    from glassfs.library import open_tree
    from glassfs.tree import File

    has_views = zlib.crc32(Path(path).read_bytes()) % 2
    try:
        tree = open_tree(path, cache_size=16 << 20, views="all" if has_views else "")
    except Refused:
        return "refused"
    with tree:
        for _, node in islice(tree.walk(on_error=lambda place, error: None), VIEWED if has_views else FILES):
            try:
                node.xattrs()
                if isinstance(node, File):
                    node.read(0, min(node.size, READ))
                    node.read(max(0, node.size - 100), 100)
            except GlassfsError:
                continue
    if has_views:
        _look_at_episodes(path)
    return "opened"


def _look_at_episodes(path: str) -> None:
    """Read the table of episodes in a container, and each episode's record and columns."""
    from glassfs.cache import BlockCache
    from glassfs.content import Collection, Recording, members_of
    from glassfs.errors import GlassfsError
    from glassfs.formats.registry import Opening, open_container
    from glassfs.source.local import LocalStore

    folder, name = os.path.split(path)
    container = open_container(Opening(LocalStore(folder).open((name,)), BlockCache(16 << 20)))
    for name in container.tables:
        with suppress(GlassfsError):
            summary = container.summary(name)
            records = summary.table.records if summary is not None else None
            for block in range(min(records.blocks, 10) if records is not None else 0):
                with suppress(GlassfsError):
                    records.block(block)
    waiting = [container.root]
    for collection in waiting:
        with suppress(GlassfsError):
            for _, content in islice(members_of(collection), FILES):
                if isinstance(content, Collection) and len(waiting) < FILES:
                    waiting.append(content)
                elif isinstance(content, Recording):
                    for ask in (content.record, content.steps.columns, content.cameras):
                        with suppress(GlassfsError):
                            ask()
    container.close()


if __name__ == "__main__":
    sys.exit(main())

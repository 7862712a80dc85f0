"""Damages containers at random, opens what comes out, and reads all of it: only GlassfsError may come of that.

Each round takes a container, changes some bytes of it (bits, integers at the edges, runs cut out, repeated or taken
from another one), and gives it to a worker process that has little time and memory. What reaches lines of glassfs that
nothing has reached before is damaged further in later rounds. A worker that raises anything else, hangs, or dies is a
crash; the container is kept in a folder, to become a test.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from make_samples import write_all

MEMORY = 2 << 30
PATIENCE = 20.0
"""Seconds of processor time for one container; or five times as long, if it only waits."""
LARGEST = 256 << 10
READ = 4 << 20
FILES = 300
EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--format", default="", help="only containers whose format or name has this in it")
    parser.add_argument("--seed", type=int, default=None, help="for the same damage again")
    parser.add_argument("--keep", type=Path, default=Path("crashes"), help="where containers that crash go")
    parser.add_argument("samples", nargs="*", type=Path, help="more containers, or folders of them, to damage")
    arguments = parser.parse_args()
    seeds = _seeds(arguments.samples, arguments.format)
    if not seeds:
        print("fuzz: no container to damage", file=sys.stderr)
        return 2
    chance = random.Random(arguments.seed)
    counts: Counter[str] = Counter()
    sound, found = len(seeds), 0
    worker = _Worker()
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        seed = chance.choice(seeds)
        data = damaged(seed.data, seeds, chance)
        outcome, lines = worker.look_at(data)
        counts[outcome if outcome in ("opened", "refused") else "crashed"] += 1
        if outcome not in ("opened", "refused"):
            arguments.keep.mkdir(parents=True, exist_ok=True)
            kept = arguments.keep / f"{counts['crashed']:04d}-{seed.name}"
            kept.write_bytes(data)
            print(f"{kept}: {outcome}", file=sys.stderr)
        elif lines and len(data) <= LARGEST:
            found += lines
            seeds.append(Seed(seed.name, data))
    worker.end()
    total = sum(counts.values())
    told = ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in ("opened", "refused", "crashed"))
    print(f"{total:,} containers: {told}; {len(seeds) - sound} of them reached {found:,} lines")
    return 1 if counts["crashed"] else 0


class Seed(NamedTuple):
    """A container to damage; ``name`` is that of the sound one it comes from."""

    name: str
    data: bytes


def _seeds(places: list[Path], wanted: str) -> list[Seed]:
    """Sound containers, none larger than LARGEST."""
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder))
        paths = list(Path(folder).iterdir())
        for place in places:
            paths += [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else [place]
        chosen = [path for path in sorted(paths) if wanted in path.name and path.suffix != ".json"]
        return [Seed(path.name, path.read_bytes()) for path in chosen if path.stat().st_size <= LARGEST]


def damaged(data: bytes, others: list[Seed], chance: random.Random) -> bytes:
    """A copy with one to eight changes, most of them near the beginning or the end, where the indexes are."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5, 8))):
        if not changed:
            break
        spread = chance.choice((64, 512, 4096, len(changed)))
        place = chance.randrange(min(spread, len(changed)))
        if chance.random() < 0.3:
            place = len(changed) - 1 - place
        chance.choice(_CHANGES)(changed, place, others, chance)
    return bytes(changed)


def _flip(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    data[place] ^= 1 << chance.randrange(8)


def _edge(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    size = chance.choice((1, 2, 4, 8))
    data[place : place + size] = (chance.choice(EDGES) & (1 << 8 * size) - 1).to_bytes(size, "little")


def _cut(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    del data[place : place + chance.choice((1, 4, 64, len(data)))]


def _repeat(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    size = chance.choice((1, 8, 64, 1024))
    data[place:place] = data[place : place + size] * chance.choice((1, 2, 100))


def _foreign(data: bytearray, place: int, others: list[Seed], chance: random.Random) -> None:
    other = chance.choice(others).data
    start = chance.randrange(len(other) or 1)
    size = chance.choice((4, 48, 512))
    data[place : place + size] = other[start : start + size]


_CHANGES: tuple[Callable[[bytearray, int, list[Seed], random.Random], None], ...] = (
    _flip, _edge, _edge, _cut, _repeat, _foreign,
)


class _Worker:
    """A process that looks at containers, started again when one was too much for it."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._here, there = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_work, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def look_at(self, data: bytes) -> tuple[str, int]:
        """``opened``, ``refused``, or what went wrong; and how many lines were reached for the first time."""
        self._here.send_bytes(data)
        try:
            if self._answers():
                outcome, lines = self._here.recv()
                return str(outcome), int(lines)
            outcome = f"hangs: no answer after {PATIENCE:.0f} s of processor time"
        except EOFError:
            outcome = "the process died"
        self.end()
        self._start()
        return outcome, 0

    def _answers(self) -> bool:
        """Whether an answer comes in time, on a busy machine as well."""
        clock = (~(self._process.pid or 0) << 3) | 2  # clock_getcpuclockid(3)
        end, used = time.monotonic() + 5 * PATIENCE, time.clock_gettime(clock)
        while not self._here.poll(0.2):
            if time.monotonic() > end or time.clock_gettime(clock) - used > PATIENCE:
                return False
        return True

    def end(self) -> None:
        self._process.kill()
        self._process.join()


class _Coverage:
    """The lines of glassfs that this process has reached. Code whose lines are all known is not watched any more."""

    def __init__(self) -> None:
        self.count = 0
        self._left: dict[CodeType, set[int]] = {}

    def watch(self, frame: FrameType, event: str, argument: object) -> Any:
        """For ``sys.settrace``."""
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
            Path(path).write_bytes(pipe.recv_bytes())
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
    """Opens the container at ``path`` and reads some of every file in it."""
    import glassfs
    from glassfs.errors import GlassfsError, Refused
    from glassfs.tree import File

    try:
        tree = glassfs.open(path, cache_size=16 << 20)
    except Refused:
        return "refused"
    with tree:
        for _, node in islice(tree.walk(on_error=lambda place, error: None), FILES):
            try:
                node.xattrs()
                if isinstance(node, File):
                    node.read(0, min(node.size, READ))
                    node.read(max(0, node.size - 100), 100)
            except GlassfsError:
                continue
    return "opened"


if __name__ == "__main__":
    sys.exit(main())

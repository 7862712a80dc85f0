"""Fuzz a live mount: it must show what the library shows of the same damaged bytes.

Batches of damaged copies are put into a mounted folder. One process walks and reads them through the mount, another one
with ``glassfs.open``, and ``find -ls`` lists each batch. A finding is: bytes or sizes that differ, bytes on one side
and an error on the other, a timeout, a traceback in the daemon's log, or too much memory or too many descriptors of the
daemon. The containers of each finding are kept in a folder, with a report.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzzing_reading import Tree, differences, look_at_library, look_at_mount, serve
from mutants import Seed, damaged

FORK = multiprocessing.get_context("fork")
BATCH = 40
TIMEOUT_SECONDS = 60.0
"""For one container, on a busy machine as well."""
SECONDS = 60.0
STARTING = 60.0
MOST_MEMORY = 300 << 20
MOST_DESCRIPTORS = 200
OPTIONS = "cache_size=64M"
GLASSFS = (sys.executable, "-m", "glassfs")
AWKWARD = (
    "new\nline", "\x1b[31mred", os.fsdecode(b"caf\xe9"), " blank ", "-o", "%41%", "back\\slash", "\u202etxt.wshard",
    ".hidden", "...", "'; echo", "x" * 255,
)


def is_enough(done: int, count: int | None, seconds: float | None, begun: float) -> bool:
    """Return whether the count or the time is reached; without either, after SECONDS."""
    if seconds is None and count is None:
        seconds = SECONDS
    return (count is not None and done >= count) or (seconds is not None and time.monotonic() - begun >= seconds)


def fuzz_live(
    seeds: Sequence[Seed], chance: random.Random, count: int | None, seconds: float | None, keep: Path,
    views: str = "",
) -> int:
    """Fuzz, print a summary line and return the exit status."""
    begun = time.monotonic()
    kinds: defaultdict[str, list[Seed]] = defaultdict(list)
    for seed in seeds:
        kinds[Path(seed.name).suffix].append(seed)
    findings = Findings(keep)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="glassfs-fuzz-") as name:
        place = Path(name)
        source = place / "source"
        source.mkdir()
        try:
            daemon = Daemon(place, views)
        except subprocess.CalledProcessError:
            return 2  # glassfs has printed the reason
        library = Side(partial(serve, look=partial(look_at_library, views=views)))
        mounted = Side(partial(serve, look=look_at_mount))
        try:
            while not is_enough(counts["done"], count, seconds, begun):
                number = BATCH if count is None else min(BATCH, count - counts["done"])
                batch = source / f"batch{counts['batches']}"
                for position in range(number):
                    seed = chance.choice(kinds[chance.choice(list(kinds))])
                    write_mutant(batch / f"{position:02d}", seed, seeds, chance)
                counts.update(compare(batch, daemon, library, mounted, findings))
                counts["batches"] += 1
                is_well = daemon.is_well(batch, findings)
                shutil.rmtree(batch)
                if not is_well:
                    break
        finally:
            library.end()
            mounted.end()
            daemon.end()
    rate = counts["done"] / (time.monotonic() - begun)
    print(
        f"{counts['done']:,} live mutants: {counts['opened']:,} opened, "
        f"{counts['refused']:,} refused, {counts['files']:,} files read; {counts['differences']} differences, "
        f"{daemon.tracebacks} tracebacks, {findings.count} findings; daemon at most {daemon.memory >> 20} MB and "
        f"{daemon.descriptors} descriptors; {rate:.1f} a second"
    )
    return 1 if findings.count else 0


class Findings:
    """Findings, each in a folder with the container and a report."""

    def __init__(self, keep: Path) -> None:
        self.count = 0
        self._keep = keep

    def add(self, folder: Path, report: str) -> None:
        self.count += 1
        kept = self._keep / f"live{self.count:04d}"
        while kept.exists():
            kept = kept.with_name(f"{kept.name}+")
        shutil.copytree(folder, kept)
        (kept / "report.txt").write_text(f"{report}\n", encoding="utf-8", errors="backslashreplace")
        first = report.splitlines()[0].encode("ascii", "backslashreplace").decode()
        print(f"{kept}: {first}", file=sys.stderr)


def write_mutant(folder: Path, seed: Seed, others: Sequence[Seed], chance: random.Random) -> None:
    """Write a damaged container into a folder of its own, sometimes under an awkward name."""
    folder.mkdir(parents=True)
    name = seed.name
    if not seed.beside and chance.random() < 0.2:
        name = chance.choice(AWKWARD)
    (folder / name).write_bytes(damaged(seed.data, list(others), chance))
    for neighbor, data in seed.beside:
        (folder / neighbor).write_bytes(data)


def compare(batch: Path, daemon: Daemon, library: Side, mounted: Side, findings: Findings) -> Counter[str]:
    """Read each mutant of a batch on both sides, and run ``find`` over the batch."""
    counts: Counter[str] = Counter()
    shown = daemon.point / batch.name
    for folder in sorted(batch.iterdir()):
        library.ask(folder)
        mounted.ask(shown / folder.name)
        expected, found = library.answer(), mounted.answer()
        counts["done"] += 1
        for side, answer in (("library", expected), ("mount", found)):
            if isinstance(answer, str):
                findings.add(folder, f"{side}: {answer}")
        if isinstance(expected, str) or isinstance(found, str):
            continue
        lines = difference_of(expected, found)
        if lines:
            counts["differences"] += len(lines)
            findings.add(folder, "\n".join(lines))
        for tree in expected.values():
            counts["opened" if tree[""].kind == "d" else "refused"] += 1
            counts["files"] += sum(bool(seen.parts) for seen in tree.values())
        counts["entries"] += 1 + sum(map(len, found.values()))
        counts["unsized"] += sum(seen.size is None for tree in found.values() for seen in tree.values())
    timeout = BATCH * TIMEOUT_SECONDS
    try:
        listed = subprocess.run(["find", shown, "-ls"], capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        findings.add(batch, f"find -ls has not ended after {timeout:.0f} s")
    else:
        count = listed.stdout.count(b"\n")
        least = 1 + counts["entries"] - counts["unsized"]
        if not least <= count <= 1 + counts["entries"] and counts["entries"] < 20_000:
            findings.add(batch, f"find -ls has {count} lines, there are {least} to {1 + counts['entries']} entries")
    return counts


def difference_of(expected: dict[str, Tree], found: dict[str, Tree]) -> list[str]:
    """Return the differences of the containers in a folder. A single one may be shown under an escaped name."""
    if len(expected) == len(found) == 1:
        return differences(*expected.values(), *found.values())
    lines = [f"{name!a} is shown by one side only" for name in sorted(expected.keys() ^ found.keys())]
    for name in sorted(expected.keys() & found.keys()):
        lines += [f"{name}: {line}" for line in differences(expected[name], found[name])]
    return lines


class Side:
    """A process that runs ``work`` with a pipe: an answer to each question. It is restarted if it does not answer."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        self._work = work
        self._start()

    def _start(self) -> None:
        self.pipe, there = FORK.Pipe()
        self.process = FORK.Process(target=self._work, args=(there,), daemon=True)
        self.process.start()
        there.close()

    def ask(self, question: object) -> None:
        self.pipe.send(question)

    def answer(self) -> Any:
        """Return the answer, or why there is none."""
        try:
            if self.is_answered():
                return self.pipe.recv()
            reason = "hangs: no answer in time"
        except EOFError:
            reason = "the process died"
        self.end()
        self._start()
        return reason

    def is_answered(self) -> bool:
        """Return whether an answer comes in time."""
        return self.pipe.poll(TIMEOUT_SECONDS)

    def end(self) -> None:
        self.process.kill()
        self.process.join(STARTING)


class Daemon:
    """The mount of a folder, and its daemon's peak memory and descriptors."""

    def __init__(self, place: Path, views: str) -> None:
        self.point, self._log = place / "mnt", place / "log"
        self.point.mkdir()
        self.memory = self.descriptors = self.tracebacks = 0
        options = f"{OPTIONS},views={views}" if views else OPTIONS
        subprocess.run(
            [*GLASSFS, "mount", "-o", options, "--log-file", self._log, place / "source", self.point],
            check=True, timeout=STARTING,
        )
        self.pid: int = json.loads((self.point / ".glassfs/status.json").read_bytes())["pid"]

    def is_well(self, batch: Path, findings: Findings) -> bool:
        """Return whether the daemon still runs. Each limit that it exceeds is a finding, once."""
        log = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            numbers = os.listdir(f"/proc/{self.pid}/fd")
        except FileNotFoundError:
            findings.add(batch, f"the daemon has died\n{log[-10_000:]}")
            return False
        memory = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
        if self.memory < MOST_MEMORY <= memory:
            findings.add(batch, f"the daemon had {memory >> 20} MB")
        descriptors = len(numbers)
        if self.descriptors < MOST_DESCRIPTORS <= descriptors:
            files = sorted(self._file(number) for number in numbers)
            findings.add(batch, "\n".join([f"the daemon has {descriptors} descriptors", *files]))
        tracebacks = log.count("Traceback")
        if tracebacks > self.tracebacks:
            findings.add(batch, f"{tracebacks} tracebacks in the log\n{log[log.rindex('Traceback'):][:10_000]}")
        self.memory, self.descriptors = max(self.memory, memory), max(self.descriptors, descriptors)
        self.tracebacks = tracebacks
        return True

    def _file(self, number: str) -> str:
        try:
            return os.readlink(f"/proc/{self.pid}/fd/{number}")
        except FileNotFoundError:
            return "closed since"

    def end(self) -> None:
        """Unmount, lazily if necessary."""
        for words in ((*GLASSFS, "umount", self.point), (*GLASSFS, "umount", "--lazy", self.point)):
            if self.point.is_mount():
                subprocess.run(words, check=False, timeout=STARTING)

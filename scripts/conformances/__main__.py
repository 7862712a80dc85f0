"""Make containers, mount them beside a read-only directory of what they contain, run the checks and print the table."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import errno
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from make_samples import write_all
from writers.kastore import KastoreWriter

from conformances import load, names, reading, writing  # noqa: F401
from conformances.checks import CHANGING, CHECKS, Check, Tree, outcome

GLASSFS = (sys.executable, "-m", "glassfs")
LARGE, STAYING = 8 << 20, 400
Judged = tuple[Check, str, str, str]
"""A check, both outcomes and the verdict."""

OPTIONS = "ro,nosuid,nodev,noexec"


def main() -> int:
    parser = argparse.ArgumentParser("scripts/conformance", description="Compares a mount with a read-only directory.")
    parser.add_argument("--quick", action="store_true", help="fewer reads, without fio")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root, which mounts the directory to compare with")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with (
        tempfile.TemporaryDirectory(prefix="glassfs-conformance-") as folder,
        _trees(Path(folder), options.quick) as trees,
    ):
        rows = [(one, outcome(one.call, trees[0]), outcome(one.call, trees[1])) for one in CHECKS]
    judged = [(one, here, there, _verdict(one, here, there)) for one, here, there in rows]
    for one, here, there, verdict in judged:
        both = _short(here) if here == there else f"{_short(here)} | {_short(there)}"
        print(f"{verdict:<8} {one.group:<14} {one.name}: {both}")
    counts = {word: sum(verdict == word for *_, verdict in judged) for word in ("equal", "known", "skipped", "DIFFERS")}
    ending = f"{len(judged)} checks: " + ", ".join(f"{count} {word.lower()}" for word, count in counts.items())
    print(ending)
    if options.markdown:
        options.markdown.write_text("\n".join((_heading(ending), *_differences(judged), *_agreements(judged), "")))
    return 1 if counts["DIFFERS"] else 0


def _verdict(one: Check, here: str, there: str) -> str:
    if here.startswith("skipped") or there.startswith("skipped"):
        return "skipped"
    return "equal" if here == there else "known" if here == one.here else "DIFFERS"


def _short(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:157]}…"


def _heading(ending: str) -> str:
    kernel, python = platform.release().partition("-")[0], platform.python_version()
    return f"Linux {kernel}, Python {python}, {datetime.date.today()}: {ending}.\n"


def _differences(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield a table of the checks whose outcomes differ."""
    yield "| check | glassfs | read-only directory | why |\n| --- | --- | --- | --- |"
    for one, here, there, verdict in judged:
        if verdict in ("known", "DIFFERS"):
            yield f"| {one.name} | {_short(here)} | {_short(there)} | {one.why} |"


def _agreements(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield a table of the checks whose outcomes are equal, by error."""
    yield "\n| | both | checks |\n| --- | --- | --- |"
    found: dict[tuple[str, str], list[str]] = {}
    for one, here, _, verdict in judged:
        if verdict in ("equal", "skipped"):
            word = verdict if verdict == "skipped" else here if here in errno.errorcode.values() else "same result"
            found.setdefault((one.group, word), []).append(one.name)
    for (group, word), names_of in sorted(found.items()):
        yield f"| {group} | {word} | {'; '.join(names_of)} |"


@contextlib.contextmanager
def _trees(folder: Path, is_quick: bool) -> Iterator[tuple[Tree, Tree]]:
    """Yield the mount and the directory, whose files are those that ``glassfs export`` writes."""
    source, exported, mount, plain = (folder / name for name in ("source", "exported", "mount", "plain"))
    for each in (source, mount, plain, folder / "1", folder / "2"):
        each.mkdir()
    _write(source, folder)
    subprocess.run([*GLASSFS, "export", "--links", "keep", source, exported], check=True, stdout=subprocess.DEVNULL)
    reads = 640 if is_quick else 16_000
    with contextlib.ExitStack() as stack:
        subprocess.run([*GLASSFS, "mount", source, mount], check=True)
        stack.callback(subprocess.run, [*GLASSFS, "umount", mount], check=True)
        subprocess.run(["mount", "--bind", exported, plain], check=True)
        stack.callback(subprocess.run, ["umount", plain], check=True)
        subprocess.run(["mount", "-o", f"remount,bind,{OPTIONS}", plain], check=True)
        for each in ("1", "2"):
            subprocess.run(["mount", "-t", "tmpfs", "conformance", folder / each], check=True)
            stack.callback(subprocess.run, ["umount", folder / each], check=True)
        yield Tree(mount, source, exported, folder / "1", reads), Tree(plain, exported, exported, folder / "2", reads)


def _write(source: Path, folder: Path) -> None:
    """Write the containers, and plain files and links beside them."""
    write_all(source)
    with KastoreWriter(source / "big.kas") as store:
        store.add("data", np.random.default_rng(5).integers(0, 256, LARGE + 777, np.uint8))
    with KastoreWriter(source / "fio.kas") as store:
        store.add("data", np.frombuffer(load.write_pattern(folder / "pattern"), np.uint8))
    (source / "plain.txt").write_text("plain\n" * 2000)
    (source / "link").symlink_to("plain.txt")
    (source / "loop").symlink_to("loop")
    (source / "dangling").symlink_to("none")
    (source / CHANGING).mkdir()
    for number in range(STAYING):
        (source / CHANGING / f"stays-{number:03d}").touch()
        (source / CHANGING / f"gone-{number % 200:03d}").touch()


if __name__ == "__main__":
    sys.exit(main())

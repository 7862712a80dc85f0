"""``glassfs verify``: everything in a container is read, decoded and compared with what is said of it."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import click
from tqdm import tqdm

from glassfs.cli.common import containers_below, opened_container, reason_of
from glassfs.content import Fault, Image, Json
from glassfs.errors import GlassfsError, Refused
from glassfs.terminal import printable
from glassfs.tree import File, Tree

CHUNK = 1 << 20
AHEAD = 64


class Found(NamedTuple):
    """A fault in the container ``source``."""

    source: str
    place: str
    reason: str


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option("--json", "as_json", is_flag=True, help="For programs: a JSON object for each fault, on a line.")
@click.option("--progress/--no-progress", default=None, help="A progress bar; the default on a terminal.")
def command(sources: tuple[str, ...], as_json: bool, progress: bool | None) -> int:
    """Reads everything in each SOURCE, a container or a folder with containers: checksums, offsets, lengths, blocks,
    pictures, cross-references. A fault is a line; exit status 1 if there is any.
    """
    containers: list[str] = []
    faults = 0
    for source in sources:
        if not os.path.isdir(source):
            containers.append(source)
            continue
        for path, error in containers_below(source):
            if error is None:
                containers.append(path)
            else:
                faults += 1
                _tell(Found(path, "", reason_of(error)), as_json)
    is_shown = sys.stderr.isatty() if progress is None else progress
    total = sum(os.path.getsize(container) for container in containers)
    with tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=not is_shown, leave=False) as bar:
        for container in containers:
            for fault in _verify(container):
                faults += 1
                with tqdm.external_write_mode(file=sys.stdout):
                    _tell(fault, as_json)
            bar.update(os.path.getsize(container))
    if not as_json:
        click.echo(f"{_counted(len(containers), 'container')}, {_counted(faults, 'fault')}", err=True)
    return 1 if faults else 0


def _verify(source: str) -> Iterator[Found]:
    """What is wrong with one container, each fault once: a check may meet what reading the files has met before."""
    seen: set[str] = set()
    for place, told in _faults(source):
        if not seen & {told, f"{place}: {told}"}:
            yield Found(source, place, told)
        seen.add(told)


def _faults(source: str) -> Iterator[Fault]:
    try:
        with opened_container(source) as (tree, container):
            yield from _faults_in_files(tree, source)
            try:
                yield from container.check()
            except GlassfsError as error:
                yield Fault("", reason_of(error, source))
    except Refused as error:
        yield Fault("", reason_of(error, source))


def _faults_in_files(tree: Tree, source: str) -> Iterator[Fault]:
    unlisted: list[Fault] = []

    def unlisted_is(path: str, error: GlassfsError) -> None:
        unlisted.append(Fault(path, reason_of(error, source)))

    def files() -> Iterator[tuple[str, File]]:
        for path, node in tree.walk(on_error=unlisted_is):
            if isinstance(node, File):
                yield path, node
            elif reason := node.xattrs().get("user.glassfs.error"):
                unlisted.append(Fault(path, reason.decode()))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting: deque[tuple[str, Future[str | None]]] = deque()
        for path, file in files():
            waiting.append((path, pool.submit(_fault_in, file, source)))
            if len(waiting) > AHEAD:
                yield from _result(*waiting.popleft())
        for path, future in waiting:
            yield from _result(path, future)
    yield from unlisted


def _result(path: str, future: Future[str | None]) -> Iterator[Fault]:
    reason = future.result()
    if reason is not None:
        yield Fault(path, reason)


def _fault_in(file: File, source: str) -> str | None:
    """Why a file cannot be read whole, or does not hold what it should."""
    if isinstance(file.content, Image) and file.data.location() is None:
        return None  # a frame of a film, whose array is read as a whole
    try:
        for position in range(0, file.size, CHUNK):
            file.read(position, CHUNK)
        if isinstance(file.content, Json):
            json.loads(file.read(0, file.size))
    except (GlassfsError, OSError) as error:
        return reason_of(error, source)
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON: {error}"
    return None


def _tell(fault: Found, as_json: bool) -> None:
    place = f"{fault.place}: " if fault.place else ""
    click.echo(json.dumps(fault._asdict()) if as_json else printable(f"{fault.source}: {place}{fault.reason}"))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

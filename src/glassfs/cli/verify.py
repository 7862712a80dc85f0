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
from glassfs.content import Image, Json
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


class _Told(NamedTuple):
    """A fault as it is told of ``place``, and as a sentence that names the part itself, by which it is known again."""

    place: str
    reason: str
    sentence: str

    @classmethod
    def of(cls, place: str, error: Exception, source: str) -> _Told:
        return cls(place, reason_of(error, source, place), reason_of(error, source))


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
    for place, reason, sentence in _faults(source):
        if not seen & {sentence, f"{place}: {sentence}"}:
            yield Found(source, place, reason)
        seen.add(sentence)


def _faults(source: str) -> Iterator[_Told]:
    try:
        with opened_container(source) as (tree, container):
            yield from _faults_in_files(tree, source)
            try:
                for place, reason in container.check():
                    yield _Told(place, reason, reason)
            except GlassfsError as error:
                yield _Told.of("", error, source)
    except Refused as error:
        yield _Told.of("", error, source)


def _faults_in_files(tree: Tree, source: str) -> Iterator[_Told]:
    unlisted: list[_Told] = []

    def unlisted_is(path: str, error: GlassfsError) -> None:
        unlisted.append(_Told.of(path, error, source))

    def files() -> Iterator[tuple[str, File]]:
        for path, node in tree.walk(on_error=unlisted_is):
            if isinstance(node, File):
                yield path, node
            elif reason := node.xattrs().get("user.glassfs.error"):
                unlisted.append(_Told(path, reason.decode(), reason.decode()))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting: deque[Future[_Told | None]] = deque()
        for path, file in files():
            waiting.append(pool.submit(_fault_in, file, source, path))
            if len(waiting) > AHEAD:
                yield from _result(waiting.popleft())
        for future in waiting:
            yield from _result(future)
    yield from unlisted


def _result(future: Future[_Told | None]) -> Iterator[_Told]:
    told = future.result()
    if told is not None:
        yield told


def _fault_in(file: File, source: str, path: str) -> _Told | None:
    """Why a file cannot be read whole, or does not hold what it should."""
    if isinstance(file.content, Image) and file.data.location() is None:
        return None  # a frame of a film, whose array is read as a whole
    try:
        for position in range(0, file.size, CHUNK):
            file.read(position, CHUNK)
        if isinstance(file.content, Json):
            json.loads(file.read(0, file.size))
    except (GlassfsError, OSError) as error:
        return _Told.of(path, error, source)
    except (ValueError, RecursionError) as error:
        reason = f"is not valid JSON: {error}"
        return _Told(path, reason, reason)
    return None


def _tell(fault: Found, as_json: bool) -> None:
    place = f"{fault.place}: " if fault.place else ""
    click.echo(json.dumps(fault._asdict()) if as_json else printable(f"{fault.source}: {place}{fault.reason}"))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

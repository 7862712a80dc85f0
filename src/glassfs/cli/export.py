"""``glassfs export``"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import click
from tqdm import tqdm

import glassfs
from glassfs.cli.common import lookup, normal, report
from glassfs.errors import GlassfsError
from glassfs.tree import Directory, File, Node, Symlink, Tree

CHUNK = 1 << 20
ZEROS = bytes(CHUNK)


@click.command()
@click.argument("source", type=click.Path(readable=False))
@click.argument("paths", metavar="[PATH]... TARGET", nargs=-1)
@click.option("--progress/--no-progress", default=None, help="A progress bar; the default on a terminal.")
def command(source: str, paths: tuple[str, ...], progress: bool | None) -> int:
    """Write the same tree with the same bytes as a mount to the folder TARGET: all of SOURCE, or each PATH in it."""
    if not paths:
        raise click.UsageError("a folder to write to is needed", click.get_current_context())
    *chosen, target = paths
    tree = glassfs.open(source)
    for path in chosen:
        lookup(tree, path)
    is_shown = sys.stderr.isatty() if progress is None else progress
    with tqdm(unit="B", unit_scale=True, unit_divisor=1024, disable=not is_shown, leave=False) as bar:
        failures = sum(_export(tree, normal(path), target, bar) for path in chosen or ["/"])
    if failures:
        raise click.ClickException(f"{source}: {failures} of its files and directories could not be written")
    return 0


def _export(tree: Tree, path: str, target: str, bar: tqdm) -> int:
    """Copies what is at ``path``; the number of nodes that failed."""
    failures = 0

    def failed(place: str, error: Exception) -> None:
        nonlocal failures
        failures += 1
        with tqdm.external_write_mode(file=sys.stderr):
            report(place, error)

    buffer = bytearray(CHUNK)
    for place, node in _nodes(tree, path, failed):
        destination = os.path.join(target, place[1:]) if place != "/" else target
        try:
            if isinstance(node, Directory):
                os.makedirs(destination, exist_ok=True)
            elif isinstance(node, Symlink):
                os.symlink(node.target, destination)
            elif isinstance(node, File):
                os.makedirs(os.path.dirname(destination), exist_ok=True)
                _copy(node, destination, buffer, bar)
        except OSError as error:
            failed(place, error)
    return failures


def _nodes(tree: Tree, path: str, failed: Callable[[str, Exception], None]) -> Iterator[tuple[str, Node]]:
    node = tree.lookup(path)
    yield path, node
    if isinstance(node, Directory):
        yield from tree.walk(path, failed)


def _copy(node: File, destination: str, buffer: bytearray, bar: tqdm) -> None:
    """Writes a file; what is zero becomes a hole. A file that cannot be read whole does not stay."""
    size = node.size
    try:
        with open(destination, "wb") as file:
            for position in range(0, size, CHUNK):
                count = node.read_into(memoryview(buffer), position)
                data = buffer if count == CHUNK else buffer[:count]
                if data == ZEROS[:count]:
                    file.seek(count, os.SEEK_CUR)
                else:
                    file.write(data)
                bar.update(count)
            file.truncate(size)
        os.utime(destination, ns=(node.origin.mtime_ns, node.origin.mtime_ns))
    except GlassfsError:
        os.unlink(destination)
        raise

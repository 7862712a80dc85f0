"""``glassfs cat``"""

from __future__ import annotations

import sys

import click

import glassfs
from glassfs.cli.common import lookup
from glassfs.errors import IsADirectory
from glassfs.tree import File

CHUNK = 1 << 20


@click.command()
@click.argument("source", type=click.Path(readable=False))
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def command(source: str, paths: tuple[str, ...]) -> None:
    """SOURCE is a container or a folder, each PATH a file inside it."""
    tree = glassfs.open(source)
    buffer = memoryview(bytearray(CHUNK))
    for path in paths:
        node = lookup(tree, path)
        if not isinstance(node, File):
            raise IsADirectory(f"{path}: is a directory")
        position = 0
        while count := node.read_into(buffer, position):
            sys.stdout.buffer.write(buffer[:count])
            position += count

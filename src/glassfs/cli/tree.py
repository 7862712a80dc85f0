"""``glassfs tree``"""

from __future__ import annotations

import click

import glassfs
from glassfs.cli.common import lookup, printable, report
from glassfs.errors import GlassfsError, NotADirectory
from glassfs.sizes import human_size
from glassfs.tree import Directory, File, Node

MANY = 40


@click.command()
@click.argument("source", type=click.Path(readable=False))
@click.argument("path", default="/")
@click.option("-L", "--level", type=click.IntRange(1), help="Go no deeper than this.")
@click.option("-a", "--all", "show_all", is_flag=True, help=f"All entries of a directory, not the first {MANY} only.")
def command(source: str, path: str, level: int | None, show_all: bool) -> int:
    """SOURCE is a container or a folder, PATH a directory inside it."""
    node = lookup(glassfs.open(source), path)
    if not isinstance(node, Directory):
        raise NotADirectory(f"{path}: not a directory")
    click.echo(source if path == "/" else path)
    return 1 if _show(node, "", level, show_all) else 0


def _show(directory: Directory, indent: str, level: int | None, show_all: bool) -> int:
    try:
        nodes = directory.listing()
        if isinstance(nodes, list):  # a series comes in order, and is not to be made as a whole
            nodes = sorted(nodes, key=lambda node: node.name)
    except GlassfsError as error:
        report(directory.name, error)
        return 1
    failures = 0
    count = len(nodes) if show_all or len(nodes) <= MANY else MANY
    for number in range(count):
        node = nodes[number]
        is_last = number + 1 == count == len(nodes)
        click.echo(f"{indent}{'└── ' if is_last else '├── '}{_label(node)}")
        if isinstance(node, Directory) and level != 1:
            below = None if level is None else level - 1
            failures += _show(node, f"{indent}{'    ' if is_last else '│   '}", below, show_all)
    if count < len(nodes):
        click.echo(f"{indent}└── … {len(nodes) - count} more")
    return failures


def _label(node: Node) -> str:
    if not isinstance(node, File):
        return f"{printable(node.name)}/"
    # A size that takes a pass over the data is not worth waiting for here.
    size = f"  {human_size(node.size)}" if node.data.is_sized else ""
    return f"{printable(node.name)}{size}"

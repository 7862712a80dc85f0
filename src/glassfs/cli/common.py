"""What several commands share."""

from __future__ import annotations

import click

from glassfs.errors import GlassfsError, NotADirectory, NotFound
from glassfs.tree import Node, Tree


def lookup(tree: Tree, path: str) -> Node:
    """The node at a path as a person types it. The errors name the path."""
    try:
        return tree.lookup(normal(path))
    except NotFound:
        raise NotFound(f"{path}: no such file or directory in the container") from None
    except NotADirectory:
        raise NotADirectory(f"{path}: not a directory") from None


def normal(path: str) -> str:
    """A path as a person types it, as the tree has it: ``/`` in front, none at the end, but for the root."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def printable(name: str) -> str:
    """A name for a terminal: what is no text in it shows as U+FFFD."""
    return name.encode("utf-8", "replace").decode() if name.isprintable() else name.encode("unicode_escape").decode()


def report(path: str, error: Exception) -> None:
    """One line for a file that fails while the command goes on."""
    reason = str(error)
    if isinstance(error, OSError) and not isinstance(error, GlassfsError):
        reason = error.strerror or reason
    click.echo(f"glassfs: {printable(path)}: {' '.join(reason.split())}", err=True)

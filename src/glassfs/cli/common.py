"""What several commands share."""

from __future__ import annotations

import re
from typing import Any

import click

from glassfs.errors import GlassfsError, NotADirectory, NotFound
from glassfs.tree import Node, Tree

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class Size(click.ParamType[int]):
    """A number of bytes with an optional unit: 512M, 2G."""

    name = "size"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


def parse_size(text: str) -> int:
    """``64M`` → 67108864. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 512M")
    return int(match[1]) << _UNITS[match[2].upper()]


def human_size(size: int) -> str:
    """``1536`` → ``1.5K``, as ``ls -h`` writes it."""
    value = float(size)
    for unit in ("", "K", "M", "G", "T"):
        if value < 1024 or unit == "T":
            break
        value /= 1024
    return f"{size}" if not unit else f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"


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

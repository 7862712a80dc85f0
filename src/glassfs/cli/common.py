"""Open the tree of a source that the user named, find paths in it, and report errors: shared by commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import click

from glassfs.arguments import harmless
from glassfs.errors import GlassfsError, NotADirectory, NotFound
from glassfs.formats.registry import may_be_container
from glassfs.library.finding import Found, UnfollowedLink, followed, hint
from glassfs.library.session import OpenArguments
from glassfs.source.remote.url import Connection, is_url, local_name, parsed, shown
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node, Sources, Tree
from glassfs.tree.build import SeriesDirectory
from glassfs.tree.nodes import FIRST_EXTENSION
from glassfs.tree.omissions import Omission
from glassfs.tree.tree import normal
from glassfs.view import chosen, folder_of


class Located(NamedTuple):
    """A container or folder and a path in it: ``/`` if only the source was named."""

    source: str
    path: str

    @property
    def shown(self) -> str:
        """The source as it may be shown."""
        return name_of(self.source)

    def inner(self, path: str) -> str:
        """Convert a path typed beside the source to a path in it."""
        if self.path == "/":
            return path
        return self.path if path == "/" else f"{self.path}/{path}"


def name_of(source: str) -> str:
    """Return a source as it may be shown and as errors name it: a URL without secrets."""
    return shown(source).rstrip("/") if is_url(source) else local_name(source)


def located(typed: str) -> Located:
    """Split what the user typed into a source and a path in it.

    The source is the longest prefix that exists; a folder counts only if the rest may be an escaped name (``%0A``) or
    one of its views, as finding these reads the containers below it. A path that exists is not split. A URL is split
    without a request: the source ends with the first component that is named like a container and followed by another;
    a URL with a query is not split. Raises Refused for a URL that must not be typed.
    """
    if is_url(typed):
        return _located_url(typed)
    typed = local_name(typed)
    source, inner = typed.rstrip("/") or typed, ""
    while source and not os.path.lexists(source):
        source, _, name = source.rpartition("/")
        source, inner = source.rstrip("/"), f"/{name}{inner}"
    if not source or (inner and os.path.isdir(source) and "%" not in inner and not _may_be_view(inner)):
        return Located(typed, "/")
    return Located(source, inner or "/")


def _may_be_view(path: str) -> bool:
    """Return whether a path may lead to a view of the tables over a folder, or into one."""
    name = path.split("/", 2)[1]
    return name == "lerobot" or name.startswith("by-") or name.endswith((".parquet", ".jsonl", ".csv", ".html", ".js"))


def _located_url(typed: str) -> Located:
    url = parsed(typed)
    if not url.query:
        start = typed.index("://") + 3
        while (start := typed.find("/", start) + 1) > 0:
            end = typed.find("/", start)
            if end > 0 and may_be_container(typed[start:end]) and typed[end:].strip("/"):
                return Located(typed[:end], typed[end:])
    return Located(typed, "/")


def _with_known_views(names: str) -> str:
    names = names.replace(",", "+")
    try:
        chosen(names)
    except NotFound as error:
        raise click.BadParameter(error.reason) from None
    return names


views_option = click.option(
    "--views", default="", metavar="NAME+NAME…", type=_with_known_views,
    help="Also show these forms of the contents, such as mp4+parquet, or all; see 'glassfs views'.",
)


@contextmanager
def opened(source: str, views: str = "", connection: Connection = Connection()) -> Iterator[Tree]:  # noqa: B008
    """Open the tree of one source for a ``with``. Errors name it as it was typed."""
    with opened_sources([source], connection, views) as sources:
        yield sources.reachable


@contextmanager
def opened_sources(names: Sequence[str], connection: Connection, views: str = "") -> Iterator[Sources]:
    """Open named sources for a ``with``, for their facts, files and checks."""
    sources = OpenArguments(tuple(names), views=views, connection=connection).opened()
    with sources.tree:
        yield sources


def reason_of(error: Exception, source: str = "", path: str = "") -> str:
    """Return why something failed, without the names of source and part that the caller shows itself."""
    if isinstance(error, GlassfsError):
        # The line that the caller prints names the path already.
        if error.part and any(f"/{error.part.strip('/')}{end}" in f"/{path}/" for end in "./"):
            error = type(error)(error.reason, error.source)
        is_shown = error.source in ("", source) or error.source.startswith(f"{source.rstrip('/')}/")
        return error.without_source if is_shown else str(error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def report(path: str, error: Exception, source: str = "") -> None:
    """Print a line about a file that failed while the command continues."""
    name = f"{source}: {path}" if source else path
    complain(f"{name}: {reason_of(error, source, path)}")


def complain(sentence: str) -> None:
    """Print a line on standard error."""
    click.echo(f"glassfs: {printable(harmless(sentence))}", err=True)


def lookup(tree: Tree, path: str, source: str, is_link_kept: bool = True) -> Found:
    """Return the node at a path that the user typed, and the path without links on the way.

    A link at its end is returned as such if it ``is_link_kept``. Errors name source and path, and similar names.
    """
    try:
        return followed(tree, normal(path), is_link_kept)
    except UnfollowedLink as error:
        raise NotFound(f"{path}: {error.reason}") from None
    except NotFound:
        near = hint(lambda above: tree.directory(above or "/"), path)
        raise NotFound(f"{path}: no such file or directory in {source}{near}") from None
    except NotADirectory:
        raise NotADirectory(f"{path}: not a directory in {source}") from None


def nodes_from(
    tree: Tree, path: str, on_error: Callable[[str, GlassfsError], None],
    on_omitted: Callable[[str, Omission], None] | None = None,
) -> Iterator[tuple[str, Node]]:
    """Yield the node at ``path`` and all below it, parents first, with their paths (see ``Tree.walk``)."""
    node = tree.lookup(path)
    yield path, node
    if isinstance(node, Directory):
        yield from tree.walk(path, on_error, on_omitted)


def has_frames(node: Node, path: str, find: Callable[[str], Node]) -> bool:
    """Return whether a directory has the frames of the array beside it, and nothing else; ``find`` finds by paths."""
    with suppress(NotFound, NotADirectory):
        array = find(f"{path}{FIRST_EXTENSION}") if isinstance(node, SeriesDirectory) else None
        return isinstance(array, File) and array.content is not None and folder_of(array.content) is not None
    return False

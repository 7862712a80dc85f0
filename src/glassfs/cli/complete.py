"""What the Tab key offers: paths inside containers.

A name comes from a container, that is from anybody, and most shells put it into the command line as it is: one with
a character that means something to a shell, or that does not print, is not offered. Nothing here fails loudly, and no
server is asked: for a URL nothing is offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice

import click
from click.shell_completion import CompletionItem

from glassfs.cli.common import located
from glassfs.errors import GlassfsError
from glassfs.library import open_tree
from glassfs.source.remote.url import is_url
from glassfs.tree import Directory, Node, Tree
from glassfs.tree.tree import normal

LOOKED_AT = 20_000
OFFERED = 500
_HARMLESS = frozenset("%+,-.:=@^_")


def complete_source(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files of the local system, and what is inside a container whose name has been typed in full."""
    if is_url(incomplete):
        return []
    folder, slash, begun = incomplete.rpartition("/")
    place = located(folder) if slash else None
    if place is None or (place.path == "/" and not os.path.isfile(place.source)):
        return [CompletionItem(incomplete, type="file")]
    return _offered(place.source, place.path, begun, f"{folder}/")


def complete_path(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Paths inside the source that stands on the command line."""
    source = context.params.get("source")
    if not source or is_url(source):
        return []
    folder, slash, begun = incomplete.rpartition("/")
    place = located(source)
    return _offered(place.source, f"{place.path}/{folder}", begun, folder + slash)


def complete_paths(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a command that takes source and paths as one list: the source first, then paths inside it."""
    typed = context.params.get(parameter.name or "") or ()
    if not typed:
        return complete_source(context, parameter, incomplete)
    context.params["source"] = typed[0]
    return complete_path(context, parameter, incomplete)


def complete_path_or_folder(
    context: click.Context, parameter: click.Parameter, incomplete: str,
) -> list[CompletionItem]:
    """Paths inside the source, or where none begins like this, folders of the local system."""
    return complete_path(context, parameter, incomplete) or [CompletionItem(incomplete, type="dir")]


def _offered(source: str, folder: str, begun: str, typed: str) -> list[CompletionItem]:
    """The names in a folder of a container that begin like this, after what has been typed before them."""
    try:
        with open_tree(source) as tree:
            return [CompletionItem(typed + name) for name in _names(tree, normal(folder), begun)]
    except (GlassfsError, OSError):
        return []


def _names(tree: Tree, folder: str, begun: str) -> list[str]:
    found = _matching(tree.directory(folder).listing(), begun)
    if len(found) != 1 or not found[0].endswith("/"):
        return found
    # A shell puts a space after the only word that fits: one more level keeps it from ending at a directory.
    above = found[0]
    return [above + name for name in _matching(tree.directory(normal(f"{folder}/{above}")).listing(), "")] or found


def _matching(nodes: Iterable[Node], begun: str) -> list[str]:
    names = (
        node.name + ("/" if isinstance(node, Directory) else "") for node in islice(nodes, LOOKED_AT)
        if node.name.startswith(begun) and _is_harmless(node.name)
    )
    return list(islice(names, OFFERED))


def _is_harmless(name: str) -> bool:
    return name.isprintable() and all(character.isalnum() or character in _HARMLESS for character in name)

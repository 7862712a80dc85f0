"""``glassfs completion``, the completion of paths and options by shells, and what command lines have in common.

Names come from untrusted containers, and most shells insert them unquoted: names with characters that a shell
interprets, or that are not printable, are not offered. Errors are silent, and URLs are not completed, so that no server
is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeVar

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from glassfs.errors import GlassfsError
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.url import is_url
from glassfs.tree import Directory, Node, Tree
from glassfs.tree.tree import normal

Callback = TypeVar("Callback", bound=Callable[..., Any])
_HARMLESS = frozenset("%+,-.:=@^_")


progress_option = click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; default: on a terminal.",
)


def json_option(each: str) -> Callable[[Callback], Callback]:
    return click.option("--json", "as_json", is_flag=True, help=f"Print a JSON object per {each}, for programs.")


def misuse(reason: str) -> click.UsageError:
    """Return the error for a command line that makes no sense."""
    return click.UsageError(reason, click.get_current_context())


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """For bash: 'glassfs completion bash > ~/.local/share/bash-completion/completions/glassfs'."""
    from glassfs.cli import glassfs

    kinds: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    click.echo(kinds[shell](glassfs, {}, "glassfs", "_GLASSFS_COMPLETE").source())


def complete_file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the path of a file or folder, without touching it, unlike ``click.Path``.

    A mount point may belong to a daemon that hangs, and any access to it would hang as well.
    """
    return [] if is_url(incomplete) else [CompletionItem(incomplete, type="file")]


def completed_option(descriptions: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    """Complete the last of several options separated by commas."""
    before, comma, begun = incomplete.rpartition(",")
    given = {option.partition("=")[0] for option in before.split(",")}
    found = []
    for names, meaning in descriptions.items():
        for option in names.split(", "):
            name, equals, _ = option.partition("=")
            if name.startswith(begun) and name not in given:
                found.append(CompletionItem(f"{before}{comma}{name}{equals}", help=meaning))
    return found


def complete_source(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete local files, and paths inside a container whose name was typed in full."""
    if is_url(incomplete):
        return []
    from glassfs.cli.common import located

    folder, slash, begun = incomplete.rpartition("/")
    at = located(folder) if slash else None
    if at is None or (at.path == "/" and not os.path.isfile(at.source)):
        return [CompletionItem(incomplete, type="file")]
    return _offered(at.source, at.path, begun, f"{folder}/")


sources_argument = click.argument(
    "sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(readable=False),
    shell_complete=complete_source,
)
source_argument = click.argument("source", type=click.Path(readable=False), shell_complete=complete_source)


def complete_path(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete paths inside the source on the command line."""
    from glassfs.cli.common import located

    source = context.params.get("source")
    if not source or is_url(source):
        return []
    folder, slash, begun = incomplete.rpartition("/")
    at = located(source)
    return _offered(at.source, f"{at.path}/{folder}", begun, folder + slash)


path_argument = click.argument("path", default="/", shell_complete=complete_path)


def complete_paths(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a list of a source followed by paths in it."""
    typed = context.params.get(parameter.name or "") or ()
    if not typed:
        return complete_source(context, parameter, incomplete)
    context.params["source"] = typed[0]
    return complete_path(context, parameter, incomplete)


def complete_path_or_folder(
    context: click.Context, parameter: click.Parameter, incomplete: str,
) -> list[CompletionItem]:
    """Complete paths inside the source, or local folders if none matches."""
    return complete_path(context, parameter, incomplete) or [CompletionItem(incomplete, type="dir")]


def _offered(source: str, folder: str, begun: str, typed: str) -> list[CompletionItem]:
    """Return completions of ``begun`` in a folder of a container, prefixed with what was typed."""
    from glassfs.library import open_tree

    try:
        with open_tree(source) as tree:
            return [CompletionItem(typed + name) for name in _names(tree, normal(folder), begun)]
    except (GlassfsError, OSError):
        return []


def _names(tree: Tree, folder: str, begun: str) -> list[str]:
    found = _matching(tree.directory(folder).listing(), begun)
    if len(found) != 1 or not found[0].endswith("/"):
        return found
    # A shell appends a space to a single match: offer one more level, so that it does not stop at a directory.
    above = found[0]
    return [above + name for name in _matching(tree.directory(normal(f"{folder}/{above}")).listing(), "")] or found


def _matching(nodes: Iterable[Node], begun: str) -> list[str]:
    names = (
        node.name + ("/" if isinstance(node, Directory) else "") for node in islice(nodes, 20_000)
        if node.name.startswith(begun) and node.name.isprintable()
        and all(character.isalnum() or character in _HARMLESS for character in node.name)
    )
    return list(islice(names, 500))


def _connection(context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> Connection:
    if not texts:
        return Connection()
    from glassfs.source.remote.options import WrongValue, connection_from

    try:
        return connection_from(texts)
    except WrongValue as error:
        raise click.UsageError(error.reason, context) from None


def _complete_connection(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from glassfs.source.remote.options import DESCRIPTIONS

    return completed_option(DESCRIPTIONS, incomplete)


connection_option = click.option(
    "-o", "connection", metavar="OPTION[,OPTION]…", multiple=True, callback=_connection,
    shell_complete=_complete_connection,
    help="Options for URLs: endpoint=URL, region=NAME, anonymous, timeout=SECONDS and others, as for a mount.",
)

"""``glassfs completion``, the completion of files and options by shells, and what command lines have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from glassfs.source.remote.url import Connection, is_url

Callback = TypeVar("Callback", bound=Callable[..., Any])


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

    if kind := get_completion_class(shell):
        click.echo(kind(glassfs, {}, "glassfs", "_GLASSFS_COMPLETE").source())


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


sources_argument = click.argument(
    "sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(readable=False),
    shell_complete=complete_file,
)
source_argument = click.argument("source", type=click.Path(readable=False), shell_complete=complete_file)
path_argument = click.argument("path", default="/")


def _condition(text: str) -> str:
    if text:
        from glassfs.datasets.where import WrongCondition, condition

        try:
            condition(text)
        except WrongCondition as error:
            raise click.BadParameter(error.reason) from None
    return text


where_option = click.option(
    "--where", metavar="CONDITION", default="", type=_condition,
    help="Only episodes whose row satisfies this, as in \"not success and task ~ 'drawer'\".",
)


def words_options(command: Callback) -> Callback:
    """Add the options that select episodes and steps: ``--where``, ``--trim`` and ``--every``."""
    trim = click.option(
        "--trim", default="", metavar="START:STOP", help="Only these steps of each episode: a slice, as in 10:-5.",
    )
    every = click.option(
        "--every", default=1, metavar="N", type=click.IntRange(1), help="Of these steps one of every N.",
    )
    return where_option(trim(every(command)))


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

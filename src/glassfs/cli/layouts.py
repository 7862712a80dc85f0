"""``glassfs layouts``, and the option ``--layout`` of other commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from glassfs.cli.common import opened_sources, views_option
from glassfs.cli.completion import Callback, connection_option, misuse
from glassfs.errors import GlassfsError, NotFound, Refused
from glassfs.layouts.known import VARIABLE, absolute, chosen
from glassfs.source.remote.url import Connection
from glassfs.terminal import printable


def _use(context: click.Context, _parameter: click.Parameter, asked: str) -> None:
    """Have layouts used until the command ends."""
    try:
        if asked or VARIABLE in os.environ:  # reading all layouts takes longer than a listing
            chosen(asked)
    except GlassfsError as error:
        raise click.BadParameter(str(error)) from None
    context.with_resource(_used(asked))


layout_option = click.option(
    "--layout", default="", metavar="FILE|FOLDER|NAME", callback=_use, expose_value=False,
    help="Find episodes by this layout first; see 'glassfs layouts'.",
)


def source_options(command: Callback) -> Callback:
    """Add the options of commands that open sources: ``-o`` and ``--layout``."""
    return connection_option(layout_option(command))


def tree_options(command: Callback) -> Callback:
    """Add the options of commands that show a tree: those, and ``--views``."""
    return views_option(source_options(command))


@contextmanager
def _used(asked: str) -> Iterator[None]:
    """Have layouts used for a ``with``, also by processes that are started in it."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = absolute(asked) or before
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


@click.command()
@click.argument("name", required=False)
@click.argument("source", required=False)
@click.option("--test", "is_tried", is_flag=True, help="Say what the layout NAME, or in this file, finds in SOURCE.")
@connection_option
def command(name: str | None, source: str | None, is_tried: bool, connection: Connection) -> None:
    """A layout is a small file that says which parts of an HDF5, NPZ or MCAP file are episodes. NAME prints one.

    Your own ones are in ~/.config/glassfs/layouts, or given with --layout or '-o layout='.
    """
    if is_tried:
        if name is None or source is None:
            raise misuse("--test needs a layout and a container")
        _try(name, source, connection)
        return
    if source is not None:
        raise misuse("a container is only needed for --test")
    if name is not None:
        click.echo(chosen(name)[0].text, nl=False)
        return
    known = chosen()
    width = max(len(one.layout.name) for one in known)
    for one in known:
        formats = " ".join(one.layout.formats)
        origin = f"{'  ' if formats else ''}from {one.origin}" if one.origin != "glassfs" else ""
        click.echo(printable(f"{one.layout.name:{width}}  {formats}{origin}"))


def _try(asked: str, source: str, connection: Connection) -> None:
    chosen(asked)
    with _used(asked), opened_sources([source], connection) as sources:
        containers = sources.containers.all_open()
        if not containers:
            raise NotFound("is a folder; name one of its containers", source)
        container = containers[0].container
        if not container.is_generic:
            raise Refused(f"is {container.format}, which knows its episodes itself", source)
        for line in container.layout_report():
            click.echo(printable(line))

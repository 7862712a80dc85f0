"""``glassfs select``: write the selection of the episodes that satisfy a condition, by their names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import click

from glassfs.cache import BlockCache
from glassfs.cli.completion import sources_argument, words_options
from glassfs.cli.layouts import source_options
from glassfs.content.selected import ALL
from glassfs.datasets.selecting import Selecting, names_of
from glassfs.datasets.selections import Asked, Sample, Words, asked, is_selection
from glassfs.errors import Refused
from glassfs.formats.registry import may_be_container
from glassfs.sizes import counted
from glassfs.source import Connection, absolute, locate
from glassfs.source.remote.url import shown
from glassfs.terminal import printable
from glassfs.tree import ContainerSettings


@click.command()
@sources_argument
@words_options
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Of these episodes N, chosen by chance.")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, help="Another number chooses others.")
@source_options
def command(
    sources: tuple[str, ...], where: str, trim: str, every: int, sample: int | None, seed: int, connection: Connection,
) -> None:
    """Print a selection: a text file, to be saved as NAME.toml, that names the episodes in each SOURCE that satisfy a
    condition. Where a SOURCE is expected, NAME.toml shows these alone, without a copy. If SOURCE is a selection, its
    episodes are named.

    Other keys, such as splits, exclude, rename and drop, can be added by hand; see docs/manual/selecting.md.
    """
    words = Words.of(where, trim, every)
    selection = asked(sources, None if words is None and any(map(is_selection, sources)) else words or Words())
    if sample is not None:
        selection = replace(selection, sample=Sample(sample, seed))
    cache = BlockCache()
    named = locate(selection.sources, connection, may_be_container, cache=cache)
    with closing(Selecting(selection, named, ContainerSettings(cache, has_catalogue=True))) as selecting:
        chosen, missing = selecting.chosen()
    names = [names_of(one)[0] for one in chosen]
    if missing:
        raise Refused(f"names episodes that are not there: {', '.join([*missing][:5])}", sources[0])
    for line in _lines(selection, names):
        click.echo(line)
    click.echo(f"{counted(len(names), 'episode')} of {printable(', '.join(map(shown, sources)))}", err=True)


def _lines(selection: Asked, names: list[str]) -> Iterator[str]:
    """Yield the lines of a selection that names these episodes."""
    yield f"sources = [{', '.join(_text(absolute(one)) for one in selection.sources)}]"
    yield "episodes = ["
    yield from (f"  {_text(name)}," for name in names)
    yield "]"
    start, stop, every = selection.steps
    if selection.steps != ALL:
        yield f'trim = "{"" if start is None else start}:{"" if stop is None else stop}"'
        yield f"every = {every}"
    tables = {"rename": selection.renamed, "splits": selection.splits}
    if selection.dropped:
        yield f"drop = [{', '.join(map(_text, sorted(selection.dropped)))}]"
    for name, table in tables.items():
        if table:
            yield f"\n[{name}]"
            yield from (f"{_text(key)} = {_text(value)}" for key, value in table.items())


def _text(value: str) -> str:
    """Return a text as TOML has it. Raises Refused for a name whose bytes are no UTF-8, which TOML cannot have."""
    try:
        os.fsencode(value).decode()
    except UnicodeError:
        raise Refused("its name is not UTF-8, so no selection can have it", value) from None
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

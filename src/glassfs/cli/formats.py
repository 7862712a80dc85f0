"""``glassfs formats`` and ``glassfs views``"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from glassfs.formats.registry import built_in, plug_ins
from glassfs.terminal import printable
from glassfs.view import available


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of objects.")
def command(as_json: bool) -> None:
    """A file's bytes decide its format; in remote folders its suffix decides whether it is listed as a container.

    Formats of other packages name their package. Of a format that cannot be used, the reason is shown.
    """
    found = list(_formats())
    if as_json:
        click.echo(json.dumps(found))
        return
    width = max(len(one["name"]) for one in found)
    for one in found:
        rest = " ".join(one["suffixes"])
        if one["package"]:
            rest += f"{'  ' if rest else ''}from {one['package']}"
        if one["error"]:
            rest += f": {one['error']}"
        click.echo(printable(f"{one['name']:{width}}  {rest}"))


def _formats() -> Iterator[dict[str, Any]]:
    """Yield name, suffixes, package (None for a built-in format) and error (None if it can be used) of each format."""
    for known in built_in():
        yield {"name": known.name, "suffixes": known.suffixes, "package": None, "error": known.missing() or None}
    for one in plug_ins():
        suffixes = one.format.suffixes if one.format else ()
        yield {"name": one.name, "suffixes": suffixes, "package": one.package, "error": one.reason or None}


@click.command()
def views() -> None:
    """Each view appears beside what it is made from if '--views' or '-o views=' names it: mp4+parquet, or all."""
    found = [one for view in available().values() for one in (view, *view.variants)]
    width = max(len(view.name) for view in found)
    for view in found:
        click.echo(printable(f"{view.name:{width}}  {view.summary}"))

"""``glassfs views``"""

from __future__ import annotations

import click

from glassfs.terminal import printable
from glassfs.view import available


@click.command()
def command() -> None:
    """Each view appears beside what it is made from if '--views' or '-o views=' names it: mp4+parquet, or all."""
    found = available()
    width = max(map(len, found))
    for name, view in found.items():
        click.echo(printable(f"{name:{width}}  {view.summary}"))

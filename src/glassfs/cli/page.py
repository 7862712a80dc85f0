"""Tell a user at a terminal where the start page of a new mount is."""

from __future__ import annotations

import os
import sys

import click

from glassfs.mount import probe
from glassfs.terminal import printable

PAGE = ".glassfs/views/index.html"
PATIENCE_SECONDS = 1.0
"""For a folder, the mount reads all containers before it knows how large its page is."""


def tell(mountpoint: str) -> None:
    """Print the path of the page, unless there is none. Does nothing if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return
    path = os.path.join(mountpoint, PAGE)
    (answer,) = probe.ask([lambda: str(os.path.exists(path)).encode()], PATIENCE_SECONDS)
    if answer != b"False":
        click.echo(f"in a browser: {printable(path)}")

"""``glassfs mount``"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from glassfs.cli.completion import complete_file, completed_option, misuse, words_options
from glassfs.datasets.selections import Words
from glassfs.mount import system
from glassfs.mount.daemon import check_source, mount
from glassfs.mount.options import DESCRIPTIONS, MountOptions
from glassfs.source.remote.options import WrongValue
from glassfs.source.remote.url import shown
from glassfs.terminal import printable


def _described() -> str:
    width = max(map(len, DESCRIPTIONS))
    lines = [f"  {name:<{width}}  {text}" for name, text in DESCRIPTIONS.items()]
    return "\n".join(["\b", "Options for -o, separated by commas:", *lines])


DESCRIBED = _described()


def mount_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a mount to a command, which gets them as ``asked``."""

    @click.option(
        "-o", "options", metavar="OPTION[,OPTION]...", multiple=True, help="Mount options, see below.",
        shell_complete=lambda _context, _parameter, incomplete: completed_option(DESCRIPTIONS, incomplete),
    )
    @click.option("--views", default="", metavar="NAME+NAME…", help="The same as -o views=NAME+NAME….")
    @words_options
    @click.option("--log-file", type=click.Path(dir_okay=False), help="The same as -o log_file=FILE.")
    @wraps(command)
    def with_asked(
        options: tuple[str, ...], views: str, where: str, trim: str, every: int, log_file: str | None, **others: Any,
    ) -> int:
        try:
            asked = MountOptions.parse([*options, *([f"views={views.replace(',', '+')}"] if views else [])])
        except WrongValue as error:
            raise misuse(str(error)) from None
        asked.words = Words.of(where, trim, every)
        if log_file:
            asked.log_file = os.path.abspath(log_file)
        return command(asked=asked, **others)

    return with_asked


@click.command(epilog=DESCRIBED)
@click.argument("paths", metavar="SOURCE... [MOUNTPOINT]", nargs=-1, shell_complete=complete_file)
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C and SIGTERM unmount.")
@mount_options
def command(paths: tuple[str, ...], foreground: bool, asked: MountOptions) -> int:
    """If SOURCE is a container, MOUNTPOINT shows its contents. If it is a folder, it is mirrored, and every container
    in it is a directory. With several SOURCEs, MOUNTPOINT has one directory for each.

    A MOUNTPOINT that does not exist is created. Without MOUNTPOINT, glassfs creates one in the current directory, named
    after SOURCE: run.kdb is mounted at run, or at run-glassfs if run exists, and a folder data at data-glassfs. What
    glassfs has created is removed when the mount ends.

    A SOURCE may be a URL, such as s3://bucket/datasets or https://host/run.kdb. The only SOURCE may be a selection, a
    file that ends with .toml and says which episodes of which sources to show; see 'glassfs select'.
    """

    if not paths:
        raise misuse("SOURCE is missing: name a container or a folder")
    is_foreground = foreground or "debug" in asked.flags
    if len(paths) > 1:
        *sources, name = paths
        own = system.make_at(name)
    else:
        sources = [*paths]
        check_source(paths[0])
        own = system.make(paths[0])
        name = own.name
    where = f"{printable(shown(sources[0]))} is mounted at {printable(name)}"
    if is_foreground and len(paths) == 1:
        click.echo(f"{where}, until Ctrl-C", err=True)  # in the foreground nothing is printed at the end
    status = mount(sources, name, asked, foreground, None if own is None else own.remove)
    if status == 0 and not is_foreground and len(paths) == 1:
        click.echo(f"{where}; to unmount it: glassfs umount {printable(shlex.quote(name))}")
    return status

"""``glassfs mount``"""

from __future__ import annotations

import os
import shlex
import sys

import click

from glassfs.cli.completion import complete_file, completed_option, misuse
from glassfs.mount import probe
from glassfs.mount.errors import WrongOption
from glassfs.mount.options import DESCRIPTIONS, MountOptions
from glassfs.settings import settings
from glassfs.source.remote.options import demand_plain, meant_by
from glassfs.source.remote.url import is_url, local_name, shown
from glassfs.terminal import printable


def _described() -> str:
    width = max(map(len, DESCRIPTIONS))
    lines = [f"  {name:<{width}}  {text}" for name, text in DESCRIPTIONS.items()]
    return "\n".join(["\b", "Options for -o, separated by commas:", *lines])


@click.command(epilog=_described())
@click.argument("paths", metavar="SOURCE... [MOUNTPOINT]", nargs=-1, shell_complete=complete_file)
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C and SIGTERM unmount.")
@click.option(
    "-o", "options", metavar="OPTION[,OPTION]...", multiple=True, help="Mount options, see below.",
    shell_complete=lambda _context, _parameter, incomplete: completed_option(DESCRIPTIONS, incomplete),
)
@click.option("--views", default="", metavar="NAME+NAME…", help="The same as -o views=NAME+NAME….")
@click.option("--log-file", type=click.Path(dir_okay=False), help="Log to this file instead of syslog.")
def command(
    paths: tuple[str, ...], foreground: bool, options: tuple[str, ...], views: str, log_file: str | None,
) -> int:
    """If SOURCE is a container, MOUNTPOINT shows its contents. If it is a folder, it is mirrored, and every container
    in it is a directory. With several SOURCEs, MOUNTPOINT has one directory for each.

    A MOUNTPOINT that does not exist is created. Without MOUNTPOINT, glassfs creates one in the current directory, named
    after SOURCE: run.kdb is mounted at run, or at run-glassfs if run exists, and a folder data at data-glassfs. What
    glassfs has created is removed when the mount ends.

    A SOURCE may be a URL, such as s3://bucket/datasets or https://host/run.kdb.
    """
    from glassfs.mount.daemon import mount
    from glassfs.mount.mountpoint import make_at

    if not paths:
        raise misuse("SOURCE is missing: name a container or a folder")
    try:
        parsed = MountOptions.parse([*options, *([f"views={views.replace(',', '+')}"] if views else [])])
    except WrongOption as error:
        raise misuse(str(error)) from None
    if len(paths) == 1:
        return _mount_at_own(paths[0], parsed, foreground, log_file)
    *sources, mountpoint = paths
    status = mount(sources, mountpoint, parsed, foreground, log_file, make_at(mountpoint))
    if status == 0 and not (foreground or parsed.is_debugging):
        _tell_of_page(mountpoint)
    return status


def _mount_at_own(source: str, options: MountOptions, foreground: bool, log_file: str | None) -> int:
    """Mount at a directory created for it, and print its name."""
    from glassfs.mount import mountpoint
    from glassfs.mount.daemon import mount
    from glassfs.mount.errors import MountError

    demand_plain(source)
    if not is_url(source) and not os.path.exists(local_name(source)):
        raise MountError(f"{source}: no such file or folder{meant_by(source)}")
    own = mountpoint.make(source)
    where = f"{printable(shown(source))} is mounted at {printable(own.name)}"
    if foreground or options.is_debugging:
        # Print it now: in the foreground nothing is printed at the end.
        click.echo(f"{where}, until Ctrl-C", err=True)
        return mount([source], own.name, options, foreground, log_file, own)
    status = mount([source], own.name, options, foreground, log_file, own)
    click.echo(f"{where}; to unmount it: glassfs umount {printable(shlex.quote(own.name))}")
    _tell_of_page(own.name)
    return status


def _tell_of_page(mountpoint: str) -> None:
    """Tell a user at a terminal the path of the start page, unless there is none."""
    if not sys.stdout.isatty():
        return
    path = os.path.join(mountpoint, ".glassfs/views/index.html")
    (answer,) = probe.ask([lambda: str(os.path.exists(path)).encode()], settings.page_wait)
    if answer != b"False":
        click.echo(f"in a browser: {printable(path)}")

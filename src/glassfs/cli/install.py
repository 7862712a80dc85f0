"""``glassfs install``"""

from __future__ import annotations

import os
import sys

import click

HELPERS = ("mount.glassfs", "mount.fuse.glassfs")


@click.command()
@click.option("--directory", default="/sbin", show_default=True, help="Where mount(8) looks for its helpers.")
@click.option("--remove", is_flag=True, help="Take the links away again.")
def command(directory: str, remove: bool) -> None:
    """Puts links to the mount helper where mount(8) looks for it: afterwards 'mount -t glassfs SOURCE DIR -o …', lines
    of /etc/fstab and systemd's mount units work.
    """
    program = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), HELPERS[0])
    if not os.path.exists(program):
        program = os.path.join(os.path.dirname(sys.executable), HELPERS[0])
    if not os.path.exists(program):
        raise click.ClickException(f"{program} is not there: glassfs is not installed as a package")
    for helper in HELPERS:
        link = os.path.join(directory, helper)
        if os.path.lexists(link):
            if not os.path.islink(link):
                raise click.ClickException(f"{link}: is there, and not from glassfs")
            os.unlink(link)
        if remove:
            click.echo(f"removed {link}")
        else:
            os.symlink(program, link)
            click.echo(f"{link} -> {program}")

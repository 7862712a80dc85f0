"""``glassfs umount``"""

from __future__ import annotations

import click

from glassfs.cli.option_completion import complete_path
from glassfs.mount import mountpoint as mountpoints_of_glassfs
from glassfs.mount import system


@click.command()
@click.argument("mountpoints", metavar="MOUNTPOINT...", nargs=-1, required=True, shell_complete=complete_path)
@click.option("-l", "--lazy", is_flag=True, help="Detach a mount in use now; it ends with its last user.")
def command(mountpoints: tuple[str, ...], lazy: bool) -> None:
    """A mount point that glassfs created is removed if it is empty."""
    for mountpoint in mountpoints:
        path = system.real_path(mountpoint)
        is_own = not lazy and system.is_glassfs(path) and mountpoints_of_glassfs.is_own(path)
        system.unmount(mountpoint, lazy)
        if is_own:
            # Without waiting, the name might still exist when the next command needs it.
            mountpoints_of_glassfs.wait_for_removal(path)

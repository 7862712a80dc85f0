"""``glassfs umount``"""

from __future__ import annotations

import click

from glassfs.mount.system import unmount


@click.command()
@click.argument("mountpoints", metavar="MOUNTPOINT...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option("-l", "--lazy", is_flag=True, help="Also when it is in use: it goes away when the last user does.")
def command(mountpoints: tuple[str, ...], lazy: bool) -> None:
    for mountpoint in mountpoints:
        unmount(mountpoint, lazy)

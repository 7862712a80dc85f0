"""``glassfs status`` and ``glassfs umount``"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click

from glassfs.cli.completion import complete_file, json_option
from glassfs.mount import system
from glassfs.sizes import counted, human_size
from glassfs.source import mountinfo
from glassfs.terminal import printable


@click.command()
@json_option("mount")
def command(as_json: bool) -> None:
    """Show source and mount point of each mount; for its owner and root also uptime, use of the cache, and errors."""
    mounts = [mount for mount in mountinfo.mounts() if mount.file_system == mountinfo.FILE_SYSTEM]
    for mount, status in zip(mounts, system.statuses([mount.path for mount in mounts]), strict=True):
        found = status | {"mountpoint": mount.path, "source": mount.source}
        click.echo(json.dumps(found) if as_json else _line(found))


def _line(found: dict[str, Any]) -> str:
    mount = f"{printable(found['source'])} on {printable(found['mountpoint'])}"
    try:
        return f"{mount}: {printable(str(found.get('unreadable') or _details(found)))}"
    except (KeyError, TypeError, ValueError, OverflowError):
        return f"{mount}: {system.FOREIGN}"


def _details(found: dict[str, Any]) -> str:
    cache = found["cache"]
    return (
        f"pid {found['pid']}, up {timedelta(seconds=int(found['uptime_seconds']))}, "
        f"{counted(len(found['open_containers']), 'container')} open, "
        f"cache {human_size(cache['used'])} of {human_size(cache['budget'])}, "
        f"{cache['hits']:,} hits, {cache['misses']:,} misses, {found['errors']:,} errors"
    )


@click.command()
@click.argument("mountpoints", metavar="MOUNTPOINT...", nargs=-1, required=True, shell_complete=complete_file)
@click.option("-l", "--lazy", is_flag=True, help="Detach a mount in use now; it ends with its last user.")
def umount(mountpoints: tuple[str, ...], lazy: bool) -> None:
    """A mount point that glassfs created is removed if it is empty."""
    for mountpoint in mountpoints:
        path = system.real_path(mountpoint)
        is_own = not lazy and system.is_own(path)
        system.unmount(mountpoint, lazy)
        if is_own:
            # Without waiting, the name might still exist when the next command needs it.
            system.wait_for_removal(path)

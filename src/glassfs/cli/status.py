"""``glassfs status``"""

from __future__ import annotations

import json
import os
from typing import Any

import click

from glassfs.mount import system
from glassfs.sizes import human_size
from glassfs.terminal import printable


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs: a JSON object for each mount, on a line.")
def command(as_json: bool) -> None:
    """Those that this user may look into: source, mount point, uptime, how the cache is used, errors."""
    for mount in system.mounts():
        if mount.file_system != system.FILE_SYSTEM:
            continue
        found = _status(mount)
        click.echo(json.dumps(found) if as_json else _line(found))


def _status(mount: system.Mount) -> dict[str, Any]:
    found: dict[str, Any] = {"mountpoint": mount.path, "source": mount.source}
    try:
        with open(os.path.join(mount.path, ".glassfs/status.json"), encoding="utf-8") as file:
            found |= json.load(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        found["unreadable"] = "its daemon is gone" if system.is_dead(mount.path) else reason
    return found


def _line(found: dict[str, Any]) -> str:
    place = f"{printable(found['source'])} on {printable(found['mountpoint'])}"
    if "unreadable" in found:
        return f"{place}: {found['unreadable']}"
    cache = found["cache"]
    return (
        f"{place}: pid {found['pid']}, up {_duration(found['uptime_seconds'])}, "
        f"{len(found['open_containers'])} containers and {found['open_files']} files open, "
        f"cache {human_size(cache['used'])} of {human_size(cache['budget'])}, "
        f"{cache['hits']:,} hits, {cache['misses']:,} misses, {found['errors']:,} errors"
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{days} d" if days else "", f"{hours} h" if hours else "", f"{minutes} min" if minutes else ""]
    return " ".join(part for part in parts if part) or f"{rest} s"

"""``glassfs mount``"""

from __future__ import annotations

import click

from glassfs.mount.options import DESCRIPTIONS, MountOptions


def _described() -> str:
    width = max(map(len, DESCRIPTIONS))
    lines = [f"  {name:<{width}}  {text}" for name, text in DESCRIPTIONS.items()]
    return "\n".join(["\b", "Options for -o, separated by commas:", *lines])


@click.command(epilog=_described())
@click.argument("places", metavar="SOURCE... MOUNTPOINT", nargs=-1, type=click.Path(readable=False))
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C and SIGTERM unmount.")
@click.option("-o", "options", metavar="OPTION[,OPTION]...", multiple=True, help="Mount options, see below.")
@click.option("--log-file", type=click.Path(dir_okay=False), help="Where the daemon logs to, instead of syslog.")
def command(
    places: tuple[str, ...], foreground: bool, options: tuple[str, ...], log_file: str | None,
) -> int:
    """One SOURCE that is a container: MOUNTPOINT shows its contents. A folder: it is mirrored, and every container in
    it is a directory. Several: MOUNTPOINT has one directory for each.
    """
    from glassfs.mount.daemon import mount

    if len(places) < 2:
        raise click.UsageError("a source and a mount point are needed", click.get_current_context())
    *sources, mountpoint = places
    return mount(sources, mountpoint, MountOptions.parse(options), foreground, log_file)

"""``glassfs man``: the manual page, generated from the help texts of the commands."""

from __future__ import annotations

import click

from glassfs import __version__
from glassfs.mount.options import DESCRIPTIONS

INTRODUCTION = (
    "glassfs mounts data containers (KinoDB, WShard, kastore and tskit, iKv, ML.NET IDV, NPZ, safetensors, HDF5, "
    "MCAP) as read-only directories: arrays are .npy files, images .png and .jpg, documents .json, decoded block by "
    "block when they are read."
)

NOTES = {
    "A mount point created by glassfs": (
        "is removed when the mount ends, if it is empty, but not after the daemon was ended by kill -9."
    ),
    "When the daemon dies": (
        "by kill -9 or for lack of memory, the mount point answers 'Transport endpoint is not connected' until "
        "'glassfs umount', or the next 'glassfs mount' there, removes the dead mount. The option auto_unmount removes "
        "it at once for root; some versions of fusermount3, such as 3.14, ignore it for other users."
    ),
    "When a container changes": (
        "later reads get the new one. glassfs detects changes by size and times of the file: changes through mmap(2) "
        "do not update these, and cached bytes in glassfs or the kernel can then be older than the file."
    ),
    "A mount that hangs": (
        "'glassfs status' waits two seconds for each mount and then reports 'does not answer'. "
        "'glassfs umount --lazy' removes it."
    ),
}


@click.command()
def command() -> None:
    """Format man(7): 'glassfs man | man -l -', or write it to glassfs.1 where man(1) looks."""
    click.echo(page(), nl=False)


def page() -> str:
    """Return the page in roff."""
    from glassfs.cli import glassfs

    parts = [
        f'.TH GLASSFS 1 "" "glassfs {__version__}"',
        ".SH NAME", "glassfs \\- data containers as read-only directories",
        ".SH SYNOPSIS", ".B glassfs", "COMMAND [OPTION]... ARGUMENT...",
        ".SH DESCRIPTION", _escaped(INTRODUCTION),
        ".SH COMMANDS",
    ]
    context = click.Context(glassfs, info_name="glassfs")
    for name in glassfs.list_commands(context):
        found = glassfs.get_command(context, name)
        if found is not None:
            parts += _command(click.Context(found, parent=context, info_name=name), found)
    parts += [".SH MOUNT OPTIONS", "After \\-o, separated by commas:"]
    for option, meaning in DESCRIPTIONS.items():
        parts += [".TP", f".B {_escaped(option)}", _escaped(meaning)]
    parts.append(".SH NOTES")
    for subject, note in NOTES.items():
        parts += [".TP", f".B {_escaped(subject)}", _escaped(note)]
    parts += [
        ".SH EXIT STATUS",
        "0 on success; 1 if something failed; 2 for a wrong command line or mount option; 130 after Ctrl\\-C; "
        "for export, verify and episodes 143 after SIGTERM and 129 after the terminal was closed. For diff 0 without "
        "differences, 1 with some, 2 if something could not be compared.",
        "mount.glassfs has those of mount(8): 1 for a wrong command line, 32 if mounting failed.",
        ".SH ENVIRONMENT", ".TP", ".B GLASSFS_PYTHON", "The interpreter of worker processes.",
        ".SH SEE ALSO", ".BR fusermount3 (1), mount (8), systemd.mount (5)",
    ]
    return "\n".join(parts) + "\n"


def _command(context: click.Context, command: click.Command) -> list[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f".SS {_escaped(usage)}", *_escaped(" ".join((command.help or "").split())).splitlines()]
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            parts += [".TP", f".B {_escaped(record[0])}", _escaped(record[1])]
    return parts


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped

"""``glassfs run``: this process becomes the command, so terminal, signals and exit status are the command's own."""

from __future__ import annotations

import errno
import os
import signal
import tempfile

import click

from glassfs.cli import failed, reason
from glassfs.cli.completion import complete_file, misuse
from glassfs.cli.mount import DESCRIBED, mount_options
from glassfs.errors import GlassfsError
from glassfs.mount import system
from glassfs.mount.options import MountOptions
from glassfs.mount.program import mount_for_program

FAILED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
"""Exit statuses that are not those of the command, as of env(1) and timeout(1)."""


class _Run(click.Command):
    """Keeps what follows the first ``--``, which click would join with the words before it."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        if "--" not in arguments and not (context.resilient_parsing or {*context.help_option_names} & {*arguments}):
            raise _missing("'--'")
        end = arguments.index("--") if "--" in arguments else len(arguments)
        context.obj = arguments[end + 1 :]
        return super().parse_args(context, arguments[:end])


def _missing(what: str) -> click.UsageError:
    return misuse(f"{what} is missing: write 'glassfs run SOURCE -- COMMAND', with {{}} for the mount point")


@click.command(cls=_Run, epilog=DESCRIBED, options_metavar="[OPTIONS] SOURCE... -- COMMAND [ARGUMENT]...")
@click.argument("sources", metavar="", nargs=-1, shell_complete=complete_file)
@click.option("--at", metavar="DIR", default="", help="Mount here, instead of in a new private folder.")
@mount_options
@click.pass_obj
def command(words: list[str], sources: tuple[str, ...], at: str, asked: MountOptions) -> int:
    """COMMAND finds the mount at the path in $GLASSFS_MOUNT, which also replaces {} in each of its words:

    \b
    glassfs run datasets -- python train.py --data {}
    glassfs run s3://bucket/datasets -- bash

    Where the system allows user namespaces, this needs neither root nor fusermount3, only COMMAND sees the mount, and
    nothing stays of it, whatever is killed. The exit status is that of COMMAND; it is 125 if nothing could be mounted,
    126 if COMMAND cannot be executed, and 127 if it is not found.
    """
    if not sources or not words or not words[0]:
        raise _missing("COMMAND" if sources else "SOURCE")
    if "debug" in asked.flags:
        raise misuse("-o debug keeps a mount in the foreground: use it with 'glassfs mount'")
    try:
        is_new = True
        if at:
            try:
                os.mkdir(at)
            except FileExistsError:
                is_new = False
        else:
            at = tempfile.mkdtemp(prefix="glassfs-")
        place = system.real_path(at)  # fusermount3 unmounts at no link
        mount_for_program(sources, place, is_new, asked)
    except (GlassfsError, OSError) as error:
        return failed(reason(error), FAILED)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    words = [word.replace("{}", place) for word in words]
    try:
        os.execvpe(words[0], words, os.environ | {"GLASSFS_MOUNT": place})
    except OSError as error:
        is_missing = error.errno == errno.ENOENT
        return failed(f"{words[0]}: {error.strerror}", NOT_FOUND if is_missing else NOT_EXECUTABLE)

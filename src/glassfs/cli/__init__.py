"""The command line: one module per command, imported when used. Errors are one line; exit status 1, or 2 for usage."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import cleandoc
from types import FrameType
from typing import Any, NoReturn

import click

from glassfs import __version__
from glassfs.arguments import harmless, hide

COMMANDS = {
    "mount": "Mount containers or a folder of them as a read-only directory.",
    "run": "Run one command with a mount that only it sees, and that ends with it.",
    "serve": "Serve the tree over HTTP, for browsers and as WebDAV.",
    "umount": "Unmount what 'glassfs mount' has mounted.",
    "ls": "List the contents of a container.",
    "tree": "Show the contents of a container as a tree.",
    "cat": "Write files of a container to standard output.",
    "info": "Describe a container: format, sizes, contents.",
    "diff": "Compare two containers or folders: what only one has, what differs and by how much.",
    "export": "Copy a container's tree, or parts of it, to a folder.",
    "episodes": "Print or write the table of the episodes in containers and folders.",
    "select": "Print a selection: a file that shows some episodes of some sources, without a copy.",
    "arrays": "List the arrays in containers and folders, the largest first.",
    "formats": "List the formats of containers, and those that other packages add.",
    "views": "List the additional forms in which contents can be shown.",
    "layouts": "List the layouts in which generic containers have episodes, print one, or try one out.",
    "verify": "Read and check all data in containers.",
    "status": "Show what is mounted.",
    "install": "Install the helper for mount(8), fstab and systemd.",
    "completion": "Print the completion script for a shell.",
    "man": "Print the manual page.",
}


SHARED_MODULES = {"tree": "ls", "cat": "ls", "views": "formats", "umount": "status"}
"""Commands in the module of another one, under their own names."""
MEANT = (
    "open=mount exec=run unmount=umount fusermount=umount dir=ls list=ls show=cat read=cat print=cat head=cat tail=cat "
    "less=cat more=cat copy=export cp=export extract=export unpack=export convert=export save=export check=verify "
    "stat=info describe=info schema=info compare=diff cmp=diff mounts=status ps=status manual=man"
)
"""Other names that users type for a command."""
_STOPPED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "its terminal was closed"}


class _Commands(click.Group):
    """Subcommands whose modules are imported when they run."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"glassfs.cli.{SHARED_MODULES.get(name, name)}")
        command: click.Command = getattr(module, name if name in SHARED_MODULES else "command")
        if not (command.help or "").startswith(COMMANDS[name]):
            command.help = f"{COMMANDS[name]}\n\n{cleandoc(command.help or '')}".rstrip()
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0]
        if name not in COMMANDS and not name.startswith("-") and not context.resilient_parsing:
            context.fail(f"no such command: '{name}'{_suggestion(arguments)}")
        return super().resolve_command(context, arguments)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:  # click would print an empty line
            raise Stopped(signal.SIGINT) from None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            formatter.write_paragraph()
            formatter.write_text("There is no /dev/fuse that you can open. Only mount, run and umount need it.")


def _suggestion(arguments: list[str]) -> str:
    from glassfs.source.remote.url import is_url

    name = arguments[0]
    if meant := dict(re.findall(r"(\w+)=(\w+)", MEANT)).get(name):
        return f"; did you mean '{meant}'?"
    if os.path.exists(name) or is_url(name):
        meant = f"mount {name} {arguments[1]}" if len(arguments) == 2 else f"ls {name}"
        return f"; did you mean 'glassfs {meant}'?"
    from difflib import get_close_matches

    close = get_close_matches(name, [*COMMANDS, "help", "version"], 1)
    return f"; did you mean '{close[0]}'?" if close else ""


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="glassfs %(version)s")
def glassfs() -> None:
    """Data containers as read-only directories: KinoDB, WShard, kastore and tskit, iKv, ML.NET IDV, NPZ, safetensors,
    HDF5, MCAP.
    """


def main() -> None:
    """Run the program."""
    hide()
    # What was closed before, as by ``>&-``, would be None here, and the number of a file that is opened later.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # escape what the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    # Objects made at start live until the end: collecting them would take a third of the time.
    gc.set_threshold(100_000, 50, 100)
    status = execute(sys.argv[1:])
    gc.freeze()
    # Python 3.13 and older ends threads that return to it during shutdown; a thread of obstore cannot be ended that way
    # and aborts the process (SIGABRT). A process that used worker processes might wait for them forever. And where
    # Ctrl-C came in code that was given to exec(), as dataclasses do, Python would end by that signal, even if it was
    # caught. Such processes end without cleaning up.
    if status == 128 + signal.SIGINT or "obstore" in sys.modules or "concurrent.futures.process" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, AttributeError):  # closed pipe
                stream.flush()
        leave(status)
    sys.exit(status)


def execute(arguments: list[str]) -> int:
    """Run one command and return its exit status."""
    from glassfs.errors import GlassfsError

    try:
        status = glassfs.main(_plain(arguments), "glassfs", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        return 2
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        return failed(f"{' '.join(error.format_message().split()).rstrip('.')}{where}", 2)
    except click.ClickException as error:
        return failed(error.format_message(), 1)
    except (KeyboardInterrupt, click.Abort):
        return failed("interrupted", 130)
    except Stopped as error:
        return failed(str(error), error.status)
    except BrokenPipeError:
        # The reader of the output is gone: Python must not flush into the closed pipe at exit.
        sys.stdout = None
        return 1
    except (GlassfsError, OSError) as error:
        return failed(reason(error), 1)
    return status if isinstance(status, int) else 0


def _plain(arguments: list[str]) -> list[str]:
    """Map ``help``, ``help COMMAND`` and ``version`` to the options."""
    match arguments:
        case ["help"]:
            return ["--help"]
        case ["help", command]:
            return [command, "--help"]
        case ["version"]:
            return ["--version"]
    return arguments


def reason(error: Exception) -> str:
    """Return the sentence of a GlassfsError or OSError."""
    from glassfs.errors import GlassfsError

    if isinstance(error, GlassfsError) or not isinstance(error, OSError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


def failed(message: str, status: int) -> int:
    from glassfs.terminal import printable

    click.echo(f"glassfs: {printable(harmless(message))}", err=True)
    return status


# Ctrl-C, SIGTERM and a closed terminal are one exception, so that cleanup runs. In the main thread only.


class Stopped(BaseException):
    """A signal asked the program to end. ``status`` is the exit status that shells expect."""

    def __init__(self, number: int, can_resume: bool = False) -> None:
        super().__init__(_STOPPED[signal.Signals(number)] + "; continue with --resume" * can_resume)
        self.status = 128 + number


def leave(status: int) -> NoReturn:
    """End the process whatever its threads wait for.

    Shared objects named in the system for worker processes are released first; otherwise Python's resource tracker
    would print a warning.
    """
    if util := sys.modules.get("multiprocessing.util"):
        util._run_finalizers(0)
    os._exit(status)


@contextmanager
def stoppable(can_resume: bool = False) -> Iterator[None]:
    """Raise Stopped for the first such signal. After it, another Ctrl-C ends the process at once; the other signals are
    ignored during cleanup.
    """
    caught = [number for number in _STOPPED if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, _frame: FrameType | None) -> None:
        for other in caught:
            end = signal.SIG_IGN if other != signal.SIGINT else lambda again, _frame: leave(128 + again)
            signal.signal(other, end)
        raise Stopped(number, can_resume)

    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

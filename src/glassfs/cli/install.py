"""``glassfs install``"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import sys
import sysconfig
from importlib import resources
from pathlib import Path

import click

from glassfs import outputs
from glassfs.cli import man
from glassfs.terminal import printable

HELPERS = ("mount.glassfs", "mount.fuse.glassfs")
UNITS = ("glassfs@.service",)
EXAMPLES = ("mnt-datasets.mount", "mnt-datasets.automount")
PROGRAM_IN_UNITS = "/usr/local/bin/glassfs"
MARK = "Written by 'glassfs install', which replaces this file; 'glassfs install --remove' removes it."


@click.command()
@click.option("--systemd", "with_systemd", is_flag=True, help="Also install systemd units, examples and manual page.")
@click.option("--directory", default="/sbin", show_default=True, help="Where mount(8) looks for helpers.")
@click.option("--prefix", default="/usr/local", show_default=True, help="Where --systemd installs files.")
@click.option("--remove", is_flag=True, help="Remove everything that was installed.")
def command(with_systemd: bool, directory: str, prefix: str, remove: bool) -> None:
    """Create links to the mount helper where mount(8) looks for it: then 'mount -t glassfs SOURCE DIR -o …', /etc/fstab
    and systemd mount units work. With --systemd, also install glassfs@.service, which starts this glassfs, examples of
    mount units, and glassfs(1).
    """
    links = [Path(directory, helper) for helper in HELPERS]
    try:
        if remove:
            _remove(links, [path for path, _ in _files(Path(prefix), PROGRAM_IN_UNITS)])
            return
        helper, program = find_program(HELPERS[0]), find_program("glassfs")
        files = _files(Path(prefix), program) if with_systemd else []
        _check([*links, *(path for path, _ in files)])
        for link in links:
            link.unlink(missing_ok=True)
            link.symlink_to(helper)
            click.echo(f"{link} -> {helper}")
        for path, text in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, text)
            click.echo(f"wrote {path}")
    except OSError as error:
        reason = f"{error.filename2 or error.filename}: {error.strerror}"
        if isinstance(error, PermissionError) and os.geteuid() != 0:
            # sudo searches a path of its own, without virtual environments and home folders.
            reason += f"; run it as root: sudo {shlex.quote(find_program('glassfs'))} install"
        raise click.ClickException(reason) from None
    if with_systemd:
        click.echo("now: systemctl daemon-reload")
    _warn_of_owners(program)


def find_program(name: str) -> str:
    """Return the path of an installed program: beside this one, or among the scripts of this Python."""
    started = sys.argv[0]
    folders = [
        os.path.dirname(os.path.abspath(started)), os.path.dirname(os.path.realpath(started)),
        os.path.dirname(os.path.abspath(sys.executable)), sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", f"{os.name}_user"),
    ]
    path = shutil.which(name, path=os.pathsep.join(folders))
    if path is None:
        raise click.ClickException(f"{name} not found in {', '.join(folders)}; install the glassfs package")
    return path


def unit(name: str) -> str:
    """Return the text of a unit in the package."""
    return (resources.files("glassfs") / "data/systemd" / name).read_text(encoding="utf-8")


def _files(prefix: Path, program: str) -> list[tuple[Path, str]]:
    """Return the files that ``--systemd`` writes, each with a line that names glassfs as its origin."""
    paths = {name: prefix / "lib/systemd/system" / name for name in UNITS}
    paths |= {name: prefix / "share/doc/glassfs" / name for name in EXAMPLES}
    files = [(path, f"# {MARK}\n{_with_program(unit(name), program)}") for name, path in paths.items()]
    return [*files, (prefix / "share/man/man1/glassfs.1", f'.\\" {MARK}\n{man.page()}')]


def _with_program(text: str, program: str) -> str:
    """Return the unit with another path of the program, quoted as in systemd.service(5)."""
    if not program.isprintable() or set(program) & set("'\"\\"):
        sentence = "systemd cannot start a program whose path has quotes, backslashes or control characters"
        raise click.ClickException(f"{printable(program)}: {sentence}")
    path = program.replace("%", "%%")
    return text.replace(PROGRAM_IN_UNITS, f'"{path}"' if " " in path else path)


def _check(paths: list[Path]) -> None:
    """Refuse, before anything is changed, to replace files of other origin."""
    for path in paths:
        if os.path.lexists(path) and not _is_ours(path):
            raise _not_ours(path)


def _write(path: Path, text: str) -> None:
    """Write a file. What was not written by glassfs is kept, also if it got the name a moment ago."""
    with open(outputs.opened(str(path)), "r+b") as file:
        first = file.readline()
        if first and MARK.encode() not in first:
            raise _not_ours(path)
        file.truncate(0)
        file.write(text.encode())
        os.fchmod(file.fileno(), 0o644)


def _not_ours(path: Path) -> click.ClickException:
    return click.ClickException(f"{printable(str(path))}: exists and is not from glassfs; move it away first")


def _remove(links: list[Path], files: list[Path]) -> None:
    _check(links)
    for path in [*links, *files]:
        if os.path.lexists(path) and _is_ours(path):
            path.unlink()
            click.echo(f"removed {path}")
            if path.parent.name == "glassfs" and not any(path.parent.iterdir()):
                path.parent.rmdir()


def _is_ours(path: Path) -> bool:
    if path.name in HELPERS:
        return path.is_symlink() and os.path.basename(os.readlink(path)) == HELPERS[0]
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.readline()


def _warn_of_owners(program: str) -> None:
    """Warn if users other than root can replace the program that root will run."""
    for path in (Path(program), *Path(program).parents):
        status = path.stat()
        is_open = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or is_open:
            users = "other users" if is_open else f"user {status.st_uid}"
            sentence = f"warning: {users} can change {printable(str(path))}, and root will run {printable(program)}"
            click.echo(f"glassfs: {sentence}", err=True)
            return

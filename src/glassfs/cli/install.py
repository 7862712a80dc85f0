"""``glassfs install``"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import sysconfig
from importlib import resources
from pathlib import Path

import click

from glassfs.cli import man
from glassfs.terminal import printable

HELPERS = ("mount.glassfs", "mount.fuse.glassfs")
UNITS = ("glassfs@.service",)
EXAMPLES = ("mnt-datasets.mount", "mnt-datasets.automount")
PROGRAM_IN_UNITS = "/usr/local/bin/glassfs"
MARK = "Written by 'glassfs install': the next one replaces this file, 'glassfs install --remove' takes it away."


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
            _remove(links, [place for place, _ in _files(Path(prefix), PROGRAM_IN_UNITS)])
            return
        helper, program = find_program(HELPERS[0]), find_program("glassfs")
        files = _files(Path(prefix), program) if with_systemd else []
        _check([*links, *(place for place, _ in files)])
        for link in links:
            link.unlink(missing_ok=True)
            link.symlink_to(helper)
            click.echo(f"{link} -> {helper}")
        for place, text in files:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
            place.chmod(0o644)
            click.echo(f"wrote {place}")
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
    for folder in folders:
        place = os.path.join(folder, name)
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    raise click.ClickException(f"{name} not found in {', '.join(folders)}; install the glassfs package")


def unit(name: str) -> str:
    """Return the text of a unit in the package."""
    return (resources.files("glassfs") / "data/systemd" / name).read_text(encoding="utf-8")


def _files(prefix: Path, program: str) -> list[tuple[Path, str]]:
    """What ``--systemd`` writes, each file with a line that says where it is from."""
    places = {name: prefix / "lib/systemd/system" / name for name in UNITS}
    places |= {name: prefix / "share/doc/glassfs" / name for name in EXAMPLES}
    files = [(place, f"# {MARK}\n{_with_program(unit(name), program)}") for name, place in places.items()]
    return [*files, (prefix / "share/man/man1/glassfs.1", f'.\\" {MARK}\n{man.page()}')]


def _with_program(text: str, program: str) -> str:
    """Return the unit with another path of the program, quoted as in systemd.service(5)."""
    if not program.isprintable() or set(program) & set("'\"\\"):
        sentence = "systemd cannot start a program whose path has quotes, backslashes or control characters"
        raise click.ClickException(f"{printable(program)}: {sentence}")
    path = program.replace("%", "%%")
    return text.replace(PROGRAM_IN_UNITS, f'"{path}"' if " " in path else path)


def _check(places: list[Path]) -> None:
    """Refuse, before anything is changed, to replace files of other origin."""
    for place in places:
        if os.path.lexists(place) and not _is_ours(place):
            raise click.ClickException(f"{printable(str(place))}: exists and is not from glassfs; move it away first")


def _remove(links: list[Path], files: list[Path]) -> None:
    _check(links)
    for place in [*links, *files]:
        if os.path.lexists(place) and _is_ours(place):
            place.unlink()
            click.echo(f"removed {place}")
            if place.parent.name == "glassfs" and not any(place.parent.iterdir()):
                place.parent.rmdir()


def _is_ours(place: Path) -> bool:
    if place.name in HELPERS:
        return place.is_symlink() and os.path.basename(os.readlink(place)) == HELPERS[0]
    if place.is_symlink() or not place.is_file():
        return False
    with place.open("rb") as file:
        return MARK.encode() in file.readline()


def _warn_of_owners(program: str) -> None:
    """Warn if users other than root can replace the program that root will run."""
    for place in (Path(program), *Path(program).parents):
        status = place.stat()
        is_open = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or is_open:
            who = "other users" if is_open else f"user {status.st_uid}"
            sentence = f"warning: {who} can change {printable(str(place))}, and root will run {printable(program)}"
            click.echo(f"glassfs: {sentence}", err=True)
            return

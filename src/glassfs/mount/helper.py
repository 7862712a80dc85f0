"""``mount.glassfs``: the helper that mount(8) runs for ``mount -t glassfs SOURCE DIR -o …`` and lines of /etc/fstab.

Its exit statuses are those of mount(8), which passes them on.
"""

from __future__ import annotations

import getopt
import sys

from glassfs.arguments import harmless, hide
from glassfs.errors import GlassfsError
from glassfs.source.remote.options import WrongValue
from glassfs.terminal import printable

USAGE = "usage: mount.glassfs SOURCE MOUNTPOINT [-fnsv] [-o OPTION[,OPTION]...]"


def main() -> None:
    """Run the program and exit."""
    hide()
    try:
        sys.exit(run(sys.argv[1:]))
    except WrongValue as error:
        _end(f"{error} (see 'glassfs mount --help')", 1)
    except getopt.GetoptError as error:
        _end(f"{error}; {USAGE}", 1)
    except KeyboardInterrupt:
        _end("interrupted", 8)
    except GlassfsError as error:
        _end(str(error), 32)
    except OSError as error:
        _end(f"{error.filename}: {error.strerror}" if error.filename else str(error), 32)


def run(arguments: list[str]) -> int:
    """Mount as mount(8) asks, under "External helpers"; return the exit status. Raises GlassfsError and GetoptError."""
    from glassfs.mount.daemon import mount
    from glassfs.mount.options import MountOptions

    found, names = getopt.gnu_getopt(arguments, "fnsvo:t:N:")
    if len(names) != 2:
        raise getopt.GetoptError("needs a source and a mount point")
    source, mountpoint = names
    options = [value for flag, value in found if flag == "-o"]
    flags = {flag for flag, _ in found}
    # mount(8) passes rw by default; a glassfs mount is read-only all the same.
    parsed = MountOptions.parse(options, is_lenient="-s" in flags, ignored={"rw"})
    if "-f" in flags:
        return 0
    return mount([source], mountpoint, parsed, foreground=False)


def _end(sentence: str, status: int) -> None:
    """Exit with a status of mount(8): 1 for wrong use, 8 if interrupted, 32 for a failure."""
    print(f"mount.glassfs: {printable(harmless(' '.join(sentence.split())))}", file=sys.stderr)
    sys.exit(status)

"""Parse ``-o``: the options of glassfs, those of FUSE that apply, and those of mount(8), which are ignored."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

from glassfs.cache import DEFAULT_BUDGET, DEFAULT_SPOOL_SIZE
from glassfs.datasets.selections import Words
from glassfs.errors import GlassfsError, NotFound
from glassfs.layouts import known as layouts
from glassfs.sizes import parse_size
from glassfs.source.remote import options as remote
from glassfs.source.remote.options import WrongValue
from glassfs.source.remote.url import Connection
from glassfs.tree import ViewSet, views_named
from glassfs.tree.containers.containers import OPEN_CONTAINERS, PARSED_BYTES

# Handled by mount(8), systemd or the kernel, or always on.
_IGNORED = {
    "auto", "noauto", "defaults", "nofail", "ro", "user", "users", "nouser", "owner", "group", "_netdev",
    "atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "lazytime", "async",
    "exec", "suid", "dev",
}
_FLAGS = {
    "allow_other", "allow_root", "default_permissions", "nonempty", "auto_unmount", "nosuid", "nodev", "noexec",
    "debug", "follow_links", "lerobot_splits",
}

READ_AHEAD_KIB = 1024
LARGEST_ID = 0xFFFFFFFE  # the next number means "no change" to the system


def _number(least: int, most: int, base: int, text: str) -> int:
    """Parse a number in this range. Raises ValueError."""
    number = int(text, base) if text.isascii() and text.isdigit() else -1
    if not least <= number <= most:
        raise ValueError(text)
    return number


def _folder(text: str) -> str:
    """Return the path of a folder. Raises ValueError for anything else."""
    if not os.path.isdir(text):
        raise ValueError(text)
    return os.path.abspath(text)


def _file(text: str) -> str:
    """Return the path of a file, which need not exist, in a folder. Raises ValueError."""
    path = os.path.abspath(text)
    if os.path.isdir(path):
        raise ValueError(text)
    _folder(os.path.dirname(path))
    return path


_FILE = _file, "a file in a folder that exists"
_SIZE = parse_size, "a size, such as 64M or 2G"
_VALUES: remote.Values = {
    "uid": (partial(_number, 0, LARGEST_ID, 10), "the number of a user"),
    "gid": (partial(_number, 0, LARGEST_ID, 10), "the number of a group"),
    "umask": (partial(_number, 0, 0o777, 8), "an octal number up to 777"), "cache_size": _SIZE, "spool_size": _SIZE,
    "read_ahead": _SIZE, "max_open": (partial(_number, 1, sys.maxsize, 10), "a number of at least 1"),
    "spool": (_folder, "a directory; name one, as in spool=/var/tmp"), "metrics": _FILE, "log_file": _FILE,
    "catalogue": (lambda text: bool(("no", "yes").index(text)), "yes or no"),
}

DESCRIPTIONS = {
    "allow_other": "let other users access the mount, subject to modes and owners",
    "allow_root": "let root access the mount as well as the user who mounted it",
    "default_permissions": "have the kernel check modes; always on",
    "uid=N, gid=N": "owner and group of all files, instead of the source's",
    "umask=OCTAL": "permission bits to clear, such as 077",
    "cache_size=SIZE": "memory for decoded blocks (256M)",
    "spool=DIR": "folder for blocks too large for memory, decoded to unnamed files (TMPDIR or /tmp)",
    "spool_size=SIZE": "bytes in that folder beyond which files that no program reads are given up (8G)",
    "max_open=N": f"most containers to keep open ({OPEN_CONTAINERS}), within {PARSED_BYTES >> 20}M of memory",
    "read_ahead=SIZE": f"how far the kernel reads ahead ({READ_AHEAD_KIB}K); only root may set it",
    "follow_links": "follow your own links out of a local source to your own files; not with allow_other, nor for root",
    "nonempty": "allow a mount point that is not empty",
    "views=NAME+NAME…": "derived views to show beside the files, such as mp4+parquet, or all",
    "lerobot_splits": "show a LeRobot dataset for each split, such as train and valid (the view lerobot-splits)",
    "layout=FILE": "find episodes in HDF5, NPZ and MCAP by this layout first; also a folder, or the name of one",
    "metrics=FILE": "write counters for monitoring to this file, every ten seconds",
    "log_file=FILE": "append the log to this file instead of syslog",
    "catalogue=no": "do not cache on disk what tables over folders and look-ups of images have found",
    "auto_unmount": "unmount when the daemon dies, even by kill -9 (with some fusermount3 for root only)",
    "debug": "print every request; implies -f",
    **remote.DESCRIPTIONS,
}


@dataclass
class MountOptions:
    """The options of one mount. Sizes are bytes.

    ``umask`` is None if none was given. ``remote`` has the options about URLs.
    """

    uid: int | None = None
    gid: int | None = None
    umask: int | None = None
    cache_size: int = DEFAULT_BUDGET
    spool: str | None = None
    spool_size: int = DEFAULT_SPOOL_SIZE
    max_open: int = OPEN_CONTAINERS
    read_ahead: int = READ_AHEAD_KIB << 10
    views: ViewSet = ViewSet()  # noqa: RUF009 - it is never changed
    catalogue: bool = True
    layout: str = ""
    words: Words | None = None
    metrics: str | None = None
    log_file: str | None = None
    remote: Connection = Connection()  # noqa: RUF009 - it is frozen
    flags: set[str] = field(default_factory=set)

    @classmethod
    def parse(
        cls, texts: Sequence[str], is_lenient: bool = False, ignored: Collection[str] = (),
    ) -> MountOptions:
        """Return the options given after ``-o``, several in a text.

        Raises WrongValue for a wrong value, and for an unknown option unless ``is_lenient``.
        """
        options = cls()
        for option in (option.strip() for text in texts for option in remote.split(text)):
            if option and option not in ignored:
                options._set(option, is_lenient)
        if "lerobot_splits" in options.flags:
            options.views = views_named("+".join([*options._view_names(), "lerobot-splits"]))
        if {"allow_other", "allow_root"} <= options.flags:
            raise WrongValue("options allow_other and allow_root: only one of them may be given")
        if "follow_links" in options.flags and (os.geteuid() == 0 or "allow_other" in options.flags):
            raise WrongValue("option follow_links: is not for mounts by root or with allow_other, which serve others")
        return options

    def _set(self, option: str, is_lenient: bool) -> None:
        name, has_value, value = option.partition("=")
        if not has_value and name in _FLAGS:
            self.flags.add(name)
        elif name.startswith("x-") or name == "comment" or (name in _IGNORED and not has_value):
            return
        elif name == "rw":
            raise WrongValue("option rw: a glassfs mount is read-only")
        elif name in _FLAGS:
            raise WrongValue(f"option {name}: takes no value, but {value!r} is given")
        elif name == "views":
            try:
                self.views = views_named("+".join([*self._view_names(), value]))
            except NotFound as error:
                raise WrongValue(f"option views: {error.reason}") from None
        elif name == "layout":
            try:
                layouts.chosen(value)
            except GlassfsError as error:
                raise WrongValue(f"option layout: {error}") from None
            self.layout = layouts.absolute(value)
        elif name in _VALUES:
            setattr(self, name, remote.parsed_value(_VALUES, name, value))
        else:
            changed = remote.with_option(self.remote, option)
            if changed is not None:
                self.remote = changed
            elif not is_lenient:
                raise WrongValue(f"unknown mount option {option!r}")

    def _view_names(self) -> list[str]:
        return [view.name for view in self.views.views]

    def connection(self) -> Connection:
        """Return how to reach remote sources. Only the mounting user may read them if no umask is given.

        ``uid``, ``gid`` and ``umask`` are not included: they apply to all nodes alike.
        """
        return self.remote if self.umask is None else replace(self.remote, permissions=0o444)

    def shown(self) -> dict[str, object]:
        """Return the options for status.json."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "remote"}
        return found | {
            "flags": sorted(self.flags), "views": "+".join(self._view_names()),
            "umask": None if self.umask is None else f"{self.umask:03o}",
        } | remote.public_options(self.remote)

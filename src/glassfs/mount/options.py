"""What ``-o`` takes: glassfs's own options, those of FUSE that make sense here, and those of mount(8) to be ignored."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from glassfs.cache import DEFAULT_BUDGET
from glassfs.mount.errors import MountError
from glassfs.tree.places.containers import OPEN_CONTAINERS

# Handled by mount(8), systemd or the kernel before or after us, or already so.
_IGNORED = {
    "auto", "noauto", "defaults", "nofail", "ro", "user", "users", "nouser", "owner", "group", "_netdev",
    "atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "lazytime", "async",
    "exec", "suid", "dev",
}
_FLAGS = {
    "allow_other", "allow_root", "default_permissions", "nonempty", "auto_unmount", "nosuid", "nodev", "noexec",
    "debug",
}

READ_AHEAD_KIB = 1024

DESCRIPTIONS = {
    "allow_other": "let other users in; also switches default_permissions on",
    "allow_root": "let root in",
    "default_permissions": "let the kernel check modes; always on",
    "uid=N, gid=N": "owner and group of everything, instead of the source's",
    "umask=OCTAL": "permissions to take away, such as 077",
    "cache_size=SIZE": "memory for decoded blocks (256M)",
    "spool=DIR": "where blocks too large for memory are decoded to, in files without a name (TMPDIR or /tmp)",
    "max_open=N": f"containers kept open at a time when a folder is mounted ({OPEN_CONTAINERS})",
    "read_ahead=SIZE": f"the kernel's read-ahead for this mount, if root ({READ_AHEAD_KIB}K)",
    "nonempty": "mount over a directory that has something in it",
    "auto_unmount": "let fusermount unmount when the daemon dies, even by kill -9",
    "debug": "have libfuse print every request; implies -f",
}


class UnknownOption(MountError):
    """An option that nobody knows."""


@dataclass
class MountOptions:
    """The options of one mount. Sizes are bytes."""

    uid: int | None = None
    gid: int | None = None
    umask: int = 0
    cache_size: int = DEFAULT_BUDGET
    spool: str | None = None
    max_open: int = OPEN_CONTAINERS
    read_ahead: int = READ_AHEAD_KIB << 10
    flags: set[str] = field(default_factory=set)

    @classmethod
    def parse(
        cls, texts: Sequence[str], is_lenient: bool = False, ignored: Collection[str] = (),
    ) -> MountOptions:
        """Options as given behind ``-o``, several to a text.

        Raises MountError for a wrong value, and for an unknown option unless ``is_lenient``.
        """
        options = cls()
        for option in (option.strip() for text in texts for option in _split(text)):
            if not option or option in ignored:
                continue
            try:
                options._set(option)
            except UnknownOption:
                if not is_lenient:
                    raise
        return options

    def _set(self, option: str) -> None:
        name, has_value, value = option.partition("=")
        if not has_value and name in _FLAGS:
            self.flags.add(name)
        elif name.startswith("x-") or name == "comment" or (name in _IGNORED and not has_value):
            return
        elif name == "rw":
            raise MountError("option rw: a glassfs mount is read-only")
        elif name == "spool" and value:
            if not os.path.isdir(value):
                raise MountError(f"option spool: {value} is not a directory")
            self.spool = os.path.abspath(value)
        elif name in ("uid", "gid", "umask", "cache_size", "max_open", "read_ahead"):
            try:
                setattr(self, name, _number(name, value))
            except ValueError:
                raise MountError(f"option {name}: {value!r} is not a value for it") from None
        else:
            raise UnknownOption(f"unknown mount option {option!r} (see 'glassfs mount --help')")

    def shown(self) -> dict[str, object]:
        """For status.json."""
        return {
            "flags": sorted(self.flags), "uid": self.uid, "gid": self.gid, "umask": f"{self.umask:03o}",
            "cache_size": self.cache_size, "spool": self.spool, "max_open": self.max_open,
            "read_ahead": self.read_ahead,
        }


def _split(text: str) -> list[str]:
    """At commas; a backslash before a comma or a backslash takes it as it is."""
    options, current, characters = [], "", iter(text)
    for character in characters:
        if character == "\\":
            current += next(characters, "")
        elif character == ",":
            options.append(current)
            current = ""
        else:
            current += character
    return [*options, current]


def _number(name: str, value: str) -> int:
    from glassfs.sizes import parse_size

    if name in ("cache_size", "read_ahead"):
        return parse_size(value)
    number = int(value, 8 if name == "umask" else 10)
    if number < (1 if name == "max_open" else 0) or (name == "umask" and number > 0o777):
        raise ValueError(value)
    return number

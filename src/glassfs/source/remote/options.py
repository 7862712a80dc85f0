"""What people type about what is elsewhere: options after ``-o``, and URLs that cannot be meant as they stand.

Pure functions. WrongValue and Refused are sentences for whoever has typed it, with nothing secret in them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from glassfs.errors import GlassfsError, Refused
from glassfs.sizes import human_size, parse_size
from glassfs.source.remote.connection import DISK_CACHE_SIZE, POLL, TIMEOUT, Connection
from glassfs.source.remote.url import ALIASES, LOCAL, WEB, is_url, shown

DESCRIPTIONS = {
    "endpoint=URL": "of a URL: the server to ask, instead of the one that its service has",
    "region=NAME": "of a URL: the region of its bucket",
    "profile=NAME": "of a URL: the section with credentials in the usual files, such as ~/.aws/credentials",
    "anonymous": "of a URL: ask without credentials",
    "timeout=SECONDS": f"of a URL: how long a read or a listing may take ({TIMEOUT:g})",
    "poll=SECONDS": f"of a URL: when to look again for what has changed ({POLL:g})",
    "disk_cache=DIR": "of a URL: keep blocks in this folder, for later mounts and commands as well",
    "disk_cache_size=SIZE": f"of a URL: how much of them ({human_size(DISK_CACHE_SIZE)})",
}
LONGEST_TIMEOUT = 3600.0
LONGEST_POLL = 30 * 86_400.0

CREDENTIALS = (
    "credentials are taken from the environment and the usual files (~/.aws, ~/.netrc …), never from the command line"
)
_SCHEMES = {"s3", "gs", "az", "ssh", "sftp", "ftp", "hf", *ALIASES, *WEB, *LOCAL}
_OWN_USERS = {"s3", "s3a", "gs", "gcs", *WEB}
"""Schemes where whoever stands before an @ is a secret; elsewhere it may be a user, or what a container is called."""
_ONE_SLASH = re.compile(r"([A-Za-z0-9]+):/*(.*)", re.DOTALL)
_CREDENTIAL = re.compile(r"(.*_)?(key|secret|token|password|passwd|access_key_id|secret_access_key)")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9}")


class WrongValue(GlassfsError, ValueError):
    """A value that an option cannot have."""


def split(text: str) -> list[str]:
    """Options at commas; a backslash before a comma or a backslash takes it as it is."""
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


def close_to(name: str, known: Collection[str]) -> str:
    """``; did you mean …?``, of the options that are described so; empty where none is like it."""
    from difflib import get_close_matches

    names = [option.partition("=")[0] for options in known for option in options.split(", ")]
    close = get_close_matches(name, names, 1)
    return f"; did you mean {close[0]}?" if close else ""


def with_option(connection: Connection, option: str) -> Connection | None:
    """The connection with an option as it is typed; None if this is not one of a connection. Raises WrongValue."""
    name, has_value, value = option.partition("=")
    if name == "anonymous":
        if has_value:
            raise WrongValue(f"option anonymous: takes no value, but {value!r} is given")
        return replace(connection, anonymous=True)
    reader = _READERS.get(name)
    if reader is None:
        if _CREDENTIAL.fullmatch(name.lower()):
            raise WrongValue(f"option {name}: {CREDENTIALS}")
        return None
    if not value:
        raise WrongValue(f"option {name}: needs a value")
    changed: dict[str, Any] = {name: reader(name, value)}
    return replace(connection, **changed)


def connection_from(texts: Sequence[str]) -> Connection:
    """What options after ``-o`` say, several to a text. Raises WrongValue, also for one that nobody knows."""
    connection = Connection()
    for option in (option.strip() for text in texts for option in split(text)):
        if option:
            changed = with_option(connection, option)
            if changed is None:
                raise WrongValue(f"unknown option {shown(option)!r}{close_to(option.partition('=')[0], DESCRIPTIONS)}")
            connection = changed
    return connection


def told(connection: Connection) -> dict[str, object]:
    """The options of a connection, for everybody to see."""
    return {name.partition("=")[0]: getattr(connection, name.partition("=")[0]) for name in DESCRIPTIONS}


def demand_plain(name: str) -> None:
    """Raises Refused for a URL that has credentials in it, or that ends with a blank from somewhere else."""
    if not is_url(name):
        return
    scheme, _, rest = name.partition("://")
    userinfo, at, _ = re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")
    if at and (":" in userinfo or scheme.lower() in _OWN_USERS):
        raise Refused(CREDENTIALS, shown(name))
    if name != name.rstrip():
        raise Refused("ends with a blank", shown(name))


def meant_by(name: str) -> str:
    """For a name that is not there: the URL that may be meant by it, as ``; did you mean …?``, or nothing."""
    if is_url(name.strip()):
        return f"; did you mean '{shown(name.strip())}'?"
    found = _ONE_SLASH.fullmatch(name.strip())
    if found is None or found[1].lower() not in _SCHEMES or not found[2]:
        return ""
    scheme = found[1].lower()
    root = "/" if scheme in LOCAL else ""
    return f"; did you mean '{shown(f'{scheme}://{root}{found[2]}')}'?"


def _text(name: str, value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise WrongValue(f"option {name}: {value!r} is not a name")
    return value


def _endpoint(name: str, value: str) -> str:
    scheme, _, rest = value.partition("://")
    if scheme.lower() not in WEB or not rest.strip("/") or not value.isprintable() or " " in value:
        raise WrongValue(f"option {name}: {shown(value)!r} is not a URL such as https://host:9000")
    if "@" in rest.partition("/")[0] or "?" in rest:
        raise WrongValue(f"option {name}: {shown(value)}: {CREDENTIALS}")
    return value.rstrip("/")


def _seconds(name: str, value: str) -> float:
    longest = LONGEST_TIMEOUT if name == "timeout" else LONGEST_POLL
    if not _SECONDS.fullmatch(value) or not 0 < float(value) <= longest:
        raise WrongValue(f"option {name}: {value!r} is not a number of seconds, over 0 and up to {longest:g}")
    return float(value)


def _folder(name: str, value: str) -> str:
    return os.path.abspath(os.path.expanduser(value))


def _size(name: str, value: str) -> int:
    try:
        return parse_size(value)
    except ValueError:
        raise WrongValue(f"option {name}: {value!r} is not a size, such as 64M or 2G") from None


_READERS = {
    "endpoint": _endpoint, "region": _text, "profile": _text, "timeout": _seconds, "poll": _seconds,
    "disk_cache": _folder, "disk_cache_size": _size,
}

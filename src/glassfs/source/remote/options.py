"""Parse the options of remote sources: those after ``-o``, and ``storage_options`` of programs.

Of ``storage_options``, the fields of ``Connection`` are accepted and the names of s3fs, gcsfs, adlfs and fsspec's HTTP
file system. Options by which fsspec tunes reads and caches are ignored; unknown ones are refused, as they may matter.

Pure functions. WrongValue and Refused carry messages for the user, without secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from glassfs.errors import GlassfsError, Refused
from glassfs.sizes import human_size, parse_size
from glassfs.source.remote.url import CREDENTIALS, KNOWN, Connection, is_url, protocol_of, shown

DESCRIPTIONS = {
    "endpoint=URL": "of a URL: the server to use instead of the service's own",
    "region=NAME": "of a URL: the region of its bucket",
    "profile=NAME": "of a URL: the section of the usual credential files, such as ~/.aws/credentials",
    "anonymous": "of a URL: send no credentials",
    "timeout=SECONDS": f"of a URL: how long a read or a listing may take ({Connection.timeout:g})",
    "poll=SECONDS": f"of a URL: how often to check for changes ({Connection.poll:g})",
    "disk_cache=DIR": "of a URL: store blocks in this folder, for later mounts and commands",
    "disk_cache_size=SIZE": f"of a URL: how many bytes of them ({human_size(Connection.disk_cache_size)})",
}

_CREDENTIAL = re.compile(r"(.*_)?(key|secret|token|password|passwd|access_key_id|secret_access_key)")
SECRETS = ("key", "secret", "token")
"""Fields of ``Connection`` that only programs set."""
NAMES = {
    "s3": {
        "username": "key", "password": "secret", "endpoint_url": "endpoint", "region_name": "region",
        "aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token",
    },
    "gs": {"endpoint_url": "endpoint"},
    "az": {"account_name": "key", "account_key": "secret"},
}
"""Options of the usual file systems, and the fields of ``Connection`` that they mean."""
USUAL_CREDENTIALS = ("google_default", "cloud", "cache")
"""What gcsfs accepts as a token besides anon and tokens."""
IGNORED = frozenset((
    "asynchronous", "auto_mkdir", "batch_size", "block_size", "cache_options", "cache_type", "default_block_size",
    "default_cache_type", "default_fill_cache", "listings_expiry_time", "loop", "max_paths", "project",
    "skip_instance_cache", "use_listings_cache",
))
"""Options of file systems in general that have no effect here."""


Values = dict[str, tuple[Callable[[str], object], str]]
"""How the values of options are parsed, with a ValueError for wrong ones, and what they must be."""


class WrongValue(GlassfsError):
    """A wrong option: a mistake of the command line, not a failure."""


def split(text: str) -> list[str]:
    """Split options at commas; a backslash escapes a comma or a backslash."""
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


def with_option(connection: Connection, option: str) -> Connection | None:
    """Return the connection with a typed option applied; None if it is no option of connections. Raises WrongValue."""
    name, has_value, value = option.partition("=")
    if name == "anonymous":
        if has_value:
            raise WrongValue(f"option anonymous: takes no value, but {value!r} is given")
        return replace(connection, anonymous=True)
    if name not in _VALUES:
        if _CREDENTIAL.fullmatch(name.lower()):
            raise WrongValue(f"option {name}: {CREDENTIALS}")
        return None
    if not value:
        raise WrongValue(f"option {name}: needs a value")
    changed: dict[str, Any] = {name: parsed_value(_VALUES, name, value)}
    return replace(connection, **changed)


def parsed_value(values: Values, name: str, text: str) -> object:
    """Return what a typed option means, by the table of its kind. Raises WrongValue."""
    parse, expected = values[name]
    try:
        return parse(text)
    except ValueError:
        raise WrongValue(f"option {name}: {shown(text)!r} is not {expected}") from None


def connection_from(texts: Sequence[str]) -> Connection:
    """Return the connection for the texts after ``-o``. Raises WrongValue, also for unknown options."""
    connection = Connection()
    for option in (option.strip() for text in texts for option in split(text)):
        if option:
            changed = with_option(connection, option)
            if changed is None:
                raise WrongValue(f"unknown option {shown(option)!r}")
            connection = changed
    return connection


def public_options(connection: Connection) -> dict[str, object]:
    """Return the options of a connection that other users may see."""
    names = (option.partition("=")[0] for option in DESCRIPTIONS)
    return {name: getattr(connection, name) for name in names}


def connection_of(protocol: str, options: Mapping[str, Any], source: str) -> Connection:
    """Return the connection for options of a protocol; messages call the container ``source``. Raises Refused."""
    known = protocol_of(protocol)
    return _known(known, dict(options), source) if known in ("file", *KNOWN) else _any(dict(options), source)


def connection_to(sources: Sequence[str], options: Mapping[str, Any]) -> Connection:
    """Return the connection for sources some of which are URLs, all of one protocol. Raises Refused."""
    urls = [source for source in sources if is_url(source)]
    protocols = {protocol_of(source.partition("://")[0]) for source in urls}
    if len(protocols) != 1:
        reason = "protocols have options of their own: open them one by one" if protocols else "no source is a URL"
        raise Refused(f"there are storage_options, but {reason}")
    return connection_of(protocols.pop(), options, shown(urls[0]))


def _any(options: dict[str, Any], source: str) -> Connection:
    """Split the options of an fsspec file system from those that glassfs handles itself."""
    names = {"poll", "disk_cache", "disk_cache_size"} & options.keys()
    own = {name: options.pop(name) for name in names}
    if isinstance(options.get("timeout"), (int, float)):
        own["timeout"] = options["timeout"]
    return Connection(**_checked(own, source), extra=options)


def _known(protocol: str, options: dict[str, Any], source: str) -> Connection:
    found: dict[str, Any] = {}
    names = NAMES.get(protocol, {})
    nested = options.pop("client_kwargs", None) or {}
    if not isinstance(nested, Mapping):
        raise Refused("the option client_kwargs has to be a mapping", source)
    for option, value in (*options.items(), *nested.items()):
        name = names.get(option, option)
        # What only tunes how another library reads has no effect here. Anything else that is not known could change
        # what is read, or under whose name, so it is refused.
        if value is None or option in IGNORED or (name == "token" and value in USUAL_CREDENTIALS):
            continue
        if name in ("anon", "anonymous") or (name, value) == ("token", "anon"):
            found["anonymous"] = bool(value)
        elif name in _VALUES or name in SECRETS:
            if found.setdefault(name, value) != value:
                raise Refused(f"the option {name} is there twice, as {option}, too", source)
        else:
            called = "local files" if protocol == "file" else protocol
            raise Refused(f"glassfs does not know the option {option} for {called}", source)
    return Connection(**_checked(found, source))


def _checked(found: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the values of fields of ``Connection`` in their types. Raises Refused."""
    for name, value in found.items():
        if name in SECRETS and not isinstance(value, str):
            raise Refused(f"the option {name} has to be a text, not {type(value).__name__}", source)
    try:
        return {
            name: parsed_value(_VALUES, name, str(value)) if name in _VALUES else value for name, value in found.items()
        }
    except WrongValue as error:
        raise Refused(error.reason, source) from None


def _text(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ValueError
    return value


def _endpoint(value: str) -> str:
    scheme, _, rest = value.partition("://")
    if scheme.lower() not in ("http", "https") or not rest.strip("/") or not value.isprintable() or " " in value:
        raise ValueError
    if "@" in rest.partition("/")[0] or "?" in rest:
        raise WrongValue(f"option endpoint: {shown(value)}: {CREDENTIALS}")
    return value.rstrip("/")


def _seconds(longest: float, value: str) -> float:
    seconds = float(value)
    if not 0 < seconds <= longest:
        raise ValueError
    return seconds


_VALUES: Values = {
    "endpoint": (_endpoint, "a URL such as https://host:9000"),
    "region": (_text, "a name"),
    "profile": (_text, "a name"),
    "timeout": (partial(_seconds, 3600), "a number of seconds, over 0 and up to 3600"),
    "poll": (partial(_seconds, 30 * 86_400), "a number of seconds, over 0 and up to 2592000"),
    "disk_cache": (lambda value: os.path.abspath(os.path.expanduser(value)), "a folder"),
    "disk_cache_size": (parse_size, "a size, such as 64M or 2G"),
}

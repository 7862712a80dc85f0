"""How fsspec says where a container is, and how to reach it, as glassfs says it: one name, and a ``Connection``.

The options are those of s3fs, gcsfs, adlfs and fsspec's HTTP file system, beside the names that ``Connection`` has
itself. What is not understood is refused, as an option that did nothing might be one that mattered; those that only
tune how these file systems read and remember have no meaning here, and are passed over. Sentences name options, never
values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from glassfs.errors import Refused
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.url import ALIASES, LOCAL, WEB, is_url, local_name, shown

KNOWN = ("s3", "gs", "az", *WEB)
"""The protocols that glassfs speaks itself."""
CACHES = ("simplecache", "filecache", "blockcache", "cached")
"""File systems of fsspec that stand before others and keep what was read."""

OWN_TEXTS = ("endpoint", "region", "profile", "key", "secret", "token", "disk_cache")
OWN_NUMBERS = ("timeout", "poll", "disk_cache_size")
NAMES = {
    "s3": {
        "username": "key", "password": "secret", "endpoint_url": "endpoint", "region_name": "region",
        "aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token",
    },
    "gs": {"endpoint_url": "endpoint"},
    "az": {"account_name": "key", "account_key": "secret"},
    "http": {},
    "https": {},
}
"""What the usual file systems call what ``Connection`` calls otherwise."""
INSIDE = "client_kwargs"
"""An option of options."""
ANYBODY = ("anon", "anonymous")
TOKENS = {"anon": True, "google_default": False, "cloud": False, "cache": False}
"""What gcsfs takes for a token: whether it stands for nobody, or for the credentials that are found anyway."""
GENERAL = frozenset((
    "asynchronous", "auto_mkdir", "batch_size", "block_size", "cache_options", "cache_type", "listings_expiry_time",
    "loop", "max_paths", "skip_instance_cache", "use_listings_cache",
))
"""Options of file systems in general that mean nothing here."""
PASSED_OVER = GENERAL | {
    "blocksize", "cache_regions", "cache_timeout", "check_connection", "consistency", "default_block_size",
    "default_cache_type", "default_fill_cache", "encoded", "fill_cache", "max_concurrency", "project", "same_scheme",
    "simple_links", "size_policy",
}


def source_of(
    fo: object, target_protocol: str | None = None, target_options: Mapping[str, Any] | None = None,
) -> tuple[str, Connection]:
    """What to open, and how to reach it. Local names are made absolute.

    Raises Refused for what cannot be understood.
    """
    name = _named(fo)
    options = dict(target_options or {})
    protocol = (target_protocol or "").lower()
    scheme = name.partition("://")[0].lower() if is_url(name) else "" if name == local_name(name) else "file"
    protocol = protocol or scheme or "file"
    if protocol in CACHES:
        raise Refused(
            f"is not read through fsspec's {protocol}, which may mix up what several threads read; "
            "the option disk_cache names a folder to keep what was read", shown(name),
        )
    if protocol in LOCAL:
        if is_url(name):
            raise Refused(f"is no name of the protocol {protocol}", shown(name))
        return os.path.abspath(local_name(name)), _known("file", options, shown(name))
    known = ALIASES.get(protocol, protocol)
    if not scheme:
        name = _whole(name, protocol, options)
    elif ALIASES.get(scheme, scheme) != known:
        raise Refused(f"is no name of the protocol {protocol}", shown(name))
    return name, _known(known, options, shown(name)) if known in KNOWN else _any(options, shown(name))


def _named(fo: object) -> str:
    if isinstance(fo, os.PathLike):
        fo = os.fspath(fo)
    if not isinstance(fo, str):
        raise Refused(f"fo has to be the name of a container, not {type(fo).__name__}")
    if not fo:
        raise Refused(
            "there is no container to look into: name it as in glassfs://episodes.parquet::run.kdb, or by fo=",
        )
    return fo


def _whole(name: str, protocol: str, options: dict[str, Any]) -> str:
    """The URL of which fsspec has taken off the protocol, and the host and user, which become options."""
    if ALIASES.get(protocol, protocol) in KNOWN or not options.get("host"):
        return f"{protocol}://{name}"
    host, port, user = (options.pop(option, None) for option in ("host", "port", "username"))
    return f"{protocol}://{f'{user}@' if user else ''}{host}{f':{port}' if port else ''}/{name.lstrip('/')}"


def _any(options: dict[str, Any], source: str) -> Connection:
    """For a protocol that fsspec has a file system for: what glassfs does itself is taken out of its options."""
    own: dict[str, Any] = {
        name: options.pop(name) for name in ("poll", "disk_cache", "disk_cache_size") if name in options
    }
    if isinstance(options.get("timeout"), (int, float)):
        own["timeout"] = options["timeout"]
    return Connection(**_checked(own, source), extra=options)


def _known(protocol: str, options: dict[str, Any], source: str) -> Connection:
    said: dict[str, Any] = {}
    names = NAMES.get(protocol, {})
    inside = options.pop(INSIDE, None) or {}
    if not isinstance(inside, Mapping):
        raise Refused(f"the option {INSIDE} has to be a mapping", source)
    for option, value in (*options.items(), *inside.items()):
        name = names.get(option, option)
        if value is None or option in PASSED_OVER:
            continue
        if option in ANYBODY:
            said["anonymous"] = bool(value)
        elif protocol == "gs" and name == "token" and isinstance(value, str) and value in TOKENS:
            said["anonymous"] = TOKENS[value] or said.get("anonymous", False)
        elif protocol == "gs" and name == "token" and isinstance(value, str) and "/" in value:
            raise Refused(
                "the option token names a file: that of a service account is taken from GOOGLE_APPLICATION_CREDENTIALS",
                source,
            )
        elif protocol == "s3" and option == "use_ssl" and value:
            continue
        elif name in OWN_TEXTS or name in OWN_NUMBERS:
            if said.setdefault(name, value) != value:
                raise Refused(f"the option {name} is there twice, as {option}, too", source)
        else:
            raise Refused(f"glassfs does not know the option {option} for {_called(protocol)}", source)
    return Connection(**_checked(said, source))


def _checked(said: dict[str, Any], source: str) -> dict[str, Any]:
    for name, value in said.items():
        if name == "disk_cache" and isinstance(value, os.PathLike):
            said[name] = os.fspath(value)
        elif name in OWN_TEXTS and not isinstance(value, str):
            raise Refused(f"the option {name} has to be a text, not {type(value).__name__}", source)
        elif name in OWN_NUMBERS and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            raise Refused(f"the option {name} has to be a number", source)
    return said


def _called(protocol: str) -> str:
    return "local files" if protocol == "file" else protocol

"""Translate ``storage_options`` of programs into a ``Connection``. Pure functions.

Accepted are the fields of ``Connection`` and the names of s3fs, gcsfs, adlfs and fsspec's HTTP file system. Options
that only tune how these read and cache are ignored; unknown ones are refused, as they may matter. Messages name
options, never values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from glassfs.errors import Refused
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.url import KNOWN, is_url, protocol_of, shown

OWN_TEXTS = ("endpoint", "region", "profile", "key", "secret", "token", "disk_cache")
OWN_NUMBERS = ("timeout", "poll", "disk_cache_size")
NAMES = {
    "s3": {
        "username": "key", "password": "secret", "endpoint_url": "endpoint", "region_name": "region",
        "aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token",
    },
    "gs": {"endpoint_url": "endpoint"},
    "az": {"account_name": "key", "account_key": "secret"},
}
"""Options of the usual file systems, and the fields of ``Connection`` that they mean."""
NESTED = "client_kwargs"
"""An option that contains options."""
ANONYMOUS = ("anon", "anonymous")
USUAL_CREDENTIALS = ("google_default", "cloud", "cache")
"""What gcsfs accepts as a token besides anon and tokens."""
GENERAL = frozenset((
    "asynchronous", "auto_mkdir", "batch_size", "block_size", "cache_options", "cache_type", "listings_expiry_time",
    "loop", "max_paths", "skip_instance_cache", "use_listings_cache",
))
"""Options of file systems in general that have no effect here."""
IGNORED = GENERAL | {
    "blocksize", "cache_regions", "cache_timeout", "check_connection", "consistency", "default_block_size",
    "default_cache_type", "default_fill_cache", "encoded", "fill_cache", "max_concurrency", "project", "same_scheme",
    "simple_links", "size_policy",
}


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
    own: dict[str, Any] = {
        name: options.pop(name) for name in ("poll", "disk_cache", "disk_cache_size") if name in options
    }
    if isinstance(options.get("timeout"), (int, float)):
        own["timeout"] = options["timeout"]
    return Connection(**_checked(own, source), extra=options)


def _known(protocol: str, options: dict[str, Any], source: str) -> Connection:
    found: dict[str, Any] = {}
    names = NAMES.get(protocol, {})
    nested = options.pop(NESTED, None) or {}
    if not isinstance(nested, Mapping):
        raise Refused(f"the option {NESTED} has to be a mapping", source)
    for option, value in (*options.items(), *nested.items()):
        name = names.get(option, option)
        # What only tunes how another library reads has no effect here. Anything else that is not known could change
        # what is read, or under whose name, so it is refused.
        if value is None or option in IGNORED or ((protocol, option) == ("s3", "use_ssl") and value):
            continue
        if (protocol, name) == ("gs", "token") and isinstance(value, str):
            if value in USUAL_CREDENTIALS:
                continue
            if value == "anon":
                name = value
            elif "/" in value:
                raise Refused(
                    "the option token names a file: "
                    "that of a service account is taken from GOOGLE_APPLICATION_CREDENTIALS", source,
                )
        if name in ANONYMOUS:
            found["anonymous"] = bool(value)
        elif name in OWN_TEXTS or name in OWN_NUMBERS:
            if found.setdefault(name, value) != value:
                raise Refused(f"the option {name} is there twice, as {option}, too", source)
        else:
            called = "local files" if protocol == "file" else protocol
            raise Refused(f"glassfs does not know the option {option} for {called}", source)
    return Connection(**_checked(found, source))


def _checked(found: dict[str, Any], source: str) -> dict[str, Any]:
    for name, value in found.items():
        if name == "disk_cache" and isinstance(value, os.PathLike):
            found[name] = os.fspath(value)
        elif name in OWN_TEXTS and not isinstance(value, str):
            raise Refused(f"the option {name} has to be a text, not {type(value).__name__}", source)
        elif name == "endpoint" and not value.lower().startswith(("http://", "https://")):
            raise Refused(f"the option {name} has to be a URL such as https://host:9000", source)
        elif name in OWN_NUMBERS and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise Refused(f"the option {name} has to be a number over 0", source)
    return found

"""What programs say of how to reach a server, in a mapping of options, as a ``Connection``. Pure functions.

The names are those of s3fs, gcsfs, adlfs and fsspec's HTTP file system, beside those that ``Connection`` has itself.
What is not understood is refused, as an option that did nothing might be one that mattered; those that only tune how
these file systems read and remember have no meaning here, and are passed over. Sentences name options, never values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from glassfs.errors import Refused
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.url import ALIASES, LOCAL, WEB, is_url, shown

KNOWN = ("s3", "gs", "az", *WEB)
"""The protocols that glassfs speaks itself."""

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


def connection_of(protocol: str, options: Mapping[str, Any], source: str) -> Connection:
    """What these options say of how to reach what has this protocol; sentences call it ``source``. Raises Refused."""
    if protocol in LOCAL:
        return _known("file", dict(options), source)
    known = ALIASES.get(protocol, protocol)
    return _known(known, dict(options), source) if known in KNOWN else _any(dict(options), source)


def connection_to(sources: Sequence[str], options: Mapping[str, Any]) -> Connection:
    """The same for sources of which some are URLs. Raises Refused where these have several protocols, or none is."""
    urls = [source for source in sources if is_url(source)]
    schemes = {source.partition("://")[0].lower() for source in urls}
    if len({ALIASES.get(scheme, scheme) for scheme in schemes}) != 1:
        reason = "protocols have options of their own: open them one by one" if schemes else "no source is a URL"
        raise Refused(f"there are storage_options, but {reason}")
    return connection_of(schemes.pop(), options, shown(urls[0]))


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
        elif name == "endpoint" and not value.lower().startswith(("http://", "https://")):
            raise Refused(f"the option {name} has to be a URL such as https://host:9000", source)
        elif name in OWN_NUMBERS and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise Refused(f"the option {name} has to be a number over 0", source)
    return said


def _called(protocol: str) -> str:
    return "local files" if protocol == "file" else protocol

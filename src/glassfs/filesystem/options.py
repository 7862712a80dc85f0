"""Rebuild the URL of a container, which fsspec has split into protocol, path and options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from glassfs.errors import Refused
from glassfs.source.remote.options import connection_of
from glassfs.source.remote.url import KNOWN, Connection, is_url, local_name, protocol_of, shown

CACHES = ("simplecache", "filecache", "blockcache", "cached")
"""File systems of fsspec that cache the bytes of others."""


def source_of(
    fo: object, target_protocol: str | None = None, target_options: Mapping[str, Any] | None = None,
) -> tuple[str, Connection]:
    """Return what to open, and the connection. Local names become absolute. Raises Refused if they do not fit."""
    name = _named(fo)
    options = dict(target_options or {})
    scheme = protocol_of(name.partition("://")[0]) if is_url(name) else "" if name == local_name(name) else "file"
    typed = (target_protocol or "").lower()
    protocol = protocol_of(typed or scheme or "file")
    # Their cached files are named by the URL and not by the version of a container.
    if protocol in CACHES:
        raise Refused(
            f"is not read through fsspec's {protocol}, which may mix up what several threads read; "
            "the option disk_cache names a folder to keep what was read", shown(name),
        )
    if protocol == "file":
        if is_url(name):
            raise Refused(f"is not a name of the protocol {protocol}", shown(name))
        return os.path.abspath(local_name(name)), connection_of(protocol, options, shown(name))
    if not scheme:
        name = _whole(name, typed, options)
    elif scheme != protocol:
        raise Refused(f"is not a name of the protocol {protocol}", shown(name))
    return name, connection_of(protocol, options, shown(name))


def _named(fo: object) -> str:
    if isinstance(fo, os.PathLike):
        fo = os.fspath(fo)
    if not isinstance(fo, str):
        raise Refused(f"fo has to be the name of a container, not {type(fo).__name__}")
    if not fo:
        raise Refused("no container is named: name it as in glassfs://episodes.parquet::run.kdb, or by fo=")
    return fo


def _whole(name: str, protocol: str, options: dict[str, Any]) -> str:
    """Return the URL: fsspec has removed the protocol, and moved host and user to the options."""
    if protocol_of(protocol) in KNOWN or not options.get("host"):
        return f"{protocol}://{name}"
    host, port, user = (options.pop(option, None) for option in ("host", "port", "username"))
    return f"{protocol}://{f'{user}@' if user else ''}{host}{f':{port}' if port else ''}/{name.lstrip('/')}"

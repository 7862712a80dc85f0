"""URLs of remote sources, without what other users must not see, and what is needed to reach their servers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassfs.errors import Refused
from glassfs.source.contract import Path

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
LOCAL = ("file", "local")
ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "azure": "az", "adl": "az", "local": "file"}
WEB = ("http", "https")
KNOWN = ("s3", "gs", "az", *WEB)
"""Protocols that glassfs speaks itself."""
CREDENTIALS = (
    "credentials are taken from the environment and the usual files (~/.aws, ~/.netrc …), never from the command line"
)


@dataclass(frozen=True)
class Connection:
    """Options and credentials for a server; times in seconds, sizes in bytes. ``repr`` shows no secrets.

    ``endpoint`` and ``region`` are those of a service such as S3; ``profile`` is a section of the usual credential
    files; ``anonymous`` sends no credentials. A read or listing ends within ``timeout``; listings are refreshed every
    ``poll``. Blocks are stored in the folder ``disk_cache`` if there is one. Entries belong to the current user and
    group, and have ``permissions``: nine bits; folders may be entered by those who may read.
    ``key``, ``secret`` and ``token`` are credentials that a program passes; ``extra`` are options of the fsspec file
    system of a protocol that glassfs does not speak itself.
    """

    endpoint: str = ""
    region: str = ""
    profile: str = ""
    anonymous: bool = False
    timeout: float = 30.0
    poll: float = 30.0
    disk_cache: str = ""
    disk_cache_size: int = 10 << 30
    permissions: int = 0o400
    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Url(NamedTuple):
    """A URL in parts. ``path`` are the names below the bucket or server, decoded.

    ``shown`` is the URL without userinfo and query. ``is_folder`` if it has no path, or one that ends with a slash.
    """

    scheme: str
    host: str
    path: Path
    query: str
    userinfo: str
    shown: str
    is_folder: bool


def protocol_of(scheme: str) -> str:
    """Return the protocol that a scheme means, by one name."""
    return ALIASES.get(scheme.lower(), scheme.lower())


def is_url(name: str) -> bool:
    """Return whether this is the URL of a remote source: not a local name, nor ``file://``."""
    found = _URL.match(name)
    return found is not None and found[1].lower() not in LOCAL


def local_name(name: str) -> str:
    """Return the local name that a ``file://`` URL stands for; any other name unchanged."""
    found = _URL.match(name)
    if found is None or found[1].lower() not in LOCAL:
        return name
    rest = name[found.end() :]
    return rest.removeprefix("localhost") if rest.startswith("localhost/") else rest


def absolute(name: str) -> str:
    """Return a name that does not depend on the current directory."""
    return name if is_url(name) else os.path.abspath(local_name(name))


def shown(name: str) -> str:
    """Return a name that other users may see: a URL loses userinfo, query and fragment."""
    found = _URL.match(name)
    if found is None:
        return name
    rest = re.split(r"[?#]", name[found.end() :], maxsplit=1)[0] if is_url(name) else name[found.end() :]
    host, slash, path = rest.partition("/")
    return f"{found[0]}{host.rpartition('@')[2]}{slash}{path}"


def parsed(name: str) -> Url:
    """Parse a URL. Raises Refused, which names it without its secrets, also for a password that others could see."""
    from urllib.parse import unquote, urlsplit  # local names need no URLs

    found = _URL.match(name)
    if found is None:
        raise Refused("is not a URL", name)
    scheme = protocol_of(found[1])
    rest = name[found.end() :]
    query = ""
    if scheme in WEB:
        try:
            split = urlsplit(name)
        except ValueError:
            raise Refused("is not a URL", shown(name)) from None
        rest, query = split.netloc + split.path, split.query
    host, _, path = rest.partition("/")
    userinfo, _, host = host.rpartition("@")
    # In other URLs it may be a user, or the name of a container.
    if userinfo and (scheme in ("s3", "gs", *WEB) or ":" in userinfo):
        raise Refused(CREDENTIALS, shown(name))
    # Paths on the web are percent-encoded, keys of buckets and names of other servers are taken literally.
    typed = path.rstrip("/").split("/") if path.strip("/") else []
    parts = tuple(unquote(part, errors="surrogateescape") if scheme in WEB else part for part in typed)
    if any(part in ("", ".", "..") or "\0" in part or "/" in part for part in parts):
        raise Refused("contains a name that no file can have", shown(name))
    return Url(
        scheme, host, parts, query, userinfo, shown(name).rstrip("/") if host else shown(name),
        not path or path.endswith("/"),
    )

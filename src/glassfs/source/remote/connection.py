"""The options and credentials to reach the server of a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Connection:
    """Options and credentials; times in seconds, sizes in bytes. ``repr`` shows no secrets.

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

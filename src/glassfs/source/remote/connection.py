"""How to reach what is named by a URL: what a person says beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TIMEOUT = 30.0
POLL = 30.0
DISK_CACHE_SIZE = 10 << 30
MEMORY = 64 << 20


@dataclass(frozen=True)
class Connection:
    """Times are seconds, sizes bytes. What is secret is not in its ``repr``.

    ``endpoint`` and ``region`` are those of a service such as S3; ``profile`` is a section of the usual files with
    credentials, and ``anonymous`` is for whoever has none. A read or listing ends within ``timeout``. What was listed
    is looked at again every ``poll``. Blocks are kept in up to ``memory``, and in the folder ``disk_cache`` if there is
    one. What is there belongs to ``owner``, a user and a group, or to who runs this, and has ``permissions``: nine
    bits, of which folders have those for reading as those for entering, too. ``key``, ``secret`` and ``token`` are
    credentials of programs that have them; ``extra`` are options for the fsspec file system of a protocol that glassfs
    does not know itself.
    """

    endpoint: str = ""
    region: str = ""
    profile: str = ""
    anonymous: bool = False
    timeout: float = TIMEOUT
    poll: float = POLL
    disk_cache: str = ""
    disk_cache_size: int = DISK_CACHE_SIZE
    memory: int = MEMORY
    owner: tuple[int, int] | None = None
    permissions: int = 0o400
    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def within(self, memory: int) -> Connection:
        """The same, with so much memory for blocks."""
        return replace(self, memory=memory)

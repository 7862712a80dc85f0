"""Open what the user named as the target of an export: a folder or a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from glassfs.cli.target import Existing, Target, opened_folder
from glassfs.source import Connection, is_url


@contextmanager
def opened_target(
    name: str, mode: int, existing: Existing, source: str, connection: Connection, is_begun: bool = False,
) -> Iterator[Target]:
    """Open a target for a ``with``; see ``opened_folder`` and ``opened_bucket_target`` for what is refused."""
    if is_url(name):
        from glassfs.cli.bucket import opened_bucket_target  # needs packages that local targets do not

        yield opened_bucket_target(name, existing, source, connection, is_begun)
        return
    with opened_folder(name, mode, existing, source, is_begun) as target:
        yield target

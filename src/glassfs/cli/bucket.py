"""Write an export to a bucket: an object for each file, which appears when it is complete.

One thread. Failures raise NotWritten; Unusable if the server fails, as nothing else can be written either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from glassfs.cli.target import INSIDE, NOT_EMPTY, Existing, NotWritten, Target, Unusable
from glassfs.errors import GlassfsError
from glassfs.source import Connection, Path, is_url
from glassfs.source.remote.objects import SCHEMES, NotUploaded, ObjectServer, upload_options
from glassfs.source.remote.open import bucket_of
from glassfs.source.remote.url import parsed

LONGEST_KEY = 1024
"""Limit of bytes in the name of an object, on all three services."""


@dataclass
class BucketTarget(Target):
    """The objects below ``root`` of a bucket. Folders exist only as parts of names.

    Objects at or below ``kept`` (the source) are not written.
    """

    server: ObjectServer
    root: Path
    kept: Path | None
    has_links = False

    def make_folder(self, path: str, mode: int) -> None:
        self._key(path)

    def write(self, path: str, mode: int, mtime_ns: int, pieces: Iterable[memoryview], size: int) -> None:
        key = self._key(path)
        if self.kept is not None and key[: len(self.kept)] == self.kept:
            raise NotWritten("is the source itself")
        with _writing("; continue with --resume"):
            self.server.put(key, size, mtime_ns, pieces)

    def link(self, path: str, goal: str, mtime_ns: int) -> None:
        raise NotWritten("is a symbolic link, which buckets do not have, and leads to nothing that could be copied")

    def has_file(self, path: str, mtime_ns: int, size: int | None) -> bool:
        with _writing():
            found = self.server.uploaded(self._key(path))
        return found is not None and found[1] == mtime_ns and size in (None, found[0])

    def has_anything(self, path: str) -> bool:
        # A folder exists if anything has its name as a prefix; the target itself also if an object has its very name.
        key = (*self.root, *path.split("/")[1:]) if path != "/" else self.root
        with _writing():
            return self.server.has_below(key) or (bool(key) and self.server.uploaded(key) is not None)

    def _key(self, path: str) -> Path:
        key = (*self.root, *path.split("/")[1:])
        if len("/".join(key).encode()) > LONGEST_KEY:
            raise NotWritten(f"its name is longer than {LONGEST_KEY:,} bytes")
        return key


def opened_bucket_target(
    typed: str, existing: Existing, source: str, connection: Connection, is_begun: bool,
) -> BucketTarget:
    """Return the target for a URL. Refused before anything is written: other servers than buckets, a URL that is
    ``source`` or inside it, and one with objects below it unless ``existing`` allows that.
    """
    url = parsed(typed)
    if url.scheme not in SCHEMES:
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise NotWritten(f"cannot be written to; export writes to folders and to {schemes}")
    kept = None
    if is_url(source):
        of = parsed(source)
        is_same_bucket = (of.scheme, of.host, of.userinfo) == (url.scheme, url.host, url.userinfo)
        kept = of.path if is_same_bucket else None
    if kept is not None and url.path[: len(kept)] == kept:
        raise NotWritten(INSIDE)
    try:
        server = bucket_of(url, connection, upload_options)
    except GlassfsError as error:
        raise Unusable(error.reason) from error
    target = BucketTarget(server, url.path, kept)
    if not is_begun and target.has_anything("/") and existing is Existing.REFUSE:
        raise NotWritten(NOT_EMPTY)
    return target


@contextmanager
def _writing(advice: str = "") -> Iterator[None]:
    """Turn failures of the server into Unusable; errors of the source pass through."""
    try:
        yield
    except NotUploaded as error:
        raise Unusable(f"{error.reason}{advice}") from error

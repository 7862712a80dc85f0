"""The contract of a remote server, which lists folders and reads objects by any protocol.

Every method may be called from any thread and ends within ``timeout`` seconds, retries included. Implementations check
answers before they return them: the length of the bytes and the version of the object.

Errors: NotFound, NotAllowed; Changed if the object is not in the version asked for; DeviceFailed if the server does not
answer, or answers nonsense. No message contains a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from glassfs.errors import GlassfsError
from glassfs.source.contract import Path
from glassfs.source.remote.retrying import Attempt, Result, result_of, retried, start

SECOND = 10**9
"""In nanoseconds."""
NO_HOST = "there is no host of this name"
MOST_NAMES = 1_000_000
"""Names that one folder may have. A name takes some 400 bytes."""


class Facts(NamedTuple):
    """Size, version and time of an object as its server reports them.

    ``etag`` differs between versions of the bytes ("": unknown). ``mtime_ns`` counts from 1970, UTC (0: unknown).
    """

    size: int
    etag: str
    mtime_ns: int

    def fits(self, now: Facts) -> bool:
        """Return whether an answer with the facts ``now`` may be of this version.

        Listings may leave ETags out, or give weak ones (``W/``) where answers have strong ones. Times count then, and
        those of an answer may be in whole seconds.
        """
        if self.size != now.size or (self.etag and not now.etag):
            return False
        if self.etag and self.etag.removeprefix("W/") != now.etag.removeprefix("W/"):
            return False
        return self.has_strong_etag or now.mtime_ns in (self.mtime_ns, self.mtime_ns // SECOND * SECOND)

    @property
    def is_possible(self) -> bool:
        """Whether an object can have the size."""
        return 0 <= self.size <= 1 << 62

    @property
    def has_strong_etag(self) -> bool:
        """Whether other bytes always have another ETag."""
        return self.etag not in ("", "*") and not self.etag.startswith("W/")


class Listed(NamedTuple):
    """A name in a folder, or what follows the folder in a key if no file can have that name (``is_name``).

    ``facts`` is None for a folder. ``omitted`` says why the name is not shown.
    """

    name: str
    facts: Facts | None
    omitted: str = ""


def is_name(name: str) -> bool:
    """Return whether a file can have this name."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


NO_NAME = "object name: no file can have a name that is empty, . or .., or contains a zero byte"


class Server:
    """Objects under paths. Subclasses make single attempts, which raise GlassfsError or Retryable.

    ``name`` is the root without secrets and without a slash at the end. ``identity`` tells the server from all others;
    it contains no secret either. ``timeout`` is in seconds. ``has_lasting_versions`` if ETags are never used again.
    """

    name: str
    identity: str
    timeout: float
    has_lasting_versions = False

    def shown(self, path: Path) -> str:
        """Return the URL of an object, without secrets."""
        return "/".join((self.name, *path))

    def list(self, path: Path) -> Sequence[Listed]:
        """Return the contents of a folder in any order.

        Raises NotFound for a missing folder, or returns nothing if the server cannot tell it from an empty one.
        """
        return result_of(self._retried(path, lambda: self._list(path)), self.timeout, self.shown(path))

    def is_folder(self, path: Path) -> bool:
        """Return whether the server says so, without a listing; False if it does not say."""
        return False

    def explained(self, error: GlassfsError) -> GlassfsError:
        """Return the error of the first request, with its cause if that can be found out. May take a few seconds."""
        return error

    def begin(self, path: Path, size: int, known: Facts | None = None) -> tuple[Facts, bytes] | None:
        """Return an object's facts and up to ``size`` of its first bytes, in one request; None if they equal ``known``.
        """
        return result_of(self._retried(path, lambda: self._begin(path, size, known)), self.timeout, self.shown(path))

    def fetch(self, path: Path, offset: int, size: int, facts: Facts) -> Future[bytes]:
        """Start to read bytes of an object in that version; all of them lie inside it.

        The result has exactly ``size`` bytes. Cancelling the future cancels the request.
        """
        return start(self._retried(path, lambda: self._read(path, offset, size, facts)))

    def close(self) -> None:
        """Close connections that do not close by themselves; later requests make new ones."""

    async def _retried(self, path: Path, attempt: Attempt[Result]) -> Result:
        return await retried(attempt, self.timeout, self.shown(path))

    async def _list(self, path: Path) -> Sequence[Listed]:
        raise NotImplementedError

    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        raise NotImplementedError

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        raise NotImplementedError

"""The contract of what is elsewhere: who answers for objects under keys, whatever protocol it speaks.

Every method may be called from any thread, and ends within ``timeout`` seconds, tries included. What is asked of a
server is checked before it is believed: the length of what it gives, and of which version it is.

Errors: NotFound, NotAllowed; Changed where an object is not in the version that was meant; DeviceFailed where the
server does not answer, or not as it should. None of their sentences has anything secret in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from glassfs.source.contract import Path

SECOND = 10**9


class Facts(NamedTuple):
    """What a server says of an object. ``etag`` tells one version of its bytes from others ("": it does not say).

    ``mtime_ns`` are nanoseconds since 1970, UTC (0: it does not say).
    """

    size: int
    etag: str
    mtime_ns: int

    def fits(self, now: Facts) -> bool:
        """Whether an answer with those facts is of the version that these are of, as far as they tell.

        A listing may leave ETags out, or give weak ones (``W/``) where answers have strong ones; then times count,
        which are of whole seconds in answers.
        """
        if self.size != now.size or (self.etag and not now.etag):
            return False
        if self.etag and self.etag.removeprefix("W/") != now.etag.removeprefix("W/"):
            return False
        return self.is_told_apart or self.mtime_ns // SECOND == now.mtime_ns // SECOND

    @property
    def is_told_apart(self) -> bool:
        """Whether other bytes would have other facts for good."""
        return self.etag not in ("", "*") and not self.etag.startswith("W/")


class Listed(NamedTuple):
    """A name in a folder, and what is called so: an object, or a folder where ``facts`` are None."""

    name: str
    facts: Facts | None


class Server(ABC):
    """Objects under paths. ``name`` is what people may see of its root, without a slash at the end.

    ``identity`` tells it from all others, and has nothing secret in it. ``timeout`` is in seconds. It
    ``has_lasting_versions`` if its ETags tell the versions of an object apart for good.
    """

    name: str
    identity: str
    timeout: float
    has_lasting_versions = False

    def shown(self, path: Path) -> str:
        return "/".join((self.name, *path))

    @abstractmethod
    def list(self, path: Path) -> Sequence[Listed]:
        """What is in the folder at ``path``, in any order; nothing for one that is not there, where none can be empty.

        Raises NotFound where the server can tell that there is none.
        """

    @abstractmethod
    def begin(self, path: Path, size: int, known: Facts | None = None) -> tuple[Facts, bytes] | None:
        """What an object is, and up to ``size`` of its first bytes, in one request; None if it is as ``known``."""

    @abstractmethod
    def fetch(self, path: Path, offset: int, size: int, facts: Facts) -> Future[bytes]:
        """Begins to get bytes of an object in that version, all of which are inside of it.

        The result has as many bytes as were asked for, and no others. Cancelling it gives up the request.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives back connections; they are made again when they are needed."""

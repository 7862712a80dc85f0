"""Objects in buckets and on web servers, through obstore: S3, Google Cloud Storage, Azure, HTTP and WebDAV.

obstore signs requests and keeps connections. What is done here: trying again what may be otherwise the next time, until
the time is up; and seeing to it of each answer that it is the part that was asked for, as long as it says, and of the
version that was meant. Any thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from types import ModuleType
from typing import Any, TypeVar

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused
from glassfs.source.contract import Path
from glassfs.source.remote import runner
from glassfs.source.remote.s3_pages import S3Pages, believed
from glassfs.source.remote.server import Facts, Listed, Server
from glassfs.terminal import printable

log = logging.getLogger(__name__)

TRIES = 6
FIRST_PAUSE = 0.1
"""Seconds between the first two tries; then twice as long each time."""
SILENCE = 3
"""A try is given up after this part of the whole time without a byte, so that there is time for another one."""
GRACE = 0.5
"""Seconds that a thread waits longer than what it waits for may take."""
SMALL = 256 << 10
"""Bytes of an object that is read whole where a server gives no parts."""
LONGEST_SENTENCE = 200
LONG_LISTING = 2.0
"""Seconds after which a listing goes on by pages where that can be: obstore would gather names without end.

Where it cannot be, the listing is given up after the part of the whole time that a silence may have, too.
"""
MOST_BY_PAGE = 10_000
_PASSING = ("408", "425", "429", "500", "502", "503", "504")
"""Answers of a server that may be others the next time."""
_NO_WEBDAV = re.compile(r"answers (400|403|405|501)\b")
_URL = re.compile(r"\w+://\S+")
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z-]*)*)")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
NOT_A_PART = "non-partial response"
UNTRUSTED = "its certificate is not trusted"
_CAUSES = (
    ("InvalidCertificate", UNTRUSTED), ("certificate", UNTRUSTED),
    ("dns error", "there is no host of this name"),
    ("Connection refused", "the connection is refused"),
    ("URL scheme is not allowed", "it is plain http, which is not expected here"),
    ("kind: Timeout", "it does not answer"),
    ("kind: Connect", "it cannot be reached"),
    ("kind: Interrupted", "the connection ended in the middle"),
    ("redirect", "it redirects without end"),
)
Result = TypeVar("Result")


class _Passing(Exception):
    """What may be otherwise the next time; ``reason`` is the sentence if it is not, ``kind`` the error then."""

    def __init__(self, reason: str, kind: type[GlassfsError] = DeviceFailed) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


class _Unlistable(Exception):
    """obstore does not list a folder."""


class _Whole(Exception):
    """A part was asked for, and the answer says that it is the whole."""


class ObjectServer(Server):
    """``make`` makes an obstore store when it is first needed; ``library`` is the package, as there may be several.

    ``pages`` is a second way to list folders.
    """

    def __init__(
        self, name: str, identity: str, make: Callable[[], Any], library: ModuleType, timeout: float,
        has_lasting_versions: bool, pages: S3Pages | None = None,
    ) -> None:
        self.name = name
        self.identity = identity
        self.timeout = timeout
        self.has_lasting_versions = has_lasting_versions
        self._make = make
        self._library = library
        self._store: Any = None
        self._pages = pages
        self._by_page: set[Path] = set()
        """Folders that obstore does not list."""

    def list(self, path: Path) -> Sequence[Listed]:
        return self._result(path, self._tried(path, lambda: self._list(path)))

    def begin(self, path: Path, size: int, known: Facts | None = None) -> tuple[Facts, bytes] | None:
        return self._result(path, self._tried(path, lambda: self._begin(path, size, known)))

    def fetch(self, path: Path, offset: int, size: int, facts: Facts) -> Future[bytes]:
        return runner.start(self._tried(path, lambda: self._part(path, offset, size, facts)))

    def close(self) -> None:
        self._store = None
        if self._pages is not None:
            self._pages.close()

    @staticmethod
    def options(timeout: float) -> dict[str, Any]:
        """What obstore is told of every store. It tries nothing again: that is done here, for bodies as well."""
        return {
            "client_options": {
                "timeout": timedelta(seconds=timeout), "connect_timeout": timedelta(seconds=timeout / SILENCE),
                "read_timeout": timedelta(seconds=timeout / SILENCE), "user_agent": "glassfs",
            },
            "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout)},
        }

    def _result(self, path: Path, work: Coroutine[Any, Any, Result]) -> Result:
        future = runner.start(work)
        try:
            return future.result(self.timeout + GRACE)
        except (FutureTimeout, CancelledError):
            future.cancel()
            raise self._silent(path) from None

    async def _tried(self, path: Path, once: Callable[[], Awaitable[Result]]) -> Result:
        """What ``once`` gives, tried until the time is up where trying again may help."""
        deadline = time.monotonic() + self.timeout
        for number in itertools.count(1):
            try:
                return await asyncio.wait_for(self._said(path, once()), max(0.0, deadline - time.monotonic()))
            except (TimeoutError, asyncio.TimeoutError):
                raise self._silent(path) from None
            except _Passing as error:
                pause = FIRST_PAUSE * 2 ** (number - 1) * random.uniform(0.8, 1.2)
                if number == TRIES or time.monotonic() + pause >= deadline:
                    raise error.kind(error.reason, self.shown(path)) from None
                await asyncio.sleep(pause)
        raise AssertionError

    async def _list(self, path: Path) -> Sequence[Listed]:
        if self._pages is None:
            try:
                return await asyncio.wait_for(self._whole_list(path), self.timeout / SILENCE)
            except _Unlistable as error:
                raise DeviceFailed(f"cannot be listed: {error}", self.shown(path)) from None
            except (TimeoutError, asyncio.TimeoutError):
                raise DeviceFailed(
                    f"the listing does not end within {self.timeout / SILENCE:.3g} seconds", self.shown(path),
                ) from None
        if path not in self._by_page:
            try:
                return await asyncio.wait_for(self._whole_list(path), min(LONG_LISTING, self.timeout / SILENCE))
            except _Unlistable as error:
                reason = str(error)
            except (TimeoutError, asyncio.TimeoutError):
                reason = "it takes long"
            if len(self._by_page) == MOST_BY_PAGE:
                self._by_page.clear()
            self._by_page.add(path)
            log.info("%s: is listed page by page: %s", printable(self.shown(path)), reason)
        return await asyncio.wrap_future(self._pages.begin(path, self.shown(path)))

    async def _whole_list(self, path: Path) -> Sequence[Listed]:
        try:
            found = await self._library.list_with_delimiter_async(self._opened(), "/".join(path) or None)
        except (self._library.exceptions.InvalidPathError, ValueError):
            raise _Unlistable("there is an object whose name is no path") from None
        except self._library.exceptions.GenericError as error:
            if "nvalid list response" in str(error):
                raise _Unlistable("there is a name that cannot be understood") from None
            raise
        depth = len(path)
        listed = [Listed(one.split("/")[depth], None) for one in found["common_prefixes"] if one.count("/") >= depth]
        for meta in found["objects"]:
            names = str(meta["path"]).split("/")
            facts = _facts(meta)
            if len(names) == depth + 1 and facts is not None:  # a folder can be an object of its own
                listed.append(Listed(names[-1], facts))
        return [one for one in listed if one.name not in ("", ".", "..")]

    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        options: dict[str, Any] = {"range": (0, size)}
        if known is not None and known.is_told_apart:
            options["if_none_match"] = known.etag
        try:
            result = await self._get(path, options)
        except self._library.exceptions.NotModifiedError:
            return None
        except _Whole:
            # The server gives whole files only, which will do for one that is small.
            result = await self._get(path, {})
            if result.meta["size"] > size:
                raise Refused("cannot be read in parts: the server ignores what part is asked for",
                              self.shown(path)) from None
        except self._library.exceptions.GenericError as error:
            if "status code: 416" not in str(error):
                raise
            return Facts(0, "", 0), b""
        facts = _facts(result.meta)
        if facts is None:
            raise DeviceFailed("the server says that it is larger than anything can be", self.shown(path))
        if known is not None and known.fits(facts):
            return None
        start, end = result.range
        if start != 0 or end != min(size, facts.size):
            raise _Passing(f"the server gives bytes {start} to {end} in the place of 0 to {min(size, facts.size)}")
        return facts, await self._body(result, end)

    async def _part(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        options: dict[str, Any] = {"range": (offset, offset + size)}
        if facts.is_told_apart:
            options["if_match"] = facts.etag
        try:
            result = await self._get(path, options)
        except self._library.exceptions.PreconditionError:
            raise Changed("has been replaced by another object", self.shown(path)) from None
        except _Whole:
            if facts.size > SMALL:
                raise _Passing("the server gives the whole in the place of a part", Changed) from None
            result = await self._get(path, {})
            self._demand(path, result, facts, 0, facts.size)
            return (await self._body(result, facts.size))[offset : offset + size]
        self._demand(path, result, facts, offset, size)
        return await self._body(result, size)

    def _demand(self, path: Path, result: Any, facts: Facts, offset: int, size: int) -> None:
        """Raises Changed where an answer is of another version, _Passing where it is of another part."""
        now = _facts(result.meta)
        if now is None or not facts.fits(now):
            raise Changed("has been replaced by another object", self.shown(path))
        start, end = result.range
        if (start, end) != (offset, offset + size):
            raise _Passing(f"the server gives bytes {start} to {end} in the place of others")

    async def _get(self, path: Path, options: dict[str, Any]) -> Any:
        exceptions = self._library.exceptions
        try:
            return await self._library.get_async(self._opened(), "/".join(path), options=options)
        except exceptions.NotSupportedError:
            raise _Whole from None
        except exceptions.GenericError as error:
            if NOT_A_PART in str(error):
                raise _Whole from None
            raise

    async def _body(self, result: Any, size: int) -> bytes:
        """Exactly ``size`` bytes; of a body that goes on no more is read."""
        pieces, rest = [], size
        stream = result.stream(min_chunk_size=max(1, min(size, 1 << 20))).__aiter__()
        while rest >= 0:
            try:
                piece = await asyncio.wait_for(stream.__anext__(), self.timeout / SILENCE)
            except StopAsyncIteration:
                break
            except (TimeoutError, asyncio.TimeoutError):
                raise _Passing("the server stops in the middle of an answer") from None
            pieces.append(bytes(piece))
            rest -= len(pieces[-1])
        if rest:
            raise _Passing(f"the server gives {'more' if rest < 0 else 'fewer'} than the {size} bytes that it promised")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _said(self, path: Path, work: Awaitable[Result]) -> Result:
        """What obstore raises, as errors of this room."""
        exceptions = self._library.exceptions
        try:
            return await work
        except (GlassfsError, _Passing, asyncio.CancelledError):
            raise
        except FileNotFoundError as error:
            raise self._missing(path, error) from None
        except exceptions.PermissionDeniedError as error:
            raise NotAllowed(f"the server does not allow it{_detail(error)}", self.shown(path)) from None
        except exceptions.UnauthenticatedError as error:
            raise NotAllowed(f"the server wants to know who asks{_detail(error)}", self.shown(path)) from None
        except (exceptions.InvalidPathError, ValueError):
            raise DeviceFailed("has a name that servers cannot be asked for", self.shown(path)) from None
        except exceptions.BaseError as error:
            status = _STATUS.search(str(error))
            if status is not None and status[1].startswith("404"):  # that of a listing
                raise self._missing(path, error) from None
            reason = _reason(error)
            if reason != UNTRUSTED and (status is None or status[1].startswith(_PASSING)):
                raise _Passing(reason) from None
            raise DeviceFailed(reason, self.shown(path)) from None
        except Exception as error:
            raise DeviceFailed(_reason(error), self.shown(path)) from None

    def _opened(self) -> Any:
        if self._store is None:
            self._store = self._make()
        return self._store

    def _missing(self, path: Path, error: Exception) -> NotFound:
        code = _CODE.search(str(error))
        is_bucket = code is not None and code[1] in ("NoSuchBucket", "ContainerNotFound")
        return NotFound("there is no such bucket" if is_bucket else "there is no such object", self.shown(path))

    def _silent(self, path: Path) -> DeviceFailed:
        return DeviceFailed(f"there was no answer within {self.timeout:g} seconds", self.shown(path))


class WebServer(ObjectServer):
    """A server on the web. It lists folders only if it speaks WebDAV, as few do."""

    def list(self, path: Path) -> Sequence[Listed]:
        try:
            return super().list(path)
        except DeviceFailed as error:
            if not _NO_WEBDAV.search(error.reason):
                raise
        raise Refused("the server lists no folders; what is in one has a URL of its own", self.shown(path))


def _facts(meta: Any) -> Facts | None:
    return believed(meta["size"], meta["e_tag"] or "", meta["last_modified"])


def _detail(error: Exception) -> str:
    code = _CODE.search(str(error))
    return f" ({code[1]})" if code else ""


def _reason(error: Exception) -> str:
    """One line of what may be a page, without the URL, which may have secrets in it, and any words."""
    text = _URL.sub("…", str(error))
    status = _STATUS.search(text)
    if status is not None:
        return f"the server answers {status[1]}{_detail(error)}"
    for sign, reason in _CAUSES:
        if sign in text:
            return reason
    line = text.partition("\n")[0].rpartition(" - ")[2]
    return line[:LONGEST_SENTENCE] or type(error).__name__

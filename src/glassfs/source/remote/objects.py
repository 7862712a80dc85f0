"""Objects in buckets and on web servers, through obstore: S3, Google Cloud Storage, Azure, HTTP.

obstore signs requests and keeps connections. This module retries, and checks of each answer that it is the range asked
for, complete, and of the right version. Any thread.
"""

from __future__ import annotations

import asyncio
import importlib
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused
from glassfs.forks import PerProcess
from glassfs.settings import settings
from glassfs.source.contract import Path
from glassfs.source.remote.server import NO_HOST, SECOND, TRIES, Attempt, Facts, Listed, Result, Retryable, Server

_RETRYABLE = ("408", "425", "429", "500", "502", "503", "504")
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z-]*)*)")
CODE = r"(?:[A-Z][a-z]{1,20}){2,8}"
"""A code such as AccessDenied. Nothing else that a server writes becomes a message, as it may repeat a secret."""
_CODE = re.compile(rf"<Code>({CODE})</Code>")
NO_RANGES = "the server ignores the Range header and sends whole files"
UNTRUSTED = "its certificate is not trusted"
ENDLESS = "it redirects without end"
FINAL = (UNTRUSTED, ENDLESS)
"""Reasons that the next attempt would have as well."""
_CAUSES = (
    ("InvalidCertificate", UNTRUSTED), ("certificate", UNTRUSTED),
    ("dns error", NO_HOST),
    ("Connection refused", "the connection is refused"),
    ("URL scheme is not allowed", "plain http is not expected here"),
    ("kind: Timeout", "it does not answer"),
    ("kind: Connect", "it cannot be reached"),
    ("kind: Interrupted", "the connection ended in the middle of an answer"),
    ("redirect", ENDLESS),
)
NAME = "obstore"
_is_used = False
"""Whether this process, or one that it was forked from, has used obstore."""
ListPages = Callable[[Path], Coroutine[Any, Any, list[Listed]]]


def facts_of(meta: Mapping[str, Any]) -> Facts | None:
    """Return the facts that obstore reports of an object, without impossible values; None for an impossible size."""
    etag = meta["e_tag"] or ""
    if len(etag) > 1024:
        etag = ""
    if etag and not etag.startswith(('"', "W/")):  # some listings leave the quotes out
        etag = f'"{etag}"'
    modified: datetime = meta["last_modified"]
    mtime_ns = int(modified.timestamp()) * SECOND + modified.microsecond * 1000
    facts = Facts(meta["size"], etag, mtime_ns if abs(mtime_ns) < 1 << 63 else 0)
    return facts if facts.is_possible else None


class NoRanges(Retryable):
    """A server sends a whole object instead of a range."""


@dataclass(eq=False)
class ObjectServer(Server):
    """``store`` is an obstore store; ``library`` is the obstore package that it is of.

    ``host`` is asked, or else the one in the name. ``list_pages`` is another way to list folders, if there is one.
    """

    has_lasting_versions = True
    name: str
    identity: str
    store: Any
    library: ModuleType
    timeout: float
    host: str = ""
    list_pages: ListPages | None = None

    async def _list(self, path: Path) -> Sequence[Listed]:
        # A server may send names without end, and obstore returns them all at once. The time bounds how many it can
        # collect; where names can be had page by page, a folder that takes longer is listed so.
        limit = self.timeout / TRIES
        if self.list_pages is not None:
            limit = min(limit, settings.long_listing)
        try:
            return await asyncio.wait_for(self._list_at_once(path), limit)
        except DeviceFailed as error:
            failed = error
        except (TimeoutError, asyncio.TimeoutError):
            failed = DeviceFailed(f"the listing takes more than {limit:.3g} seconds")
        if self.list_pages is None:
            raise failed
        return await self.list_pages(path)

    async def _retried(self, path: Path, attempt: Attempt[Result]) -> Result:
        return await super()._retried(path, lambda: self._translated(attempt()))

    async def _list_at_once(self, path: Path) -> Sequence[Listed]:
        try:
            found = await self.library.list_with_delimiter_async(self.store, "/".join(path) or None)
        except (self.library.exceptions.InvalidPathError, ValueError):
            reason = "cannot be listed: an object in it has a name with an empty part or a control character"
            raise DeviceFailed(reason) from None
        except self.library.exceptions.GenericError as error:
            if "nvalid list response" in str(error):
                reason = "cannot be listed: an object in it has a name that is not UTF-8"
                raise DeviceFailed(reason) from None
            raise
        depth = len(path)
        listed = [Listed(one.split("/")[depth], None) for one in found["common_prefixes"] if one.count("/") >= depth]
        for meta in found["objects"]:
            names = str(meta["path"]).split("/")
            facts = facts_of(meta)
            if len(names) == depth + 1 and names[-1] and facts is not None:  # a folder can be an object of its own
                listed.append(Listed(names[-1], facts))
        # The library calls the folder "/" of a bucket "", and fails for other names that are empty.
        return [one._replace(name=one.name or "/") for one in listed]

    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        # The first request asks for bytes at once: a signed URL is for GET alone, and most opens need the head anyway.
        options: dict[str, Any] = {"range": (0, size)}
        if known is not None and known.has_strong_etag:
            options["if_none_match"] = known.etag
        try:
            result = await self._get(path, options)
        except self.library.exceptions.NotModifiedError:
            return None
        except self.library.exceptions.GenericError as error:
            if "status code: 416" not in str(error):
                raise
            return Facts(0, "", 0), b""
        facts = facts_of(result.meta)
        if facts is None:
            raise DeviceFailed("the server reports an impossible size")
        if known is not None and known.fits(facts):
            return None
        return facts, await self._body(result, 0, min(size, facts.size))

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        options: dict[str, Any] = {"range": (offset, offset + size)}
        if facts.has_strong_etag:
            options["if_match"] = facts.etag
        try:
            result = await self._get(path, options)
        except self.library.exceptions.PreconditionError:
            raise Changed("has been replaced by another object") from None
        # Some servers ignore If-Match, so the ETag of each answer is compared as well.
        now = facts_of(result.meta)
        if now is None or not facts.fits(now):
            raise Changed("has been replaced by another object")
        return await self._body(result, offset, offset + size)

    async def _get(self, path: Path, options: dict[str, Any]) -> Any:
        """Return obstore's answer. Raises NoRanges if the server sends the whole object."""
        exceptions = self.library.exceptions
        try:
            return await self.library.get_async(self.store, "/".join(path), options=options)
        except (exceptions.NotSupportedError, exceptions.GenericError) as error:
            if isinstance(error, exceptions.GenericError) and "non-partial response" not in str(error):
                raise
            raise NoRanges(NO_RANGES) from None

    async def _body(self, result: Any, start: int, end: int) -> bytes:
        """Return the bytes ``[start, end)`` of an object from an answer, of which little more is read."""
        first, last = result.range
        if not first <= start <= end <= last:
            raise Retryable("the server sends another range of bytes than the one asked for")
        # A server without ranges sends what comes before and after as well. The first is skipped, and the connection is
        # given up before the second. If nothing should come after, a longer body is an error.
        pieces, rest, skip = [], end - start, start - first
        async for part in result.stream(min_chunk_size=max(1, min(end - first, 1 << 20))):
            piece, skip = bytes(part)[skip:], max(0, skip - len(part))
            pieces.append(piece[:rest] if last > end else piece)
            rest -= len(piece)
            if rest < 0 or (not rest and last > end):
                break
        # obstore does not repeat a request whose body breaks off, as it has returned the answer by then.
        if rest > 0 or (rest and last == end):
            word = "more" if rest < 0 else "fewer"
            raise Retryable(f"the server sends {word} than the {end - start} bytes that it announced")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _translated(self, work: Awaitable[Result]) -> Result:
        """Await ``work`` and raise obstore's errors as GlassfsError or Retryable."""
        try:
            return await work
        except (GlassfsError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise self.failure(error) from None

    def failure(self, error: Exception) -> GlassfsError:
        """Return the error to raise for one of obstore's: Retryable if another attempt may succeed."""
        exceptions = self.library.exceptions
        if isinstance(error, FileNotFoundError):
            return self._missing(error)
        if isinstance(error, exceptions.PermissionDeniedError):
            return NotAllowed(f"access denied (HTTP 403{_detail(error)}): check the credentials")
        if isinstance(error, exceptions.UnauthenticatedError):
            advice = "pass credentials with -o profile=… or anonymous"
            return NotAllowed(f"access denied (HTTP 401{_detail(error)}): {advice}")
        if isinstance(error, (exceptions.InvalidPathError, ValueError)):
            return DeviceFailed("has a name that cannot be sent to the server")
        # A reason in words of this module: the error may quote what the server was sent.
        text = str(error)
        status = _STATUS.search(text)
        unknown = f"the request failed ({type(error).__name__})"
        reason = next((cause for sign, cause in _CAUSES if sign in text), unknown)
        if status is not None:
            reason = f"the server answers {status[1]}{_detail(error)}"
        elif reason == NO_HOST and self.host:
            reason = f"there is no host {self.host}; -o endpoint=URL names another server"
        if status is not None and status[1].startswith("404"):  # that of a listing
            return self._missing(error)
        is_passing = reason not in FINAL and (status is None or status[1].startswith(_RETRYABLE))
        kind = Retryable if is_passing and isinstance(error, exceptions.BaseError) else DeviceFailed
        return kind(reason)

    def _missing(self, error: Exception) -> NotFound:
        code = _CODE.search(str(error))
        is_bucket = code is not None and code[1] in ("NoSuchBucket", "ContainerNotFound")
        return NotFound("there is no such bucket" if is_bucket else "there is no such object")


def read_options(timeout: float) -> dict[str, Any]:
    """Return the options of a store that is read. It does not retry: this module does, for bodies as well."""
    silence = timedelta(seconds=timeout / TRIES)
    return {
        "client_options": {
            "timeout": timedelta(seconds=timeout), "connect_timeout": silence, "read_timeout": silence,
            "user_agent": "glassfs",
        },
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout)},
    }


def _detail(error: Exception) -> str:
    code = _CODE.search(str(error))
    return f", {code[1]}" if code else ""


# The package is imported also in a process that was forked from one that has used it. Its threads do not exist there,
# and its calls wait for them forever. So a copy of its files is loaded: another library with static memory of its own.


def not_installed(extra: str = "remote") -> str:
    """Return the reason to refuse a URL that needs an extra of this package."""
    return f"needs more than is installed: install glassfs[{extra}]"


def obstore() -> ModuleType:
    """Return the package. Raises Refused if it is not installed."""
    try:
        return _module.get()
    except ImportError:
        raise Refused(not_installed()) from None


def _load() -> ModuleType:
    global _is_used
    if _is_used:
        return _copy_of(importlib.import_module(NAME))
    package = _imported()
    _is_used = True
    return package


def _imported() -> ModuleType:
    for part in ("store", "exceptions"):
        importlib.import_module(f"{NAME}.{part}")
    return sys.modules[NAME]


def _copy_of(package: ModuleType) -> ModuleType:
    """Import a copy of the package in place of the inherited one."""
    with tempfile.TemporaryDirectory(prefix="glassfs-") as folder:
        copy = pathlib.Path(folder, NAME)
        shutil.copytree(package.__path__[0], copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
        # The modules of the parent are left as they are; those that import obstore from now on get the copy, and the
        # old one stays alive in what was made before the fork.
        for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
            del sys.modules[name]
        sys.path.insert(0, folder)
        try:
            return _imported()
        finally:
            sys.path.remove(folder)


_module: PerProcess[ModuleType] = PerProcess(_load)

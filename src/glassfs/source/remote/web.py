"""Web servers: folders through WebDAV or from the pages that servers send for them, and servers without ranges.

A page has names, and seldom exact sizes. Objects are therefore described by one request each, many at once. Any thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from types import ModuleType
from typing import Any

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused
from glassfs.lru import LRU
from glassfs.sizes import human_size
from glassfs.source.contract import Path
from glassfs.source.remote.objects import NO_RANGES, NO_WEBDAV, ObjectServer, facts_of
from glassfs.source.remote.probes import explained, is_redirected_to_folder
from glassfs.source.remote.retrying import Retryable, result_of
from glassfs.source.remote.server import UNKNOWN_SIZE, Facts, Listed
from glassfs.source.remote.url import Url
from glassfs.source.remote.web_pages import PageLister

MOST_WHOLE = 64 << 20
"""Size of an object up to which it is read from a server without ranges: each read fetches it from its start."""
REMEMBERED = 10_000
_NO_WEBDAV = re.compile(rf"answers (400|403|405|501)\b|HTTP 403|{NO_WEBDAV}")


class WebServer(ObjectServer):
    """The server of ``url``; see ``ObjectServer``. ``authorization`` is the header that it needs, or "".

    With a query in its URL, which is for one object, it lists folders through WebDAV only.
    """

    def __init__(
        self, url: Url, authorization: str, identity: str, make: Callable[[], Any], library: ModuleType,
        timeout: float,
    ) -> None:
        base = f"{url.scheme}://{url.host}"
        super().__init__(base, identity, make, library, timeout, False)
        self._url = url
        self._authorization = authorization
        self._pages = None if url.query else PageLister(base, authorization, timeout)
        self._sends_pages: LRU[Path, bool] = LRU(REMEMBERED)
        """Folders that were listed from pages. Those below them are, too."""
        self._sends_whole: LRU[Path, bool] = LRU(REMEMBERED)
        """Objects of which the server sends no ranges."""
        self._is_listed_wrong: LRU[Path, bool] = LRU(REMEMBERED)
        """Objects that differ from what the page of their folder says."""

    def is_folder(self, path: Path) -> bool:
        url = self._url._replace(path=path, is_folder=False, shown=self.shown(path))
        try:
            return not url.query and is_redirected_to_folder(url, self._authorization, self.timeout)
        except DeviceFailed:  # the next request reports that
            return False

    def explained(self, error: DeviceFailed) -> DeviceFailed:
        return explained(self._url, error)

    def describe(self, path: Path, names: Sequence[str]) -> Mapping[str, Facts | str]:
        found: dict[str, Facts | str] = {}
        try:
            describing = self._safely(path, lambda: self._describe(path, names, found))
            result_of(describing, self.timeout, self.shown(path))
        except DeviceFailed as error:
            asked = f"{len(found)} of the {len(names)} files on its page are described in time"
            raise DeviceFailed(f"{error.reason} ({asked})", error.source) from None
        return found

    async def _list(self, path: Path) -> Sequence[Listed]:
        # A server that sent a page for a folder does so for those below it: asking for WebDAV again would double the
        # requests.
        by_webdav: Sequence[Listed] | None = None
        if not any(self._sends_pages.get(path[:depth]) for depth in range(len(path) + 1)):
            by_webdav = await self._listed_by_webdav(path)
        # obstore returns nothing for a missing folder, and servers may call those missing that they only send.
        if by_webdav or (by_webdav is not None and self._pages is None):
            return by_webdav
        if self._pages is None:
            raise Refused("the server lists no folders; name what is in it by its own URL", self.shown(path))
        try:
            listed = await self._pages.entries(path, self.shown(path))
        except Refused:
            if by_webdav is None:
                raise
            return by_webdav
        self._sends_pages.put(path, True)
        without = Facts(UNKNOWN_SIZE, "", 0)
        wrong = {one.name for one in listed if one.facts is not None and self._is_listed_wrong.peek((*path, one.name))}
        return [one._replace(facts=without) if one.name in wrong else one for one in listed]

    async def _listed_by_webdav(self, path: Path) -> Sequence[Listed] | None:
        """Return what is in a folder, or None if the server does not speak WebDAV."""
        try:
            return await self._translated(path, super()._list(path))
        except (DeviceFailed, NotAllowed) as error:
            if _NO_WEBDAV.search(error.reason):
                return None
            raise

    async def _describe(self, path: Path, names: Sequence[str], found: dict[str, Facts | str]) -> None:
        """Add the facts of those objects that are not yet among the ``found`` ones, or why they have none."""
        # All tasks draw from one iterator, so that a slow answer delays one of them only. What was found stays in
        # ``found`` if the time is up, and the next attempt asks for the others.
        rest = iter([name for name in names if name not in found])

        failed: list[Retryable] = []

        async def work() -> None:
            for name in rest:
                try:
                    facts = await self._description((*path, name))
                except Retryable as failure:
                    failed.append(failure)
                else:
                    if facts is not None:
                        found[name] = facts

        tasks = [asyncio.ensure_future(work()) for _ in range(min(32, len(names)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        if failed:
            raise failed[0]

    async def _description(self, path: Path) -> Facts | str | None:
        """Return an object's facts, or why it cannot be read; None if it is missing. Raises Retryable."""
        try:
            return await self._translated(path, self._asked(path))
        except NotFound:
            return None
        except GlassfsError as error:
            return f"unreadable object: {error.reason}"

    async def _asked(self, path: Path) -> Facts | None:
        try:
            return facts_of(await self._library.head_async(self._opened(), "/".join(path)))
        except (self._library.exceptions.BaseError, FileNotFoundError) as error:
            if "status code: 404" in str(error):
                raise
            # Not every server answers HEAD, or says in its answer how long the object is.
            begun = await self._begin(path, 1, None)
            return None if begun is None else begun[0]

    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        if not self._sends_whole.get(path):
            try:
                return await super()._begin(path, size, known)
            except Retryable as failed:
                if failed.error.reason != NO_RANGES:
                    raise
        result, facts = await self._whole(path)
        if known is not None and known.fits(facts):
            return None
        return facts, await self._part(result, 0, min(size, facts.size))

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        try:
            if not self._sends_whole.get(path):
                return await super()._read(path, offset, size, facts)
        except Retryable as failed:
            if failed.error.reason != NO_RANGES:
                raise
        except Changed:
            # The page of the folder may have another size or time than the answer, and the next one, too: then the
            # object is asked for its facts instead.
            self._is_listed_wrong.put(path, True)
            raise
        result, now = await self._whole(path)
        if not facts.fits(now):
            self._is_listed_wrong.put(path, True)
            raise Changed("has been replaced by another object", self.shown(path))
        return await self._part(result, offset, size)

    async def _whole(self, path: Path) -> tuple[Any, Facts]:
        """Request an object without a range. Raises DeviceFailed if it is too large for that."""
        result = await self._library.get_async(self._opened(), "/".join(path))
        facts = facts_of(result.meta)
        if facts is None or facts.size > MOST_WHOLE:
            raise DeviceFailed(f"{NO_RANGES}; it has to be smaller than {human_size(MOST_WHOLE)}", self.shown(path))
        self._sends_whole.put(path, True)
        return result, facts

    async def _part(self, result: Any, offset: int, size: int) -> bytes:
        """Return bytes of a body, of which little more is read."""
        found, position = bytearray(), 0
        async with aclosing(self._pieces(result, offset + size)) as body:
            while len(found) < size:
                piece = await anext(body, b"")
                if not piece:
                    raise Retryable(DeviceFailed("the server sends fewer bytes than it announced"))
                found += piece[max(0, offset - position) : max(0, offset + size - position)]
                position += len(piece)
        return bytes(found)

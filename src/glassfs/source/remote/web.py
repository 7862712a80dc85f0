"""Web servers: folders through WebDAV or from the pages that servers send for them, and servers without ranges.

A page has names, and no exact sizes. Objects are therefore described by one request each, many at once. Any thread.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused
from glassfs.lru import LRU
from glassfs.sizes import human_size
from glassfs.source.contract import Path
from glassfs.source.remote.objects import NO_RANGES, NO_WEBDAV, NoRanges, ObjectServer, facts_of
from glassfs.source.remote.pages import rows_of
from glassfs.source.remote.probes import explained, page_of, target_of
from glassfs.source.remote.retrying import SILENCE_PARTS, Call, calls, retried
from glassfs.source.remote.server import SECOND, Facts, Listed
from glassfs.source.remote.url import Url

MOST_WHOLE = 64 << 20
"""Size of an object up to which it is read from a server without ranges: each read fetches it from its start."""
AT_ONCE = 32
"""Objects that are asked for their facts at once."""
REMEMBERED, REMEMBERED_ROWS = 10_000, 250_000
SETTLED_NS = 120 * SECOND
"""Age from which an object that changes gets another time on a page, which may have times in whole minutes."""
_NO_WEBDAV = re.compile(rf"answers (400|403|405|501)\b|HTTP 403|{NO_WEBDAV}")


class WebServer(ObjectServer):
    """The server of ``url``; see ``ObjectServer``. ``authorization`` is the header that it needs, or "".

    With a query in its URL, which is for one object, it lists folders through WebDAV only.
    """

    has_lasting_versions = False

    def __init__(
        self, url: Url, authorization: str, identity: str, store: Any, library: ModuleType, timeout: float,
    ) -> None:
        base = f"{url.scheme}://{url.host}"
        super().__init__(base, identity, store, library, timeout)
        self._url = url
        self._authorization = authorization
        self._sends_pages: LRU[Path, bool] = LRU(REMEMBERED)
        """Folders that were listed from pages. Those below them are, too."""
        self._sends_whole: LRU[Path, bool] = LRU(REMEMBERED)
        """Objects of which the server sends no ranges."""
        self._described: LRU[Path, tuple[bytes, int, Facts]] = LRU(REMEMBERED_ROWS)
        """Facts of objects on pages, with their rows there and when they were asked for, in ns since 1970."""

    def is_folder(self, path: Path) -> bool:
        # Servers redirect the name of a folder to the same with a slash.
        if self._url.query:
            return False
        name = f"/{'/'.join(path)}"
        try:
            target = target_of(self._url_of(path, False), self._authorization, self.timeout)
            return target is not None and unquote(
                urlsplit(urljoin(name, target)).path, errors="surrogateescape",
            ) == f"{name}/"
        except (DeviceFailed, ValueError):  # the next request reports that
            return False

    def explained(self, error: GlassfsError) -> GlassfsError:
        return explained(self._url, error)

    def _url_of(self, path: Path, is_folder: bool) -> Url:
        return self._url._replace(path=path, is_folder=is_folder, shown=self.shown(path))

    async def _list(self, path: Path) -> Sequence[Listed]:
        # A server that sent a page for a folder does so for those below it: asking for WebDAV again would double the
        # requests.
        by_webdav: Sequence[Listed] | None = None
        if not any(self._sends_pages.get(path[:depth]) for depth in range(len(path) + 1)):
            try:
                by_webdav = await self._translated(path, super()._list(path))
            except (DeviceFailed, NotAllowed) as error:
                if not _NO_WEBDAV.search(error.reason):
                    raise
        # obstore returns nothing for a missing folder, and servers may call those missing that they only send.
        if by_webdav or (by_webdav is not None and self._url.query):
            return by_webdav
        if self._url.query:
            raise Refused("the server lists no folders; name what is in it by its own URL", self.shown(path))
        try:
            rows = await calls.get().run(partial(self._rows, path))
        except Refused:
            if by_webdav is None:
                raise
            return by_webdav
        self._sends_pages.put(path, True)
        return await self._with_facts(path, rows)

    def _rows(self, path: Path, call: Call) -> Mapping[str, bytes | None]:
        page, url = page_of(self._url_of(path, True), self._authorization, self.timeout / SILENCE_PARTS, call)
        return rows_of(page, url, path, self.shown(path))

    async def _with_facts(self, path: Path, rows: Mapping[str, bytes | None]) -> list[Listed]:
        """Return what is on a page; objects are asked for their facts unless their rows are as before."""
        listed: list[Listed] = []
        # All tasks draw from one iterator, so that a slow answer delays one of them only.
        rest = iter(rows.items())

        async def work() -> None:
            for name, row in rest:
                found = None if row is None else await self._description((*path, name), row)
                if isinstance(found, str):
                    listed.append(Listed(name, None, found))
                elif row is None or found is not None:
                    listed.append(Listed(name, found))

        tasks = [asyncio.ensure_future(work()) for _ in range(min(AT_ONCE, len(rows)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return listed

    async def _description(self, path: Path, row: bytes) -> Facts | str | None:
        """Return an object's facts, or why it cannot be read; None if it is missing.

        Raises DeviceFailed if the server fails again and again.
        """
        known = self._described.get(path)
        if known is not None and row and known[0] == row and 0 < known[2].mtime_ns < known[1] - SETTLED_NS:
            return known[2]
        now_ns = time.time_ns()

        async def attempt() -> Facts | str | None:
            try:
                return await self._translated(path, self._asked(path))
            except NotFound:
                return None
            except GlassfsError as error:
                return f"unreadable object: {error.reason}"

        # Each object is retried by itself: repeating the whole listing would ask for all others again.
        found = await retried(attempt, self.timeout, self.shown(path))
        if isinstance(found, Facts):
            self._described.put(path, (row, now_ns, found))
        return found

    async def _asked(self, path: Path) -> Facts | None:
        try:
            return facts_of(await self._library.head_async(self._store, "/".join(path)))
        except (self._library.exceptions.BaseError, FileNotFoundError) as error:
            if "status code: 404" in str(error):
                raise
            # Not every server answers HEAD, or says in its answer how long the object is.
            begun = await self._begin(path, 1, None)
            return None if begun is None else begun[0]

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        try:
            return await super()._read(path, offset, size, facts)
        except Changed:
            self._described.pop(path)  # its row may be as before
            raise

    async def _get(self, path: Path, options: dict[str, Any]) -> Any:
        if not self._sends_whole.get(path):
            try:
                return await super()._get(path, options)
            except NoRanges:
                pass
        result = await self._library.get_async(self._store, "/".join(path))
        if result.meta["size"] > MOST_WHOLE:
            raise DeviceFailed(f"{NO_RANGES}; it has to be smaller than {human_size(MOST_WHOLE)}", self.shown(path))
        self._sends_whole.put(path, True)
        return result

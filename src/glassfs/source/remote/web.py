"""Web servers: folders from the pages that servers send for them, and servers without ranges.

A page has names, and no exact sizes. Objects are therefore described by one request each, many at once. Any thread.

Some requests go through the standard library: obstore follows redirects by itself, and puts the URL with its query into
the Referer header, so that the next host would learn the query, in which anything may be secret. It does not report
where it was redirected to, and fetches nothing of an unknown length.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from html import unescape
from itertools import islice
from threading import Event
from typing import IO, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import xxhash

from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, NotFound, Refused, TooLarge
from glassfs.lru import LRU
from glassfs.names import raw
from glassfs.sizes import human_size
from glassfs.source.contract import Path
from glassfs.source.remote.objects import (
    NO_RANGES,
    UNTRUSTED,
    NoRanges,
    ObjectServer,
    facts_of,
    obstore,
    read_options,
)
from glassfs.source.remote.server import MOST_NAMES, TRIES, Facts, Listed, Retryable, calls, is_name, result_of, retried
from glassfs.source.remote.url import Connection, Url

Result = TypeVar("Result")

RANGE = "bytes=0-262143"
"""The range of the first real request, as a server may redirect by it."""
MOST_BYTES = 64 << 20
"""Size of a page up to which it is read."""
MOST_WHOLE = 64 << 20
"""Size of an object up to which it is read from a server without ranges: each read fetches it from its start."""
AT_ONCE = 32
"""Objects that are asked for their facts at once."""
REMEMBERED_NAMES = 250_000
_PLAIN_IN_QUERY = "%!$&()*+,/:;=?@[]^`{|}~\\-._"
_PAGES = ("text/html", "application/xhtml+xml")

LONGEST_TAG = 4096
MOST_TITLES = 10
# No pattern tries more than once to match a byte of the page: what is repeated ends at the first < or >, or is bounded.
_LINK = re.compile(rb"<a\s[^<>]{0,%d}?\bhref\s*=\s*(?:\"([^\"<>]{0,%d})\"|'([^'<>]{0,%d})'|([^\s\"'<>]{1,%d}))" % (
    (LONGEST_TAG,) * 4
), re.IGNORECASE)
_TITLE = re.compile(rb"<(?:title|h[12])\b[^<>]{0,200}>((?:(?!</(?:title|h[12])).){0,2000})", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(rb"<[^<>]*>")
_CALLED_LISTING = re.compile(r"\s*(index of|directory listing|directory:|listing (of|for)|files (in|within))\b", re.I)
"""The start of the title or heading in which servers name the folder."""
_CLOCK = re.compile(rb"\d:\d\d")


class WebServer(ObjectServer):
    """The server of ``url``; see ``ObjectServer``. Raises Refused.

    With a query in its URL, which is for one object, it lists no folders, and must not redirect.
    """

    has_lasting_versions = False

    def __init__(self, url: Url, connection: Connection) -> None:
        library = obstore()
        from obstore.store import HTTPStore

        self._url = url
        self._headers = _authorization(url, connection)
        options = read_options(connection.timeout)
        options["client_options"] |= {"allow_http": url.scheme == "http", "default_headers": self._headers}
        identity = base = f"{url.scheme}://{url.host}"
        try:
            store = HTTPStore.from_url(f"{base}/?{url.query}" if url.query else base, **options)
        except Exception:
            raise Refused("is not the URL of a server") from None
        if url.query:  # a signature in a query is for one object
            identity += f"?{blake2b(raw(url.query), digest_size=16).hexdigest()}"
        super().__init__(base, identity, store, library, connection.timeout)
        self._described: LRU[Path, tuple[bytes, list[Listed]]] = LRU(REMEMBERED_NAMES)
        """What is in a folder, with a digest of its page."""
        if url.query and self._target(url) is not None:
            reason = "redirects, and the next host would learn its query"
            raise Refused(f"{reason}; name it without the query, or name the final URL")

    def _target(self, url: Url) -> str | None:
        """Return where the server redirects a URL to, or None. Raises DeviceFailed if there is no usable answer."""
        # The request is the one that obstore would send first, so that a server that redirects by range, header or
        # method shows it now.
        headers = {"Range": RANGE, "Accept": "*/*", **self._headers}

        def ask(abandoned: Event) -> str | None:
            try:
                _requested(url, headers, self.timeout / TRIES, lambda answer: None)
            except HTTPError as error:
                if 300 <= error.code < 400:
                    return str(error.headers.get("Location", ""))
            return None

        return result_of(retried(lambda: calls.get().run(ask), self.timeout, url.shown), self.timeout, url.shown)

    async def _list(self, path: Path) -> Sequence[Listed]:
        if self._url.query:
            raise Refused("a URL with a query is no folder; name what is in it by its own URL")
        digest, names = await calls.get().run(partial(self._names, path))
        # Objects are asked for their facts again when the page is another one, as it has their times. A change that it
        # does not show yet is found by a read.
        known = self._described.get(path)
        if known is not None and known[0] == digest:
            return known[1]
        listed = await self._with_facts(path, names)
        if digest and not any(one.omitted for one in listed):
            self._described.put(path, (digest, listed), 1 + len(listed))
        return listed

    def _names(self, path: Path, abandoned: Event) -> tuple[bytes, Mapping[str, bool]]:
        """Return a digest of the HTML page that the server sends for a folder, b"" if it has no times, and its names.

        Blocks; an abandoned call ends after the current piece. Raises Refused if there is no such page, and others.
        """
        url = self._url._replace(path=path, is_folder=True, shown=self.shown(path))

        def whole(answer: http.client.HTTPResponse) -> tuple[bytes, str]:
            if answer.headers.get_content_type() not in _PAGES:
                raise Refused("the server sends a file and no listing for it")
            page = bytearray()
            while not abandoned.is_set() and (piece := answer.read1(64 << 10)):
                page += piece
                if len(page) > MOST_BYTES:
                    raise TooLarge(f"has a listing of more than {MOST_BYTES >> 20} MiB")
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            return bytes(page), answer.geturl()

        try:
            page, final = _requested(url, {"Accept": "text/html", **self._headers}, self.timeout / TRIES, whole)
        except HTTPError as error:
            status = error.code
        else:
            return xxhash.xxh3_64_digest(page) if _CLOCK.search(page) else b"", names_on(page, final, path)
        if status in (404, 410):
            raise NotFound("there is no such object")
        if status == 401:
            raise NotAllowed("access denied (HTTP 401): put the credentials into ~/.netrc")
        raise Refused(f"the server lists no folders (HTTP {status}); name what is in it by its own URL")

    async def _with_facts(self, path: Path, names: Mapping[str, bool]) -> list[Listed]:
        """Return what is on a page, by ``names_on``; objects are asked for their facts."""
        listed: list[Listed] = []
        # All tasks draw from one iterator, so that a slow answer delays one of them only.
        rest = iter(names.items())

        async def work() -> None:
            for name, is_folder in rest:
                found = None if is_folder else await self._description((*path, name))
                if isinstance(found, str):
                    listed.append(Listed(name, None, found))
                elif is_folder or found is not None:
                    listed.append(Listed(name, found))

        tasks = [asyncio.ensure_future(work()) for _ in range(min(AT_ONCE, len(names)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return listed

    async def _description(self, path: Path) -> Facts | str | None:
        """Return an object's facts, or why it cannot be read; None if it is missing.

        Raises DeviceFailed if the server fails again and again.
        """
        async def attempt() -> Facts | str | None:
            try:
                return await self._translated(self._asked(path))
            except NotFound:
                return None
            except Retryable:
                raise
            except GlassfsError as error:
                return f"unreadable object: {error.reason}"

        # Each object is retried by itself: repeating the whole listing would ask for all others again.
        return await retried(attempt, self.timeout, self.shown(path))

    async def _asked(self, path: Path) -> Facts | None:
        try:
            return facts_of(await self.library.head_async(self.store, "/".join(path)))
        except (self.library.exceptions.BaseError, FileNotFoundError) as error:
            if "status code: 404" in str(error):
                raise
            # Not every server answers HEAD, or says in its answer how long the object is.
            begun = await self._begin(path, 1, None)
            return None if begun is None else begun[0]

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        try:
            return await super()._read(path, offset, size, facts)
        except Changed:
            self._described.pop(path[:-1])  # its page may be as before
            raise

    async def _get(self, path: Path, options: dict[str, Any]) -> Any:
        try:
            return await super()._get(path, options)
        except NoRanges:
            result = await self.library.get_async(self.store, "/".join(path))
        if result.meta["size"] > MOST_WHOLE:
            raise DeviceFailed(f"{NO_RANGES}; it has to be smaller than {human_size(MOST_WHOLE)}")
        return result


def names_on(page: bytes, url: str, path: Path) -> dict[str, bool]:
    """Return the names in the folder at ``path`` by the page with this URL, and whether they are folders.

    Raises TooLarge, and Refused if the page is no listing: if no title or heading starts as those of listings do, nor
    ends with the folder's name or path. In the second case it must not have more links to other servers and to folders
    beside this one than names.
    """
    found: dict[str, bool] = {}
    server, depth, foreign = urlsplit(url), len(path), 0
    for link in _LINK.finditer(page):
        target = unescape((link[1] or link[2] or link[3] or b"").decode("utf-8", "surrogateescape")).strip()
        try:
            at = urlsplit(urljoin(url, target))
            # Bytes that are not UTF-8 become surrogates.
            names = [unquote(part, errors="surrogateescape") for part in at.path.split("/")[1:]]
        except ValueError:
            continue
        above = tuple(names[:-1] if names and not names[-1] else names)
        if (at.scheme, at.netloc.lower()) != (server.scheme, server.netloc.lower()):
            foreign += 1
        elif above[:depth] != path:
            foreign += path[: len(above)] != above
        elif not (at.query or at.fragment) and names[depth + 1 :] in ([], [""]) and is_name("".join(names[depth:])):
            name = names[depth]
            found[name] = len(names) > depth + 1 or found.get(name, False)
        if len(found) > MOST_NAMES:
            raise TooLarge(f"has a listing of more than {MOST_NAMES} names")
    titles = [
        unescape(_TAG.sub(b"", title[1]).decode("utf-8", "surrogateescape"))
        for title in islice(_TITLE.finditer(page), MOST_TITLES)
    ]
    # A web site with links must not become a folder, as each of them would be requested and shown as a file.
    if not any(map(_CALLED_LISTING.match, titles)):
        ends = [title.strip().rstrip("/").rpartition("/")[2] for title in titles if title.strip()]
        if (path[-1] if path else "") not in ends or foreign > max(1, len(found)):
            raise Refused("the server sends a page that is no listing; name what is in it by its own URL")
    return found


class _SamePath(HTTPRedirectHandler):
    """Follow redirects to the same path of the same host, as from http to https, but none of a URL with a query.

    Others lead to something else. They are raised as HTTPError.
    """

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str,
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        is_same = (new.hostname, new.path) == (old.hostname, old.path)
        if not is_same or old.query or new.query or new.scheme not in (old.scheme, "https"):
            return None
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and new.netloc != old.netloc:
            request.remove_header("Authorization")
        return request


def _requested(
    url: Url, headers: Mapping[str, str], timeout: float, read: Callable[[http.client.HTTPResponse], Result],
) -> Result:
    """Return what ``read`` makes of the answer. Raises HTTPError, DeviceFailed, and Retryable if it may pass."""
    try:
        path = quote("/".join(url.path), errors="surrogateescape") + ("/" if url.path and url.is_folder else "")
    except UnicodeEncodeError:
        raise NotFound("there is no such object") from None
    query = quote(url.query, _PLAIN_IN_QUERY, errors="surrogateescape")
    address = f"{url.scheme}://{url.host}/{path}{f'?{query}' if query else ''}"
    request = Request(address, headers={"User-Agent": "glassfs", **headers})
    try:
        with build_opener(_SamePath).open(request, timeout=timeout) as answer:
            return read(answer)
    except GlassfsError:
        raise
    except HTTPError as error:
        with error:
            if error.code in (408, 425, 429) or error.code >= 500:
                raise Retryable(f"the server answers {error.code}") from None
            raise
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise DeviceFailed(UNTRUSTED) from None
        raise Retryable(f"it does not answer as a web server does ({type(cause).__name__})") from None


def _authorization(url: Url, connection: Connection) -> dict[str, str]:
    """Return the Authorization header, if there is one: of the connection's credentials, or of those in ~/.netrc."""
    from netrc import NetrcParseError, netrc

    if connection.token:
        return {"Authorization": f"Bearer {connection.token}"}
    user, password = connection.key, connection.secret
    if not user and not connection.anonymous:
        try:
            found = netrc(os.environ.get("NETRC") or None).authenticators(url.host.rpartition(":")[0] or url.host)
        except (OSError, NetrcParseError):
            found = None
        if found is not None:
            user, password = found[0], found[2] or ""
    if not user:
        return {}
    return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}

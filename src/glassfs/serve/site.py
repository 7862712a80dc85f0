"""Answers of one tree to requests. Any thread."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from itertools import chain
from urllib.parse import parse_qs, quote

from glassfs.content import Table
from glassfs.datasets.where import WrongCondition, condition
from glassfs.errors import (
    Changed,
    GlassfsError,
    NotADirectory,
    NotAllowed,
    NotFound,
    NotInstalled,
    Unavailable,
    is_lack,
)
from glassfs.library.finding import LibraryPaths
from glassfs.library.stream import Raw
from glassfs.names import raw, text
from glassfs.serve import dav, pages
from glassfs.serve.replies import PAGES, Reply, Request, etag, matches, media_type, message, modified, span
from glassfs.tree import Directory, File, Node
from glassfs.tree.tree import normal
from glassfs.view.html import MOST_AT_ONCE, rows_page
from glassfs.view.html.page import NAME, SUFFIX

log = logging.getLogger(__name__)

METHODS = ("OPTIONS", "GET", "HEAD", "PROPFIND")
_PIECE = 256 << 10  # of 128 KiB to 1 MiB the fastest, and each client holds one
_ALLOW = {"Allow": ", ".join(METHODS)}
_STATUSES: tuple[tuple[type[GlassfsError], HTTPStatus], ...] = (
    (NotFound, HTTPStatus.NOT_FOUND), (NotADirectory, HTTPStatus.NOT_FOUND), (NotAllowed, HTTPStatus.FORBIDDEN),
    (WrongCondition, HTTPStatus.BAD_REQUEST), (NotInstalled, HTTPStatus.NOT_IMPLEMENTED),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE), (Changed, HTTPStatus.SERVICE_UNAVAILABLE),
    (GlassfsError, HTTPStatus.BAD_GATEWAY),
)


class Site:
    """What is served: the tree behind ``paths``, under the name ``title``."""

    def __init__(self, paths: LibraryPaths, title: str) -> None:
        self.paths = paths
        self.title = title

    def reply(self, request: Request) -> Reply:
        """Return the answer. The caller closes its stream, and sends no body to HEAD."""
        try:
            return self._reply(request)
        except Exception as error:
            return refusal(error)

    def _reply(self, request: Request) -> Reply:
        if request.method == "OPTIONS":
            return Reply(HTTPStatus.OK, _ALLOW | {"DAV": "1", "MS-Author-Via": "DAV"})
        if request.method not in METHODS:
            sentence = f"{request.method} is not possible: everything here is read-only"
            return message(HTTPStatus.METHOD_NOT_ALLOWED, sentence, _ALLOW)
        if request.path == b"/favicon.ico":  # which browsers ask for
            return Reply(HTTPStatus.NO_CONTENT, length=None)
        place = normal(text(request.path))
        node = self.paths.entered(place.rstrip("/"), is_exact=True)
        is_folder = request.path.endswith(b"/") or place == "/"
        if request.method == "PROPFIND":
            return self._properties(request, place, node)
        if isinstance(node, File) and not is_folder:
            return self._file(request, node, place)
        if isinstance(node, Directory):
            if is_folder:
                return self._directory(request, node, place)
            query = f"?{request.query}" if request.query else ""
            location = f"{quote(raw(place))}/{query}"
            return message(HTTPStatus.MOVED_PERMANENTLY, "it is a directory", {"Location": location})
        raise NotADirectory("is not a directory", part=place)

    def _properties(self, request: Request, place: str, node: Node) -> Reply:
        depth = request.headers.get("depth", "infinity")
        if depth not in ("0", "1"):
            return message(HTTPStatus.FORBIDDEN, "PROPFIND is answered for the depths 0 and 1 only")
        try:
            asked = dav.asked(request.body)
        except ValueError:
            return message(HTTPStatus.BAD_REQUEST, "the body is not that of a PROPFIND")
        nodes: Iterator[tuple[str, Node]] = iter([(place, node)])
        if depth == "1" and isinstance(node, Directory):
            nodes = chain(nodes, self._members(place, node.listing()))
        headers = {"Content-Type": "application/xml; charset=utf-8", "DAV": "1"}
        return Reply(HTTPStatus.MULTI_STATUS, headers, dav.multistatus(nodes, asked), None)

    def _members(self, place: str, children: Sequence[Node]) -> Iterator[tuple[str, Node]]:
        """Yield the children of the directory at ``place``, and their paths."""
        for node in children:
            found = self._followed(place, node)
            if found is not None:
                yield f"{place.rstrip('/')}/{node.name}", found

    def _followed(self, place: str, node: Node) -> Node | None:
        """Return a child of the directory at ``place``, or what a link leads to; None if that is not served."""
        if isinstance(node, (File, Directory)):
            return node
        with suppress(GlassfsError):
            return self.paths.find(f"{place.rstrip('/')}/{node.name}", is_exact=True)[1]
        return None

    def _directory(self, request: Request, directory: Directory, place: str) -> Reply:
        asked = parse_qs(request.query, keep_blank_values=True)
        is_browser = "text/html" in request.headers.get("accept", "")
        page = None
        if is_browser and not {"list", "from"} & asked.keys():
            with suppress(NotFound, NotADirectory):
                page = self.paths.entered(f"{place.rstrip('/')}/{text(NAME)}{SUFFIX}")
        if isinstance(page, File) and media_type(page) in PAGES.values():
            where = asked.get("where", [""])[0]
            if isinstance(page.content, Table) and (where or page.content.rows > MOST_AT_ONCE):
                with page.origin.lease:
                    keep = condition(where) if where else None
                    shown = b"".join(rows_page(page.content, page.origin.services.cache, keep, where))
                    return Reply(HTTPStatus.OK, _headers(pages.POLICY_OF_VIEWS), [shown], len(shown))
            return self._file(request, page, place, pages.FOOTER)
        start = asked.get("from", ["0"])[0]
        names = [self.title, *filter(None, place.split("/"))]
        first = int(start) if re.fullmatch(r"\d{1,18}", start) else 0
        # Programs, such as rclone, read the addresses in a list, and follow no page of it.
        most = pages.AT_ONCE if is_browser else sys.maxsize
        body = pages.listing(names, directory, first, most, partial(self._followed, place))
        return Reply(HTTPStatus.OK, _headers(pages.POLICY), chain([next(body)], body), None)

    def _file(self, request: Request, file: File, place: str, footer: bytes = b"") -> Reply:
        """Return a file, or the range of it that was asked for; ``footer`` is appended to a whole page."""
        kind = media_type(file)
        headers = {
            "Content-Type": kind, "Last-Modified": formatdate(modified(file), usegmt=True),
            "Cache-Control": "no-cache",
        }
        if kind in PAGES.values():
            headers["Content-Security-Policy"] = pages.POLICY_OF_VIEWS
        elif not kind.startswith(("image/", "video/")):  # in a sandbox, videos do not play
            headers["Content-Security-Policy"] = "sandbox"
        tag = ""
        if not (file.is_volatile or footer):
            headers |= {"ETag": (tag := etag(file, place)), "Accept-Ranges": "bytes"}
            if matches(request.headers.get("if-none-match", ""), tag):
                return Reply(HTTPStatus.NOT_MODIFIED, headers, length=None)  # the file's is not 0
        stream = Raw(file, place)
        try:
            start, stop, status = 0, stream.size, HTTPStatus.OK
            is_ranged = request.method == "GET" and tag and request.headers.get("if-range", tag) == tag
            found = span(request.headers.get("range", ""), stop) if is_ranged else None
            if found == (stop, stop):
                stream.close()
                end = {"Content-Range": f"bytes */{stop}"}
                return message(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "the file ends before this range", end)
            if found is not None:
                start, stop = found
                status = HTTPStatus.PARTIAL_CONTENT
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{stream.size}"
            pieces = _pieces(stream, start, stop)
            # The first piece is made now, as an error can be an answer only before the headers are sent.
            first = next(pieces, b"") if request.method == "GET" else b""
        except BaseException:
            stream.close()
            raise
        return Reply(status, headers, chain([first], pieces, [footer]), stop - start + len(footer), stream)


def refusal(error: Exception) -> Reply:
    """Return the answer for an error. What is neither the request's fault nor expected is logged."""
    if not isinstance(error, GlassfsError):
        if is_lack(error):
            return message(HTTPStatus.SERVICE_UNAVAILABLE, "the server lacks memory or another resource")
        log.error("%s: %s", type(error).__name__, error, exc_info=error)
        return message(HTTPStatus.BAD_GATEWAY, "the server failed; its log has the reason")
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    if status >= HTTPStatus.NOT_IMPLEMENTED:
        log.error("%s", error)
    # Clients need not know the folders of this machine.
    sentence = "there is no such file here" if status == HTTPStatus.NOT_FOUND else error.without_source
    return message(status, sentence)


def _headers(policy: str) -> dict[str, str]:
    return {
        "Content-Type": PAGES[".html"], "Content-Security-Policy": policy, "Cache-Control": "no-cache",
        "Vary": "Accept",
    }


def _pieces(stream: Raw, start: int, stop: int) -> Iterator[memoryview]:
    """Yield the bytes of a range in pieces, each valid until the next one."""
    buffer = memoryview(bytearray(min(_PIECE, stop - start)))
    while start < stop:
        count = stream.read_at(buffer[: stop - start], start)
        if count <= 0:
            raise Changed("has become shorter", part=stream.name)
        yield buffer[:count]
        start += count
